// Options of a LlamaEngine, and which results it can promise.

import { createError } from '../base/errors.js';
import { oneOf } from '../base/options.js';
import type { Driver, KvCache } from '../index.js';

import type { LlamaModel } from './model.js';

/** Options of `LlamaEngine`. */
export interface LlamaEngineOptions {
  /** The model; engines may share it. */
  readonly model: LlamaModel;
  /** A cache of `model.shape()`. */
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
  /** Name of the side tensor [token, hidden size of the model], float32, that each pass answers with: hidden states behind the last layer. Default: none. */
  readonly hidden?: string | undefined;
}

/** Throws KV_INVALID_OPTION for anything else, and for exact results where no kernel promises them. */
export function checkResults(results: unknown, { kind, info }: Driver): void {
  const at = { owner: 'LlamaEngine', option: 'results' };
  if (oneOf(['fast', 'exact'])(results, at) === 'fast' || kind === 'host') return;
  throw createError('KV_INVALID_OPTION', {
    reason: 'range', ...at, expected: `'fast' on ${info.deviceName}`, received: results,
    hint: "Exact results are promised on the CPU only: cuBLAS sums in an order that depends on the batch, and a GPU's attention on the chunk. Use `driver: 'host'`.",
  });
}
