// SamplingBorders: which tokens a sampler may choose when sums are rounded as floats are. Each token that is left has a part of [0, 1), in the
// order of ids, and the random number lies in one. Native sampling adds float weights, so a part's border, and the end of a top-p
// nucleus, may be off by their rounding and by nothing else: a token whose part is farther away than that may not be chosen.
// Written apart from plain-sampling.ts, in double precision; finite logits only.

import type { SamplingRules } from '#internal/serving/plain-sampling.js';

interface Text {
  readonly tokens: Int32Array;
  readonly length: number;
  readonly promptTokens: number;
}

/** Half of a float's last bit, relative to the float. */
const rounding = 2 ** -24;
/** Roundings of a weight whatever its logit is: those of the power's polynomial, and of adding it to others: 64 in each of 16 sums at most, which do not all go one way. */
const fixedRoundings = 24;
/** Roundings of log2(weight), in which an error is one of the weight by a factor: the difference of logits, the factor, and their product. */
const powerRoundings = 3 * Math.LN2;

/** Logits behind bias and penalties, as floats. */
export function adjustedLogits(given: Float32Array, rules: SamplingRules, { tokens, length, promptTokens }: Text): Float32Array {
  const logits = given.slice();
  for (const [at, token] of rules.biasTokens.entries()) logits[token]! += rules.bias[at]!;
  const isPenalized = rules.repetitionPenalty !== 1 || rules.presencePenalty !== 0 || rules.frequencyPenalty !== 0;
  const text = [...tokens.subarray(0, length)];
  for (const token of isPenalized ? new Set(text) : []) {
    if (token < 0 || token >= logits.length) continue;
    const factor = Math.fround(rules.repetitionPenalty);
    logits[token] = logits[token]! > 0 ? logits[token]! / factor : logits[token]! * factor;
    const times = text.slice(promptTokens).filter((each) => each === token).length;
    if (times > 0) logits[token]! -= Math.fround(rules.presencePenalty + rules.frequencyPenalty * times);
  }
  return logits;
}

/** Tokens whose part has `uniform` in it, or within the rounding of its borders. */
export function tokensWithinRounding(given: Float32Array, rules: SamplingRules, uniform: number, text: Text): ReadonlySet<number> {
  const logits = adjustedLogits(given, rules, text);
  const largest = logits.reduce((most, logit) => Math.max(most, logit), -Infinity);
  if (rules.temperature === 0 || !Number.isFinite(largest)) return new Set([Math.max(0, logits.indexOf(largest))]);
  const log2s = Float64Array.from(logits, (logit) => (logit - largest) / rules.temperature * Math.LOG2E);
  const weights = log2s.map((log2) => 2 ** log2);
  const errors = weights.map((weight, token) => weight === 0 ? 0 : weight * rounding * (fixedRoundings + powerRoundings * Math.abs(log2s[token]!)));
  const sumOf = (numbers: Float64Array, tokens: readonly number[]): number => tokens.reduce((sum, token) => sum + numbers[token]!, 0);

  let left = [...logits.keys()];
  const isSorted = rules.topK < left.length || rules.topP < 1;
  if (isSorted) left.sort((a, b) => (logits[a] === logits[b] ? a - b : logits[b]! - logits[a]!));
  if (rules.topK < left.length) left = left.slice(0, rules.topK);
  const found = new Set<number>();
  for (const count of rules.topP < 1 ? nucleusSizes(left) : [left.length]) addNear(left.slice(0, count));
  return found;

  /** Sizes that a nucleus may have: 1 or more. */
  function nucleusSizes(sorted: readonly number[]): readonly number[] {
    const wanted = rules.topP * sumOf(weights, sorted);
    const error = sumOf(errors, sorted);
    const sizes: number[] = [];
    let above = 0;
    for (const [index, token] of sorted.entries()) {
      const next = above + weights[token]!;
      if ((index === 0 || above < wanted + error) && (next >= wanted - error || index === sorted.length - 1)) sizes.push(index + 1);
      if (index > 0 && above >= wanted + error) break;
      above = next;
    }
    return sizes;
  }

  function addNear(nucleus: readonly number[]): void {
    const least = rules.minP === 0 ? -Infinity : Math.min(largest, Math.fround(largest + rules.temperature * Math.log(rules.minP)));
    const parts = nucleus.filter((token) => logits[token]! >= least).sort((a, b) => a - b);
    const error = sumOf(errors, parts);
    const point = uniform * sumOf(weights, parts);
    let start = 0;
    for (const token of parts) {
      const end = start + weights[token]!;
      if (weights[token]! > 0 && point >= start - error && point < end + error) found.add(token);
      start = end;
    }
  }
}
