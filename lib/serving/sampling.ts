// Sampling: how the next token is chosen from logits. Samplers are pure functions of the logits, their options and the index of the
// token in the answer, never of an earlier call. So an answer does not depend on the schedule, nor on preemptions.

import { createError } from '../base/errors.js';
import { integer, number, optional, readOptions, withDefault, type Field } from '../base/options.js';
import { mix32 } from '../base/random.js';
import { isFloat32Array, lengthOf } from '../base/typed-arrays.js';

/**
 * Chooses a token: returns an index into `logits`, which must not be changed or kept. `index`: place of the token in the answer, from 0.
 */
export type Sampler = (logits: Float32Array, index: number) => number;

/** Options of `randomSampler`. */
export interface SamplerOptions {
  /** Divides the logits, more than 0: below 1 prefers likely tokens more, above 1 less. Default 1. */
  readonly temperature?: number | undefined;
  /** Chooses among this many most likely tokens only, 1 or more. Default: all. */
  readonly topK?: number | undefined;
  /** Chooses among the most likely tokens of `topK` that together have this share of the probability, 0 … 1. Default 1. */
  readonly topP?: number | undefined;
  /** Integer that selects the random numbers: the same seed gives the same answer. Default 0. */
  readonly seed?: number | undefined;
}

const positive = number(1e-6);

const temperatureField: Field<number> = (value, place) => {
  if (value !== 0) return positive(value, place);
  throw createError('KV_INVALID_OPTION', {
    reason: 'range', ...place, expected: 'a number, more than 0', received: value, hint: 'For the most likely token always, use `greedy`.',
  });
};

const spec = {
  temperature: withDefault(temperatureField, 1), topK: optional(integer({ min: 1 })), topP: withDefault(number(0, 1), 1),
  seed: withDefault(integer(), 0),
};

/** Chooses the most likely token, of equals the first; a logit that is NaN, so that the scheduler sees it. */
export const greedy: Sampler = (logits) => {
  if (!isFloat32Array(logits)) {
    throw createError('KV_INVALID_OPTION', { reason: 'type', owner: 'greedy', option: 'logits', expected: 'a Float32Array', received: logits });
  }
  const length = lengthOf(logits); // not `logits.length`, which may be overwritten
  let best = 0;
  let largest = -Infinity;
  for (let token = 0; token < length; token += 1) {
    const logit = logits[token]!;
    if (logit <= largest) continue;
    best = token;
    largest = logit;
    if (Number.isNaN(logit)) break;
  }
  return best;
};

/** Makes a sampler that draws a token by its probability. Throws KV_UNKNOWN_OPTION and KV_INVALID_OPTION. */
export function randomSampler(options: SamplerOptions = {}): Sampler {
  const { temperature, topK = Infinity, topP, seed } = readOptions('randomSampler', options, spec);
  const high = Math.floor(seed / 2 ** 32);
  return (logits, index) => {
    const likeliest = greedy(logits, index);
    const largest = logits[likeliest]!;
    if (!Number.isFinite(largest)) return likeliest; // no probabilities follow from it
    const uniform = mix32(mix32(seed, high), index) / 2 ** 32;
    const isCut = topK < logits.length || topP < 1;
    return isCut ? drawAmongBest(logits, { temperature, topK, topP, largest }, uniform) : draw(logits, temperature, largest, uniform);
  };
}

/** The token in whose part of [0, 1) `uniform` lies, by token id. */
function draw(logits: Float32Array, temperature: number, largest: number, uniform: number): number {
  let total = 0;
  for (const logit of logits) total += Math.exp((logit - largest) / temperature);
  let left = uniform * total;
  for (let token = 0; token < logits.length; token += 1) {
    left -= Math.exp((logits[token]! - largest) / temperature);
    if (left < 0) return token;
  }
  return greedy(logits, 0); // rounding only
}

interface Cut {
  readonly temperature: number;
  readonly topK: number;
  readonly topP: number;
  /** The largest logit, a finite number. */
  readonly largest: number;
}

function drawAmongBest(logits: Float32Array, { temperature, topK, topP, largest }: Cut, uniform: number): number {
  const weightOf = (token: number): number => Math.exp((logits[token]! - largest) / temperature);
  const best = bestTokens(logits, { temperature, topK, topP, largest });
  let total = 0;
  for (const token of best) total += weightOf(token);
  let nucleus = 0;
  let count = 0;
  while (count < best.length && (count === 0 || nucleus < topP * total)) nucleus += weightOf(best[count++]!);
  let left = uniform * nucleus;
  for (let at = 0; at < count; at += 1) {
    left -= weightOf(best[at]!);
    if (left < 0) return best[at]!;
  }
  return best[0]!; // rounding only
}

/** The `topK` most likely tokens in order, without those that cannot be among those of `topP`. */
function bestTokens(logits: Float32Array, { temperature, topK, topP, largest }: Cut): number[] {
  let least = topK < logits.length ? kthLargest(logits, topK) : -Infinity;
  if (topK >= logits.length) {
    let total = 0;
    for (const logit of logits) total += Math.exp((logit - largest) / temperature);
    // All tokens below this probability have less than 1 - topP together: leaving them out leaves the nucleus whole.
    const probability = (1 - topP) / logits.length;
    least = largest + temperature * Math.log(probability * total);
  }
  const tokens: number[] = [];
  for (let token = 0; token < logits.length; token += 1) if (logits[token]! >= least) tokens.push(token);
  tokens.sort((a, b) => logits[b]! - logits[a]! || a - b);
  if (tokens.length > topK) tokens.length = topK;
  return tokens;
}

/** Keeps the `k` largest in a heap, the least of them on top. */
function kthLargest(logits: Float32Array, k: number): number {
  const heap = logits.slice(0, k).sort(); // ascending is a heap
  for (let token = k; token < logits.length; token += 1) {
    const logit = logits[token]!;
    if (!(logit > heap[0]!)) continue;
    let at = 0;
    for (;;) {
      let child = 2 * at + 1;
      if (child >= k) break;
      if (child + 1 < k && heap[child + 1]! < heap[child]!) child += 1;
      if (heap[child]! >= logit) break;
      heap[at] = heap[child]!;
      at = child;
    }
    heap[at] = logit;
  }
  return heap[0]!;
}
