// The drivers there are, as the contract suite and the memory tests see them: how each is opened, and what it lacks, with
// the reason that a skipped test shows. Opens nothing by itself.

import { isKvError } from '../../dist/errors/index.js';
import { Driver, type DriverOptions } from '../../dist/memory/driver.js';
import { MockDevice } from '../../dist/memory/mock-device.js';
import type { NativeDriver } from '../../dist/memory/native.js';

/** What a driver may lack, and what having it means. */
export const capabilities = {
  'host access': 'the CPU may use mapped addresses',
  'zeroed pages': 'the first content of a page is zeros',
  'readable holes': 'an unmapped address of a reservation reads as zero',
  'memory': 'pages hold bytes that can be written and read',
  'budget': 'the bytes of all pages can be limited when the driver is opened',
  'page handle check': 'a handle that is no page is refused',
  'mapped page check': 'releasing a page that is mapped is refused',
  'work handle check': 'a stream or event that does not exist is refused',
  'access check': 'bytes without access are refused, not a fault',
  'overlap check': 'a copy between ranges that overlap is refused',
  'failure script': 'a test can make one call of the layer below fail',
} as const;

export type Capability = keyof typeof capabilities;

/** The calls of a driver that change something and may fail. */
export type FallibleCall =
  'reserve' | 'freeReservation' | 'createPage' | 'releasePage' | 'map' | 'setAccess' | 'unmap';

/** An opened driver, and what a test can do besides calling it. */
export interface OpenDriver {
  readonly native: NativeDriver;
  /** Makes the next call of the layer below fail once; only where there is a failure script. */
  failNext(systemCall: string): void;
  close(): void;
}

export interface DriverDescription {
  readonly name: 'host' | 'mock' | 'cuda';
  /** Why this machine cannot run it. */
  readonly absent?: string | undefined;
  readonly lacks: Readonly<Partial<Record<Capability, string>>>;
  /** For each call, the calls of the layer below that can be made to fail under it, and the code that becomes. */
  readonly failures: Readonly<Partial<Record<FallibleCall, Readonly<Record<string, string>>>>>;
  /** `memoryBytes`: its budget, where it has one. */
  open(options?: { readonly memoryBytes?: number }): OpenDriver;
}

const errno = { ENOMEM: 12 } as const;
const cudaResult = { OUT_OF_MEMORY: 2 } as const;

export const hostDriver: DriverDescription = {
  name: 'host',
  lacks: {},
  failures: {
    reserve: {
      'mmap-reserve': 'KV_OUT_OF_ADDRESS_SPACE',
      'mmap-unmap': 'KV_OUT_OF_ADDRESS_SPACE',
      'ftruncate': 'KV_OUT_OF_ADDRESS_SPACE',
    },
    freeReservation: { munmap: 'KV_DRIVER_CALL_FAILED' },
    releasePage: { fallocate: 'KV_DRIVER_CALL_FAILED' },
    setAccess: { 'mmap-map': 'KV_OUT_OF_MAPPINGS' },
    unmap: { 'mmap-unmap': 'KV_DRIVER_CALL_FAILED' },
  },
  open: (options = {}) => openHost(options),
};

export const mockDriver: DriverDescription = {
  name: 'mock',
  lacks: {
    'readable holes': 'a GPU faults on an unmapped address, and so does the mock',
    'zeroed pages': 'CUDA promises nothing about new memory',
    'mapped page check': 'CUDA keeps a released page until it is unmapped everywhere',
  },
  failures: {
    reserve: { cuMemAddressReserve: 'KV_OUT_OF_ADDRESS_SPACE' },
    freeReservation: { cuMemAddressFree: 'KV_DRIVER_CALL_FAILED' },
    createPage: { cuMemCreate: 'KV_OUT_OF_DEVICE_MEMORY' },
    releasePage: { cuMemRelease: 'KV_DRIVER_CALL_FAILED' },
    map: { cuMemMap: 'KV_DRIVER_CALL_FAILED' },
    setAccess: { cuMemSetAccess: 'KV_DRIVER_CALL_FAILED' },
    unmap: { cuMemUnmap: 'KV_DRIVER_CALL_FAILED' },
  },
  open({ memoryBytes = 64 * 2 ** 20 } = {}) {
    const device = new MockDevice({ memoryBytes });
    const driver = device.openDriver();
    return {
      native: driver.native,
      failNext: (systemCall) => device.failCall(systemCall, { nth: 1, result: cudaResult.OUT_OF_MEMORY }),
      close: () => driver.close(),
    };
  },
};

export const cudaDriver: DriverDescription = {
  name: 'cuda',
  absent: whyNoCuda(),
  lacks: {
    'host access': 'device memory is not mapped for the CPU',
    'zeroed pages': 'CUDA promises nothing about new memory',
    'readable holes': 'a GPU faults on an unmapped address',
    'budget': 'the limit is the memory of the device, and a test does not fill it',
    'page handle check': 'using a released handle is undefined in CUDA',
    'mapped page check': 'CUDA keeps a released page until it is unmapped everywhere',
    'work handle check': 'using a destroyed stream or event is undefined in CUDA',
    'access check': 'touching memory without access may end the context',
    'overlap check': 'CUDA does not check',
    'failure script': 'the driver library cannot be scripted',
  },
  failures: {},
  open: () => {
    const driver = Driver.open('cuda');
    return { native: driver.native, failNext: notScripted, close: () => driver.close() };
  },
};

export const drivers: readonly DriverDescription[] = [hostDriver, mockDriver, cudaDriver];

/** The host driver with options of its own. */
export function openHost(options: DriverOptions = {}): OpenDriver {
  const driver = Driver.open('host', options);
  return {
    native: driver.native,
    failNext: (systemCall) => driver.native.failCall(systemCall, 1, errno.ENOMEM),
    close: () => driver.close(),
  };
}

function notScripted(): never {
  throw new Error('this driver has no failure script');
}

/** In words, or undefined where a CUDA device can be opened. */
function whyNoCuda(): string | undefined {
  try {
    Driver.open('cuda').close();
    return undefined;
  } catch (error) {
    if (isKvError(error)) return error.message;
    throw error;
  }
}
