// Plain sampling: chooses one token in the most obvious way, in double precision: what a sampler does that is called directly, and the
// reference of the native one, which the schedulers use (kernels/sampling). And says how likely the model held a token and its rivals, by
// the logits as the engine gave them. Pure functions.

import { lengthOf } from '../base/typed-arrays.js';
import type { SampledText } from './sampled-text.js';

/** The checked options of a sampler, but for its seed. */
export interface SamplingRules {
  /** 0: the most likely token. */
  readonly temperature: number;
  /** Infinity: all. */
  readonly topK: number;
  readonly topP: number;
  readonly minP: number;
  readonly repetitionPenalty: number;
  readonly presencePenalty: number;
  readonly frequencyPenalty: number;
  readonly biasTokens: Int32Array;
  /** [bias token] */
  readonly bias: Float32Array;
}

export const hasPenalties = ({ repetitionPenalty, presencePenalty, frequencyPenalty }: SamplingRules): boolean =>
  repetitionPenalty !== 1 || presencePenalty !== 0 || frequencyPenalty !== 0;

/** The most likely token, of equals the first; the first that is NaN where one is; 0 where all are -Infinity. */
export function mostLikely(logits: Float32Array): number {
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
}

/** The token in whose part of [0, 1) `uniform` lies, by token id, of those that are left. */
export function draw(given: Float32Array, rules: SamplingRules, uniform: number, text?: SampledText): number {
  const logits = adjusted(given, rules, text);
  const likeliest = mostLikely(logits);
  const largest = logits[likeliest]!;
  const { temperature } = rules;
  if (temperature === 0 || !Number.isFinite(largest)) return likeliest; // no probabilities follow from it
  const weightOf = (token: number): number => Math.exp((logits[token]! - largest) / temperature);
  const left = remaining(logits, rules, largest, weightOf);
  let total = 0;
  for (const token of left) total += weightOf(token);
  let share = uniform * total;
  for (const token of left) {
    share -= weightOf(token);
    if (share < 0) return token;
  }
  return likeliest; // rounding only
}

/** The logits with bias and penalties; `given` where there are none. */
function adjusted(given: Float32Array, rules: SamplingRules, text: SampledText | undefined): Float32Array {
  const { biasTokens, bias, repetitionPenalty, presencePenalty, frequencyPenalty } = rules;
  const isPenalized = hasPenalties(rules) && text !== undefined;
  if (biasTokens.length === 0 && !isPenalized) return given;
  const logits = given.slice();
  biasTokens.forEach((token, at) => { logits[token] = bias[at] === -Infinity ? -Infinity : logits[token]! + bias[at]!; });
  if (!isPenalized) return logits;
  const counts = new Map<number, number>();
  for (let at = 0; at < text.length; at += 1) {
    const token = text.tokens[at]!;
    if (token >= 0 && token < logits.length) counts.set(token, (counts.get(token) ?? 0) + (at < text.promptTokens ? 0 : 1));
  }
  const factor = Math.fround(repetitionPenalty);
  for (const [token, count] of counts) {
    const logit = logits[token]!;
    logits[token] = logit > 0 ? logit / factor : logit * factor;
    if (count > 0) logits[token]! -= Math.fround(presencePenalty + frequencyPenalty * count);
  }
  return logits;
}

/** The tokens among which one is drawn, by id. */
function remaining(
  logits: Float32Array, { temperature, topK, topP, minP }: SamplingRules, largest: number, weightOf: (token: number) => number,
): readonly number[] {
  let tokens: number[] | undefined;
  if (topK < logits.length || topP < 1) {
    let least = -Infinity;
    if (topK >= logits.length) {
      let total = 0;
      for (let token = 0; token < logits.length; token += 1) total += weightOf(token);
      // All tokens below this have less than 1 - topP together: leaving them out leaves the others' share whole.
      least = largest + temperature * Math.log((1 - topP) / (2 * logits.length) * total);
    }
    tokens = [...logits.keys()].filter((token) => logits[token]! >= least).sort((a, b) => logits[b]! - logits[a]! || a - b);
    if (tokens.length > topK) tokens.length = topK;
    if (topP < 1) {
      let total = 0;
      if (topK < logits.length) for (const token of tokens) total += weightOf(token);
      else for (let token = 0; token < logits.length; token += 1) total += weightOf(token);
      let share = 0;
      let count = 0;
      while (count < tokens.length && (count === 0 || share < topP * total)) share += weightOf(tokens[count++]!);
      tokens.length = count;
    }
    tokens.sort((a, b) => a - b);
  }
  const left = tokens ?? [...logits.keys()];
  if (minP === 0) return left;
  const least = Math.min(largest, Math.fround(largest + temperature * Math.log(minP)));
  return left.filter((token) => logits[token]! >= least);
}

/** A token that might have come. */
export interface LikelyToken {
  /** Its id. */
  readonly token: number;
  /** Natural logarithm of its probability, at most 0; -Infinity: impossible. */
  readonly logProbability: number;
}

/** Of a token of an answer: how likely it was by the logits as the engine gave them, before bias, penalties, temperature and limits. */
export interface TokenLogProbability extends LikelyToken {
  /** The most likely tokens, the likeliest first, of equals the smaller id: as many as the request asks for. */
  readonly best: readonly LikelyToken[];
}

/** Of `token`, and of the `best` most likely tokens. Pre: no logit is NaN. */
export function logProbabilityOf(logits: Float32Array, token: number, best: number): TokenLogProbability {
  const length = lengthOf(logits); // not `logits.length`, which may be overwritten
  let largest = -Infinity;
  for (let at = 0; at < length; at += 1) largest = Math.max(largest, logits[at]!);
  let sum = 0;
  for (let at = 0; at < length; at += 1) sum += Math.exp(logits[at]! - largest);
  const logTotal = Number.isFinite(largest) ? largest + Math.log(sum) : largest;
  const of = (each: number): LikelyToken => ({ token: each, logProbability: logits[each] === logTotal ? 0 : logits[each]! - logTotal });
  const order = best === 0 ? [] : [...logits.keys()].sort((a, b) => (logits[a] === logits[b] ? a - b : logits[b]! - logits[a]!));
  return { ...of(token), best: order.slice(0, best).map(of) };
}
