// The options of Kernels: what each means, and their checks. No state.

import { availableParallelism } from 'node:os';

import type { RowDtype } from '../base/dtypes.js';
import { createError } from '../base/errors.js';
import { KvCache } from '../kv-cache/kv-cache.js';
import { native } from '../device/native.js';
import type { Instructions } from '../device/native-kernels.js';
import {
  arrayOf, instanceOf, integer, number, oneOf, optional, readOptions, streamField, withDefault, type Field,
} from '../base/options.js';
import { isArray, isShared, typedArrayKind } from '../base/typed-arrays.js';
import { rulesField, type AttentionRules, type ReadRules } from './attention-rules.js';

/** Options of `Kernels`. */
export interface KernelsOptions {
  /** The cache whose tensors are read and written. */
  readonly cache: KvCache;
  /**
   * Query heads of every layer, or of each layer in turn; a multiple of the layer's KV heads. Default: as many as KV
   * heads.
   */
  readonly queryHeads?: number | readonly number[] | undefined;
  /** Factor of the products of queries and keys. Default 1 / √headDim. */
  readonly scale?: number | undefined;
  /**
   * Windows, chunks, soft caps and sinks of every layer, or of each layer in turn. A layer of a set with a window or
   * chunks (`model.layerSets`) sees no more than that. Default: as much as the cache keeps of the layer, and no more.
   */
  readonly attention?: AttentionRules | readonly (AttentionRules | undefined)[] | undefined;
  /** Type of the activations: new K and V, queries, outputs. Default float32. */
  readonly rowDtype?: RowDtype | undefined;
  /** host: threads, the caller's included. Default: one per processor. */
  readonly threads?: number | undefined;
  /** host: vector instructions to use; refused where this machine lacks them. Default `auto`: the widest. */
  readonly instructions?: Instructions | undefined;
  /**
   * The stream on which all work is queued: on cuda a CUstream, on host one of `driver.acquireStream()`. Default 0n,
   * the default stream; on host each call there computes before it returns.
   */
  readonly stream?: bigint | undefined;
  /**
   * cuda: bytes of device memory, outside the cache's budget and rounded up to pages, for the parts of sequences that
   * decoding splits. 0: a sequence is never split. Default 32 MiB.
   */
  readonly workspaceBytes?: number | undefined;
}

const positive = integer({ min: 1 });

const headsOfLayers = arrayOf(positive);

const headsField: Field<number | readonly number[]> = (value, place) => {
  return isArray(value) ? headsOfLayers(value, place) : positive(value, place);
};

const rulesOfLayers = arrayOf(optional(rulesField));

const attentionField: Field<ReadRules | readonly (ReadRules | undefined)[]> = (value, place) => {
  return isArray(value) ? rulesOfLayers(value, place) : rulesField(value, place);
};

/** `auto`, or vector instructions of this machine. */
export const instructionsField: Field<Instructions> = (value, place) => {
  const wanted = oneOf(['auto', 'avx512', 'avx2', 'portable'])(value, place);
  const { cpuInstructions } = native();
  if (wanted === 'auto' || cpuInstructions.includes(wanted)) return wanted;
  throw createError('KV_INVALID_OPTION', {
    reason: 'range', ...place, expected: `one that this machine has (${cpuInstructions.join(', ')})`, received: wanted,
  });
};

const spec = {
  cache: instanceOf(KvCache),
  queryHeads: optional(headsField),
  scale: optional(number()),
  attention: optional(attentionField),
  rowDtype: withDefault(oneOf(['float32', 'float16', 'bfloat16']), 'float32'),
  threads: withDefault(integer({ min: 1, max: 1024 }), 0),
  instructions: withDefault(instructionsField, 'auto'),
  stream: withDefault(streamField, 0n),
  workspaceBytes: withDefault(integer({ max: 2 ** 40 }), 32 * 2 ** 20),
};

/** Reads the options. Throws KV_UNKNOWN_OPTION and KV_INVALID_OPTION. */
export function readKernelsOptions(options: KernelsOptions) {
  const read = readOptions('Kernels', options, spec);
  return { ...read, threads: read.threads || availableParallelism() };
}

/**
 * Throws KV_INVALID_OPTION unless a typed array's memory is a SharedArrayBuffer's: commands that run later use it, and
 * JavaScript can neither detach nor shrink it.
 */
export function checkShared(owner: string, option: string, array: unknown): void {
  if (isShared(array)) return;
  throw createError('KV_INVALID_OPTION', {
    reason: 'type', owner, option, expected: `a ${typedArrayKind(array)} over a SharedArrayBuffer, or an address`,
    received: 'one over an ArrayBuffer',
    hint: 'The command runs later, when an ArrayBuffer may have been detached. Or use no stream: then it is done when the call returns.',
  });
}
