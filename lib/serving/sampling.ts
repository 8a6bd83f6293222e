// Sampling: how the next token is chosen from logits. Samplers are pure functions of the logits, the text, their
// options and the index of the token in the answer, never of an earlier call. So an answer does not depend on the
// schedule, nor on preemptions.
//
// The schedulers choose with native code (batch-sampler.ts) for `greedy` and what `randomSampler` has made, which they
// know by `rulesOf`; they call any other sampler.

import { randomInt } from 'node:crypto';

import { createError } from '../base/errors.js';
import {
  checkInteger, integer, number, optional, readIterable, readOptions, withDefault, type Field,
} from '../base/options.js';
import { maxToken } from '../prefix/prompt-tokens.js';
import { mix32 } from '../base/random.js';
import { isArray, isFloat32Array, isInt32Array, lengthOf } from '../base/typed-arrays.js';
import { draw, mostLikely, type SamplingRules } from './plain-sampling.js';
import type { SampledText } from './sampled-text.js';

/**
 * Chooses a token: returns an index into `logits`, which must not be changed or kept. `index`: place of the token in
 * the answer, from 0. `text`: the prompt and the answer so far; the schedulers always give it.
 */
export type Sampler = (logits: Float32Array, index: number, text?: SampledText) => number;

/** Options of `randomSampler`. They take effect in the order bias, penalties, temperature, `topK`, `topP`, `minP`. */
export interface SamplerOptions {
  /** Divides the logits, more than 0: below 1 prefers likely tokens more, above 1 less. Default 1. */
  readonly temperature?: number | undefined;
  /** Chooses among this many most likely tokens only, 1 or more. Default: all. */
  readonly topK?: number | undefined;
  /**
   * Chooses among the most likely tokens of `topK` that together have this share of the probability, 0 … 1. Default 1.
   */
  readonly topP?: number | undefined;
  /** Leaves out tokens with less than this share of the most likely one's probability, 0 … 1. Default 0. */
  readonly minP?: number | undefined;
  /**
   * Divides positive logits of tokens that are in the prompt or the answer, and multiplies the others; more than 0.
   * Default 1.
   */
  readonly repetitionPenalty?: number | undefined;
  /** Taken from the logits of tokens that are in the answer; any finite number up to 1e9. Default 0. */
  readonly presencePenalty?: number | undefined;
  /** Taken from the logits of tokens that are in the answer, for each time; any finite number up to 1e9. Default 0. */
  readonly frequencyPenalty?: number | undefined;
  /**
   * Pairs [token, what is added to its logit], a Map for one: -1e9 … 1e9, or -Infinity, with which it is never chosen.
   * Default: none.
   */
  readonly logitBias?: Iterable<readonly [token: number, bias: number]> | undefined;
  /**
   * Integer that selects the random numbers: the same seed gives the same answer. Default: one drawn at random, and in
   * a scheduler one for each request.
   */
  readonly seed?: number | undefined;
}

export interface KnownSampler extends SamplingRules {
  /** Undefined: each request draws its own. */
  readonly seed: number | undefined;
}

const positive = number(1e-6);

const temperatureField: Field<number> = (value, place) => {
  if (value !== 0) return positive(value, place);
  throw createError('KV_INVALID_OPTION', {
    reason: 'range', ...place, expected: 'a number, more than 0', received: value,
    hint: 'For the most likely token always, use `greedy`.',
  });
};

const biasNumber = number(-1e9, 1e9);

const biasField: Field<ReadonlyMap<number, number>> = (value, place) => {
  const biases = new Map<number, number>();
  for (const pair of readIterable(value, place, 'an iterable of pairs [token, bias], a Map for one')) {
    if (!isArray(pair)) {
      throw createError('KV_INVALID_OPTION', {
        reason: 'type', ...place, option: `each of ${place.option}`, expected: 'a pair [token, bias]', received: pair,
      });
    }
    const [token, bias] = [(pair as unknown[])[0], (pair as unknown[])[1]];
    checkInteger(place.owner, `each token of ${place.option}`, token, 0, maxToken);
    biases.set(
      token as number,
      bias === -Infinity ? bias : biasNumber(bias, { ...place, option: `each bias of ${place.option}` }));
  }
  return biases;
};

const noBias: ReadonlyMap<number, number> = new Map();

const spec = {
  temperature: withDefault(temperatureField, 1), topK: optional(integer({ min: 1 })),
  topP: withDefault(number(0, 1), 1),
  minP: withDefault(number(0, 1), 0), repetitionPenalty: withDefault(number(1e-6, 1e9), 1),
  presencePenalty: withDefault(biasNumber, 0),
  frequencyPenalty: withDefault(biasNumber, 0), logitBias: withDefault(biasField, noBias), seed: optional(integer()),
};

/** The options of samplers that native code can take over. */
const known = new WeakMap<Sampler, KnownSampler>();

/** Chooses the most likely token, of equals the first; a logit that is NaN, so that the scheduler sees it. */
export const greedy: Sampler = (logits) => {
  checkLogits('greedy', logits);
  return mostLikely(logits);
};

/** Makes a sampler that draws a token by its probability. Throws KV_UNKNOWN_OPTION and KV_INVALID_OPTION. */
export function randomSampler(options: SamplerOptions = {}): Sampler {
  const { topK = Infinity, logitBias, ...read } = readOptions('randomSampler', options, spec);
  const biasTokens = Int32Array.from(logitBias.keys());
  const rules: KnownSampler = { ...read, topK, biasTokens, bias: Float32Array.from(logitBias.values()) };
  const seed = read.seed ?? randomSeed();
  const sampler: Sampler = (logits, index, text) => {
    checkLogits('randomSampler', logits);
    return draw(logits, rules, uniformOf(seed, index), text === undefined ? undefined : readText(text));
  };
  known.set(sampler, rules);
  return sampler;
}

known.set(greedy, {
  temperature: 0, topK: Infinity, topP: 1, minP: 0, repetitionPenalty: 1, presencePenalty: 0, frequencyPenalty: 0,
  seed: 0,
  biasTokens: new Int32Array(0), bias: new Float32Array(0),
});

/** The options of a sampler of this file; undefined for any other. */
export const rulesOf = (sampler: Sampler): KnownSampler | undefined => known.get(sampler);

export const randomSeed = (): number => randomInt(2 ** 48 - 1);

/** The random number of a token of an answer, 0 … 1, below 1. */
export const uniformOf =
  (seed: number, index: number): number => mix32(mix32(seed, Math.floor(seed / 2 ** 32)), index) / 2 ** 32;

function checkLogits(owner: string, logits: unknown): void {
  if (isFloat32Array(logits)) return;
  throw createError('KV_INVALID_OPTION', {
    reason: 'type', owner, option: 'logits', expected: 'a Float32Array', received: logits,
  });
}

function readText(text: unknown): SampledText {
  const place = { owner: 'randomSampler', option: 'text' };
  const isObject = typeof text === 'object' && text !== null;
  const { tokens, length, promptTokens } = isObject
    ? text as Partial<SampledText>
    : {};
  if (!isInt32Array(tokens)) {
    throw createError('KV_INVALID_OPTION', {
      reason: 'type', ...place, expected: '`{ tokens, length, promptTokens }`, `tokens` an Int32Array',
      received: isObject ? tokens : text,
    });
  }
  checkInteger(place.owner, 'text.length', length, 0, lengthOf(tokens));
  checkInteger(place.owner, 'text.promptTokens', promptTokens, 0, length);
  return { tokens, length: length!, promptTokens: promptTokens! };
}
