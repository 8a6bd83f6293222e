// AttentionRules: what attention of a layer does beyond softmax(scale · q · Kᵀ) · V: which tokens one sees, a cap on
// scores, sinks. The option and its checks; the sinks of an array are copied when it is read.

import { createError } from '../base/errors.js';
import { integer, isAddress, nested, number, optional, type Field } from '../base/options.js';
import { isFloat32Array, lengthOf } from '../base/typed-arrays.js';
import type { FloatBuffer } from './dense/dense-operands.js';

/** What attention of a layer does beyond softmax(scale · q · Kᵀ) · V. */
export interface AttentionRules {
  /** A token sees itself and the tokens before it, so many together. Default: all of them. */
  readonly windowTokens?: number | undefined;
  /** The text is cut into chunks of so many tokens, and a token sees its own. Not with a window. Default: no chunks. */
  readonly chunkTokens?: number | undefined;
  /** Scores become softcap · tanh(score / softcap); 0.001 to 1,000,000. Default: they stay. */
  readonly softcap?: number | undefined;
  /**
   * A score per query head that takes weight and gives no value, `[queryHeads]`: a Float32Array, which is copied, or an
   * address, which is not checked, of floats that stay until the kernels are closed. On a GPU it must be an address.
   * Default: none.
   */
  readonly sinks?: FloatBuffer | undefined;
}

/** Rules as they were read: sinks as an address, or as numbers. */
export interface ReadRules {
  readonly windowTokens: number | undefined;
  readonly chunkTokens: number | undefined;
  readonly softcap: number | undefined;
  readonly sinks: bigint | readonly number[] | undefined;
}

const sinksField: Field<bigint | readonly number[]> = (value, place) => {
  if (isAddress(value) && value > 0n) return value;
  if (!isFloat32Array(value)) {
    throw createError('KV_INVALID_OPTION', {
      reason: 'type', ...place, expected: 'a Float32Array or an address', received: value,
    });
  }
  const sinks = Array.from({ length: lengthOf(value) }, (_, head) => value[head]!);
  const wrong = sinks.find((sink) => !(sink < Infinity));
  if (wrong === undefined) return sinks;
  throw createError('KV_INVALID_OPTION', {
    reason: 'range', ...place, expected: 'numbers below infinity', received: wrong,
  });
};

const tokens = optional(integer({ min: 1, max: 2 ** 31 - 1 }));
const fields = nested({
  windowTokens: tokens, chunkTokens: tokens, softcap: optional(number(0.001, 1e6)), sinks: optional(sinksField),
});

/** The rules of one layer. */
export const rulesField: Field<ReadRules> = (value, place) => {
  const rules = fields(value, place);
  if (rules.windowTokens === undefined || rules.chunkTokens === undefined) return rules;
  throw createError('KV_INVALID_OPTION', {
    reason: 'range', ...place, expected: 'a window or chunks, not both',
    received: `windowTokens: ${rules.windowTokens}, chunkTokens: ${rules.chunkTokens}`,
  });
};
