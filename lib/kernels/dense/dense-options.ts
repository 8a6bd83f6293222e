// The options of DenseKernels: what each means, and their checks. No state.

import { availableParallelism } from 'node:os';

import { Driver } from '../../device/driver.js';
import { instanceOf, integer, optional, readOptions, streamField, string } from '../../base/options.js';
import type { Instructions } from '../../device/native-kernels.js';
import { instructionsField } from '../kernels-options.js';
import { kernelsOf } from '../load-kernels.js';

/** Options of `DenseKernels`. */
export interface DenseKernelsOptions {
  /**
   * The driver to compute on; a GPU's, or a host driver of a `stream`, cannot be closed before these kernels. Default:
   * the CPU, as with a host driver.
   */
  readonly driver?: Driver | undefined;
  /** CPU: threads, the caller's included. Default: one per processor. */
  readonly threads?: number | undefined;
  /** CPU: vector instructions to use; refused where this machine lacks them. Default `auto`: the widest. */
  readonly instructions?: Instructions | undefined;
  /**
   * The stream on which all work is queued: on cuda a CUstream, on host one of `driver.acquireStream()`. Default 0n,
   * the default stream; on host each call there computes before it returns.
   */
  readonly stream?: bigint | undefined;
  /**
   * cuda: which library multiplies matrices. `auto`: cuBLAS where a working one is found. A path: that libcublas.so, or
   * an error. `off`: the package's own kernel, slower with many rows, whose results do not depend on the batch.
   * Default: VKV_CUBLAS, otherwise `auto`; on a simulated device `off`.
   */
  readonly cublas?: string | undefined;
  /**
   * cuda, with cuBLAS: bytes of device memory for activations in the type of 16-bit weights, rounded up to pages. Rows
   * that do not fit are multiplied in several calls. Default 32 MiB.
   */
  readonly workspaceBytes?: number | undefined;
}

/** Options of arithmetic wherever it is; each may be absent. */
export const arithmeticFields = {
  threads: optional(integer({ min: 1, max: 1024 })),
  instructions: optional(instructionsField),
  stream: optional(streamField),
  cublas: optional(string),
  workspaceBytes: optional(integer({ min: 1, max: 2 ** 40 })),
};

const spec = { driver: optional(instanceOf(Driver)), ...arithmeticFields };

/**
 * Reads the options; `driver` is a device's, or a host driver whose stream was named, or undefined. Throws
 * KV_UNKNOWN_OPTION and KV_INVALID_OPTION.
 */
export function readDenseKernelsOptions(options: DenseKernelsOptions) {
  const {
    driver: given, threads = availableParallelism(), instructions = 'auto', stream = 0n, cublas,
    workspaceBytes = 32 * 2 ** 20,
  } = readOptions('DenseKernels', options, spec);
  const isPlain = given !== undefined && kernelsOf(given) === 'cpu' && stream === 0n;
  const driver = isPlain ? undefined : given;
  return {
    driver, threads, instructions, stream, workspaceBytes,
    cublas: cublas ?? (driver?.kind === 'cuda' ? process.env['VKV_CUBLAS'] || 'auto' : 'off'),
  };
}
