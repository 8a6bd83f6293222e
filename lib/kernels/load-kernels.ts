// Loading the CUDA kernels: one module per driver, for all kernel sets that are opened over it, with every kernel looked up.
// The images are tried in turn: what one driver refuses another takes.

import { createError, isKvError } from '../base/errors.js';
import { Driver } from '../device/driver.js';
import { native } from '../device/native.js';
import { abortSignal, instanceOf, optional, readOptions } from '../base/options.js';
import { kernelImages } from './kernel-image.js';

/** Options of `loadKernels`. */
export interface LoadKernelsOptions {
  /** Stops waiting with KV_ABORTED; the module is loaded nevertheless. */
  readonly signal?: AbortSignal | undefined;
}

const loaded = new WeakMap<Driver, string>();
/** What all callers wait for that load the kernels of one driver at once; the driver cannot be closed before it settles, and can then. */
const underWay = new WeakMap<Driver, Promise<void>>();

/**
 * Loads the CUDA kernels on a driver, on another thread: a GPU's driver takes seconds to compile them the first time, and keeps
 * what it compiled on disk. `Kernels` and `DenseKernels` opened afterwards find them there; opened before, they wait. Best done
 * before the cache fills the device, as code takes device memory too. The module stays until the driver is closed; on host there
 * is nothing to load. Throws KV_KERNELS_REFUSED, with what the driver's compiler said, when it takes no image; KV_CLOSED,
 * KV_ABORTED, or the driver's error.
 */
export async function loadKernels(driver: Driver, options: LoadKernelsOptions = {}): Promise<void> {
  instanceOf(Driver)(driver, { owner: 'loadKernels', option: 'driver' });
  const { signal } = readOptions('loadKernels', options, { signal: optional(abortSignal) });
  if (signal?.aborted) throw aborted(signal);
  if (driver.kind === 'host') return;
  const loading = loadOnce(driver);
  if (signal === undefined) return loading;
  await new Promise<void>((resolve, reject) => {
    const stop = (): void => { reject(aborted(signal)); };
    signal.addEventListener('abort', stop, { once: true });
    loading.then(resolve, reject).finally(() => { signal.removeEventListener('abort', stop); });
  });
}

/** The name of the driver's module, which is loaded first if it is not there, on this thread; undefined on host. @internal */
export function kernelModule(driver: Driver): string | undefined {
  if (driver.kind === 'host') return undefined;
  const known = loaded.get(driver);
  if (known !== undefined) return known;
  let refusal: unknown;
  for (const { name, read } of kernelImages(driver.info.computeCapability)) {
    try {
      native().loadKernels(driver.native, name, read());
      loaded.set(driver, name);
      return name;
    } catch (error) {
      refusal = explained(error, refusal);
    }
  }
  throw refusal;
}

function loadOnce(driver: Driver): Promise<void> {
  const known = underWay.get(driver);
  if (known !== undefined) return known;
  const membership = driver.addUser({ close: () => { /* the module goes with the driver */ } });
  const loading = load(driver).finally(() => {
    driver.removeUser(membership.memory);
    underWay.delete(driver);
  });
  underWay.set(driver, loading);
  return loading;
}

async function load(driver: Driver): Promise<void> {
  if (loaded.has(driver)) return;
  let refusal: unknown;
  for (const { name, read } of kernelImages(driver.info.computeCapability)) {
    try {
      await native().loadKernelsAsync(driver.native, name, read());
      loaded.set(driver, name);
      return;
    } catch (error) {
      refusal = explained(error, refusal);
    }
  }
  throw refusal;
}

/** A refusal of one image, caused by that of the image before; every other error ends the loading. */
function explained(error: unknown, before: unknown): unknown {
  if (!isKvError(error, 'KV_KERNELS_REFUSED')) throw error;
  return before === undefined ? error : createError('KV_KERNELS_REFUSED', error.details, { cause: before });
}

function aborted(signal: AbortSignal): Error {
  return createError('KV_ABORTED', { operation: 'loading the kernels' }, { cause: signal.reason });
}
