// The drivers there are, as the contract suite and the memory tests see them: how each is opened, and what it lacks, with
// the reason that a skipped test shows. Opens nothing by itself.

import { constants } from 'node:os';

import { isKvError } from '#internal/base/errors.js';
import { MockDevice } from '#internal/device/mock-device.js';
import type { MockCall } from '#internal/device/mock-records.js';
import { native, type Native, type NativeDriver } from '#internal/device/native.js';
import { nativeOf } from './native-of.js';

/** What a driver may lack, and what having it means. */
export const capabilities = {
  'host access': 'the CPU may use mapped addresses',
  'zeroed pages': 'the first content of a page is zeros',
  'readable holes': 'an unmapped address of a reservation reads as zero',
  'memory': 'pages hold bytes that can be written and read',
  'budget': 'the bytes of all pages can be limited when the driver is opened',
  'reservation size check': 'a reservation that is no multiple of the page is refused',
  'whole reservation check': 'freeing part of a reservation, or one that was freed, is refused',
  'empty reservation check': 'freeing a reservation with a page in it is refused',
  'mapped address check': 'mapping over a mapped page is refused',
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
  readonly name: string;
  readonly kind: 'host' | 'mock' | 'cuda';
  /** Why this machine cannot run it, in words; undefined where it can. */
  whyAbsent?(): string | undefined;
  readonly lacks: Readonly<Partial<Record<Capability, string>>>;
  /** For each call, the calls of the layer below that can be made to fail under it, and the code that becomes. */
  readonly failures: Readonly<Partial<Record<FallibleCall, Readonly<Record<string, string>>>>>;
  /** `memoryBytes`: its budget, where it has one. */
  open(options?: { readonly memoryBytes?: number }): OpenDriver;
}

const CUDA_ERROR_OUT_OF_MEMORY = 2;

export const hostDriver: DriverDescription = {
  name: 'host',
  kind: 'host',
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

const mockFailures: DriverDescription['failures'] = {
  reserve: { cuMemAddressReserve: 'KV_OUT_OF_ADDRESS_SPACE' },
  freeReservation: { cuMemAddressFree: 'KV_DRIVER_CALL_FAILED' },
  createPage: { cuMemCreate: 'KV_OUT_OF_DEVICE_MEMORY' },
  releasePage: { cuMemRelease: 'KV_DRIVER_CALL_FAILED' },
  map: { cuMemMap: 'KV_DRIVER_CALL_FAILED' },
  setAccess: { cuMemSetAccess: 'KV_DRIVER_CALL_FAILED' },
  unmap: { cuMemUnmap: 'KV_DRIVER_CALL_FAILED' },
};

const lackedByMock: DriverDescription['lacks'] = {
  'reservation size check': 'CUDA asks for multiples of the host\'s pages only',
  'readable holes': 'a GPU faults on an unmapped address, and so does the mock',
  'zeroed pages': 'CUDA promises nothing about new memory',
  'mapped page check': 'CUDA keeps a released page until it is unmapped everywhere',
};

/** The simulated device with real memory behind its pages. */
export const mockDriver: DriverDescription = {
  name: 'mock',
  kind: 'mock',
  lacks: lackedByMock,
  failures: mockFailures,
  open: ({ memoryBytes = 256 * 2 ** 20 } = {}) => openMock(new MockDevice({ memoryBytes })),
};

/** The same, whose work is done late and whose waits let other threads' calls run before. */
export const mockDriverWithSlowWaits: DriverDescription = {
  ...mockDriver,
  name: 'mock with slow waits',
  open: ({ memoryBytes = 256 * 2 ** 20 } = {}) => openMock(new MockDevice({ memoryBytes, streams: 'manual', waits: 'slow' })),
};

/** The simulated device whose pages are only counted. */
export const mockDriverWithoutMemory: DriverDescription = {
  name: 'mock without memory',
  kind: 'mock',
  lacks: { ...lackedByMock, 'memory': 'its pages are only counted', 'host access': 'its pages are only counted' },
  failures: mockFailures,
  open: ({ memoryBytes = 256 * 2 ** 20 } = {}) => openMock(new MockDevice({ memoryBytes, backing: 'none' })),
};

export const cudaDriver: DriverDescription = {
  name: 'cuda',
  kind: 'cuda',
  whyAbsent: whyNoCuda,
  lacks: {
    'host access': 'device memory is not mapped for the CPU',
    'zeroed pages': 'CUDA promises nothing about new memory',
    'readable holes': 'a GPU faults on an unmapped address',
    'reservation size check': 'CUDA asks for multiples of the host\'s pages only',
    'budget': 'the limit is the memory of the device, and a test does not fill it',
    'page handle check': 'using a released handle is undefined in CUDA',
    'mapped page check': 'CUDA keeps a released page until it is unmapped everywhere',
    'work handle check': 'using a destroyed stream or event is undefined in CUDA',
    'access check': 'touching memory without access may end the context',
    'overlap check': 'CUDA does not check',
    'failure script': 'the driver library cannot be scripted',
  },
  failures: {},
  open: openCuda,
};

/** The host driver with options of its own. */
export function openHost(
  { memoryBytes = 0, populate = false, hugePages = false, mappingLimit = 0 }: Partial<Parameters<Native['openHostDriver']>[0]> = {},
): OpenDriver {
  const driver = native().openHostDriver({ memoryBytes, populate, hugePages, mappingLimit });
  return {
    native: driver,
    failNext: (systemCall) => driver.failCall(systemCall, 1, constants.errno.ENOMEM),
    close: () => driver.close(),
  };
}

function openMock(device: MockDevice): OpenDriver {
  return {
    native: nativeOf(device.driver),
    failNext: (systemCall) => device.failCall(systemCall as MockCall, { result: CUDA_ERROR_OUT_OF_MEMORY }),
    close: () => device.close(),
  };
}

/** One driver that a process which tests a GPU never closes: making the device's context anew takes 0.2 to 1 s. */
let keeper: NativeDriver | undefined;

function openCuda(): OpenDriver {
  keeper ??= native().openCudaDriver(0, undefined);
  const driver = native().openCudaDriver(0, undefined);
  const failNext = (): never => {
    throw new Error('the cuda driver has no failure script');
  };
  return { native: driver, failNext, close: () => driver.close() };
}

function whyNoCuda(): string | undefined {
  try {
    openCuda().close();
    return undefined;
  } catch (error) {
    if (isKvError(error)) return error.message;
    throw error;
  }
}
