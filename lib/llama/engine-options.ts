// What a LlamaEngine is given: its options, which say what results it can promise, a cache of the model's shape, and rows beside a
// request's tokens.

import { createError } from '../base/errors.js';
import { formatCount, formatList, formatNumber } from '../base/format.js';
import { instanceOf, oneOf, optional, readOptions, string, withDefault } from '../base/options.js';
import { KvCache, type Driver } from '../index.js';
import { attendable } from '../kernels/kernel-layers.js';
import { kernelsOf } from '../kernels/load-kernels.js';

import type { LlamaConfig } from './config.js';
import { LlamaModel } from './model.js';

/** Options of `LlamaEngine`. */
export interface LlamaEngineOptions {
  /** The model; engines may share it. */
  readonly model: LlamaModel;
  /** A cache of `model.shape()`; K and V may be of another type, `model.shape(dtype)`. One of other layers or heads is refused. */
  readonly cache: KvCache;
  /**
   * How a device decodes. `captured`: by graphs, captured the first time that so many sequences are decoded; `queued`: launch by
   * launch, as prompts are. Default `auto`: captured, unless cuBLAS multiplies or the driver refuses.
   */
  readonly decoding?: 'auto' | 'captured' | 'queued' | undefined;
  /**
   * `awaited`: a pass is a promise, and JavaScript goes on while threads or the device compute; passes must not overlap. `blocking`: a
   * call returns with its answer. Both give the same numbers. Default `awaited`.
   */
  readonly passes?: 'awaited' | 'blocking' | undefined;
  /**
   * `exact`: a token's logits depend on the tokens before it and on nothing else, to the bit: not on what was cached, how a prompt was
   * cut, or what else was in a pass. On the CPU, with any type of weights, K and V; on a device it is refused. It attends while decoding
   * as while prefilling, which is slower the longer the texts are. `fast`: a prompt and its answer may attend in orders of their own,
   * and logits differ in their last bits. Default `fast`.
   */
  readonly results?: 'fast' | 'exact' | undefined;
  /** Name of the side tensor [token, hidden size of the model], float32, that each pass answers with: hidden states behind the last layer. The cache must have it. Default: none. */
  readonly hidden?: string | undefined;
}

const spec = {
  model: instanceOf(LlamaModel),
  cache: instanceOf(KvCache),
  decoding: withDefault(oneOf(['auto', 'captured', 'queued']), 'auto'),
  passes: withDefault(oneOf(['awaited', 'blocking']), 'awaited'),
  results: withDefault(oneOf(['fast', 'exact']), 'fast'),
  hidden: optional(string),
};

/** Reads the options. Throws KV_UNKNOWN_OPTION and KV_INVALID_OPTION; nothing was acquired then. */
export function readLlamaEngineOptions(options: LlamaEngineOptions) {
  const read = readOptions('LlamaEngine', options, spec);
  checkShape(read.model.config, read.cache);
  checkResults(read.results, read.cache.driver);
  if (read.hidden !== undefined) checkHidden(read.hidden, read.model.config.hidden, read.cache);
  return read;
}

/** Throws KV_INVALID_OPTION unless the cache has the side tensor, and it takes the model's hidden states as they are. */
function checkHidden(name: string, width: number, { sideTensors }: KvCache): void {
  const wanted = `\`sideTensors: { ${JSON.stringify(name)}: { width: ${width}, dtype: 'float32' } }\``;
  const refuse = (expected: string, received: unknown): never => {
    throw createError('KV_INVALID_OPTION', {
      reason: 'range', owner: 'LlamaEngine', option: 'hidden', expected, received, hint: `Open the cache with ${wanted}.`,
    });
  };
  const tensor = sideTensors.find((each) => each.name === name);
  const names = sideTensors.map((each) => `'${each.name}'`);
  if (tensor === undefined) return refuse(names.length === 0 ? 'left out: the cache has no side tensors' : `the name of a side tensor of the cache: ${formatList(names)}`, name);
  if (tensor.width === width && tensor.dtype === 'float32') return;
  refuse(`a side tensor of ${formatNumber(width)} float32 elements a token`, `'${name}' of ${formatNumber(tensor.width)} ${tensor.dtype} elements`);
}

/**
 * Throws KV_INVALID_OPTION unless every layer of the model has K and V of its own shape in the cache: kernels take the cache's
 * word for heads and their dims, and would compute something else without a word. More layers change nothing.
 */
function checkShape({ layers, kvHeads, headDim }: LlamaConfig, { tensors }: KvCache): void {
  const refuse = (received: string): never => {
    throw createError('KV_INVALID_OPTION', {
      reason: 'range', owner: 'LlamaEngine', option: 'cache', received,
      expected: `one of the model's shape, ${formatCount('layer', layers)} with K and V of ${shapeText(kvHeads, headDim)} in ${attendable.join(', ')}`,
      hint: 'Open it with `model: model.shape()`.',
    });
  };
  for (const { layer, role, heads, dim, dtype } of tensors) {
    if (role === 'latent') refuse(`one of latent attention (MLA), ${formatNumber(dim)} elements a token`);
    if (layer < layers && (heads !== kvHeads || dim !== headDim)) refuse(`layer ${layer} with a ${role} of ${shapeText(heads, dim)}`);
    if (!attendable.includes(dtype)) refuse(`one of ${dtype}`);
  }
  const [first, last] = [tensors[0]!.layer, tensors.at(-1)!.layer];
  if (first > 0 || last < layers - 1) refuse(first === last ? `one of layer ${first} alone` : `one of layers ${first} to ${last}`);
}

const shapeText = (heads: number, dim: number): string => `${formatCount('head', heads)} × ${formatNumber(dim)}`;

/** Throws KV_INVALID_OPTION for exact results where no kernel promises them. */
function checkResults(results: 'fast' | 'exact', driver: Driver): void {
  if (results === 'fast' || kernelsOf(driver) === 'cpu') return;
  throw createError('KV_INVALID_OPTION', {
    reason: 'range', owner: 'LlamaEngine', option: 'results', expected: `'fast' on ${driver.info.deviceName}`, received: results,
    hint: "Exact results are promised on the CPU only: cuBLAS sums in an order that depends on the batch, and a GPU's attention on the chunk. Use `driver: 'host'`.",
  });
}

/** Rows of an image, or what the stage before has computed, for the tokens from `at` on. A request's `input` is a list of them. */
export interface GivenRows {
  /** Token of the prompt, from 0. */
  readonly at: number;
  /** [token, hidden size], in place of the tokens' embeddings, as the first layer takes them: multiplied already where a Gemma does so. */
  readonly rows: Float32Array;
}

/** The rows of a sequence in a pass. */
export function givenTo(inputs: readonly unknown[] | undefined, index: number): readonly GivenRows[] {
  return (inputs?.[index] ?? []) as readonly GivenRows[];
}
