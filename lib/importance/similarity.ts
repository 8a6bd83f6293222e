// Similarity of heads: whether the tokens that some heads of a layer find important are alike enough that the other
// heads may be expected to want the same ones (IMPRESS, FAST'25). Sets of tokens are ascending arrays. Pure.

/** Exponent of the threshold: empirical. */
const alpha = 0.6;

/** How many of `tokens` tokens are selected at a ratio: at least one, where there is one. */
export function countAt(ratio: number, tokens: number): number {
  // What a product is off by must not make one more: 0.07 · 100 is 7.000000000000001.
  return tokens === 0 ? 0 : Math.min(tokens, Math.max(1, Math.ceil(tokens * ratio - 1e-9)));
}

/**
 * Jaccard index to be expected of two random sets of `count` of `tokens` tokens. Of no tokens 1: there is only one such
 * set.
 */
export function randomSimilarity(count: number, tokens: number): number {
  if (tokens === 0) return 1;
  const share = count / tokens;
  return share / (2 - share);
}

/**
 * The least mean Jaccard index of heads that are trusted: more than random sets have, where fewer than all tokens are
 * selected.
 */
export function similarityThreshold(count: number, tokens: number): number {
  return randomSimilarity(count, tokens) ** alpha;
}

/** |A ∩ B| / |A ∪ B|; of two empty sets 1. */
export function jaccard(a: Int32Array, b: Int32Array): number {
  let [at, other, common] = [0, 0, 0];
  while (at < a.length && other < b.length) {
    const difference = a[at]! - b[other]!;
    if (difference === 0) common += 1;
    if (difference <= 0) at += 1;
    if (difference >= 0) other += 1;
  }
  const all = a.length + b.length - common;
  return all === 0 ? 1 : common / all;
}

/** Mean Jaccard index of all pairs; of a single set 1. */
export function meanSimilarity(sets: readonly Int32Array[]): number {
  let [sum, pairs] = [0, 0];
  for (let index = 0; index < sets.length; index += 1) {
    for (let other = 0; other < index; other += 1) {
      sum += jaccard(sets[index]!, sets[other]!);
      pairs += 1;
    }
  }
  return pairs === 0 ? 1 : sum / pairs;
}

/** Whether heads that chose these sets, each of `count` of `tokens` tokens, are trusted to speak for all heads. */
export function areSimilar(sets: readonly Int32Array[], count: number, tokens: number): boolean {
  return count >= tokens || meanSimilarity(sets) >= similarityThreshold(count, tokens);
}
