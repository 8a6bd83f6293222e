// Which kernels a driver has; and loads the CUDA kernels: one module per driver, for all its kernel sets, with every
// kernel looked up. Tries the images in turn, since a driver may refuse one and take the next.

import { createError, isKvError } from '../base/errors.js';
import { Driver } from '../device/driver.js';
import { native } from '../device/native.js';
import { abortSignal, instanceOf, optional, readOptions } from '../base/options.js';
import { kernelImages } from './kernel-image.js';

/** Options of `loadKernels`. */
export interface LoadKernelsOptions {
  /** Aborts the wait with KV_ABORTED; the module is loaded all the same. */
  readonly signal?: AbortSignal | undefined;
}

const loaded = new WeakMap<Driver, string>();
/**
 * Loads in progress by driver, shared by concurrent callers. The driver cannot be closed before its promise settles.
 */
const underWay = new WeakMap<Driver, Promise<void>>();

/** The kernels that work on a driver's memory. Throws KV_DRIVER_UNSUPPORTED where there are none. @internal */
export function kernelsOf({ kind, info: { kernels, device, deviceName } }: Driver): 'cpu' | 'cuda' {
  if (kernels !== 'none') return kernels;
  throw createError('KV_DRIVER_UNSUPPORTED', {
    call: 'loadKernels', status: 0, statusName: '', device, deviceName,
    feature: `the kernels of this package (its driver is of kind '${kind}')`,
  });
}

/**
 * Loads the CUDA kernels on a driver, on another thread: a GPU's driver takes seconds to compile them the first time,
 * and then caches them on disk. `Kernels` and `DenseKernels` opened afterwards use them; opened before, they block.
 * Call it before the cache fills the device, since code takes device memory too. The module stays until the driver is
 * closed; on host there is nothing to load. Throws KV_KERNELS_REFUSED, with the log of the driver's compiler, when the
 * driver refuses every image; KV_DRIVER_UNSUPPORTED, KV_CLOSED, KV_ABORTED, or the driver's error.
 */
export async function loadKernels(driver: Driver, options: LoadKernelsOptions = {}): Promise<void> {
  instanceOf(Driver)(driver, { owner: 'loadKernels', option: 'driver' });
  const { signal } = readOptions('loadKernels', options, { signal: optional(abortSignal) });
  if (signal?.aborted) throw aborted(signal);
  if (kernelsOf(driver) === 'cpu') return;
  const loading = loadOnce(driver);
  if (signal === undefined) return loading;
  await new Promise<void>((resolve, reject) => {
    const stop = (): void => { reject(aborted(signal)); };
    signal.addEventListener('abort', stop, { once: true });
    loading.then(resolve, reject).finally(() => { signal.removeEventListener('abort', stop); });
  });
}

/** Returns the name of the driver's module, loading it on this thread if needed; undefined on host. @internal */
export function kernelModule(driver: Driver): string | undefined {
  if (kernelsOf(driver) === 'cpu') return undefined;
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

/** Returns the refusal of one image, with that of the image before as its cause. Rethrows every other error. */
function explained(error: unknown, before: unknown): unknown {
  if (!isKvError(error, 'KV_KERNELS_REFUSED')) throw error;
  return before === undefined ? error : createError('KV_KERNELS_REFUSED', error.details, { cause: before });
}

function aborted(signal: AbortSignal): Error {
  return createError('KV_ABORTED', { operation: 'loading the kernels' }, { cause: signal.reason });
}
