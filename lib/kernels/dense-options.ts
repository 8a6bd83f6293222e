// The options of DenseKernels: what each means, and their checks. No state.

import { availableParallelism } from 'node:os';

import { Driver } from '../memory/driver.js';
import { instanceOf, integer, optional, readOptions, streamField, withDefault } from '../options.js';
import { instructionsField, type Instructions } from './kernels-options.js';

export interface DenseKernelsOptions {
  /** On whose machine to compute; a GPU's cannot be closed before these kernels. Default: the CPU, as for a host driver. */
  readonly driver?: Driver | undefined;
  /** CPU: threads, the caller's included. Default: one per processor. */
  readonly threads?: number | undefined;
  /** CPU: vectors to use; one that this machine lacks is refused. Default: the widest. */
  readonly instructions?: Instructions | undefined;
  /** cuda: the stream that everything is queued on, a CUstream. Default 0n, the default stream. */
  readonly stream?: bigint | undefined;
}

const spec = {
  driver: optional(instanceOf(Driver)),
  threads: withDefault(integer({ min: 1, max: 1024 }), 0),
  instructions: withDefault(instructionsField, 'auto'),
  stream: withDefault(streamField, 0n),
};

/** `driver` is a device's, or undefined. Throws KV_UNKNOWN_OPTION and KV_INVALID_OPTION. */
export function readDenseKernelsOptions(options: DenseKernelsOptions) {
  const read = readOptions('DenseKernels', options, spec);
  const driver = read.driver?.kind === 'host' ? undefined : read.driver;
  return { ...read, driver, threads: read.threads || availableParallelism() };
}
