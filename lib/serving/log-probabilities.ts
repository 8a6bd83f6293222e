// Log-probabilities: how likely the model held a token and its rivals, by the logits as the engine gave them, before a sampler's
// options. The plain sums here are the reference of the native ones, and serve samplers that native code cannot take over.

import { lengthOf } from '../base/typed-arrays.js';

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
