// The options of DenseKernels: what each means, and their checks. No state.

import { availableParallelism } from 'node:os';

import { integer, readOptions, withDefault } from '../options.js';
import { instructionsField, type Instructions } from './kernels-options.js';

export interface DenseKernelsOptions {
  /** Threads, the caller's included. Default: one per processor. */
  readonly threads?: number | undefined;
  /** Vectors to use; one that this machine lacks is refused. Default: the widest. */
  readonly instructions?: Instructions | undefined;
}

const spec = {
  threads: withDefault(integer({ min: 1, max: 1024 }), 0),
  instructions: withDefault(instructionsField, 'auto'),
};

/** Throws KV_UNKNOWN_OPTION and KV_INVALID_OPTION. */
export function readDenseKernelsOptions(options: DenseKernelsOptions) {
  const read = readOptions('DenseKernels', options, spec);
  return { ...read, threads: read.threads || availableParallelism() };
}
