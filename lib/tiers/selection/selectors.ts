// Selectors: which tokens of a stored text a layer gets when not all are loaded. Each is an object of one small
// interface; ours hold no privilege. A selector is called once for each layer of each sequence, and must not keep the
// arrays it is given.

import { integer, readOptions, withDefault } from '../../base/options.js';
import { mix32, Random } from '../../base/random.js';

/** What a selector is asked: `count` of `tokens` tokens of one layer. */
export interface LayerChoice {
  /** The layer's number in the whole model. */
  readonly layer: number;
  /** Tokens to choose from, 1 or more, in the order of the text. */
  readonly tokens: number;
  /** How many to choose, 1 … `tokens` − 1. */
  readonly count: number;
  /**
   * [head][token]: mean attention of the new tokens, of each head that the selector looks at; empty where it looks at
   * none.
   */
  readonly scores: readonly Float32Array[];
}

/**
 * Chooses the tokens that a layer gets. Its members are read once, when the promotion or request is made; `select` is
 * called on it.
 */
export interface TokenSelector {
  /** For reports. */
  readonly name: string;
  /**
   * What must be read before it can choose: `nothing`, the keys of the probe heads, which are stored apart
   * (`prefixCache.importance`), or all `keys` of the layer.
   */
  readonly looksAt: 'nothing' | 'probe-keys' | 'keys';
  /** The chosen tokens, ascending, none twice; undefined: all of them, since no choice can be trusted. */
  select(choice: LayerChoice): Int32Array | undefined;
}

/**
 * The tokens that the probe heads agree on; all tokens of a layer whose probe heads do not agree more than by chance
 * (IMPRESS, FAST'25). The default. Needs `prefixCache.importance`.
 */
export function probeHeads(): TokenSelector {
  return {
    name: 'probe-heads', looksAt: 'probe-keys',
    select: ({ tokens, count, scores }) => {
      const sets = scores.map((head) => topTokens(head, count));
      return areSimilar(sets, count, tokens) ? mostVoted(sets, scores, count) : undefined;
    },
  };
}

/** The tokens that all heads together look at most (H2O, NeurIPS'23): all keys of a layer are read for that. */
export function allHeads(): TokenSelector {
  return {
    name: 'all-heads', looksAt: 'keys',
    select: ({ tokens, count, scores }) => {
      const sums = new Float32Array(tokens);
      for (const head of scores) for (let token = 0; token < tokens; token += 1) sums[token]! += head[token]!;
      return topTokens(sums, count);
    },
  };
}

/** Options of `firstAndLast`. */
export interface FirstAndLastOptions {
  /** Tokens of the text's start, 0 or more; the rest of the selection is its end. Default 4. */
  readonly first?: number | undefined;
}

/**
 * The text's first tokens and its last ones: reads nothing to choose, and is hard to beat. Throws KV_UNKNOWN_OPTION,
 * KV_INVALID_OPTION.
 */
export function firstAndLast(options: FirstAndLastOptions = {}): TokenSelector {
  const { first } = readOptions('firstAndLast', options, { first: withDefault(integer(), 4) });
  return {
    name: 'first-and-last', looksAt: 'nothing',
    select: ({ tokens, count }) => Int32Array.from(
      { length: count }, (_, index) => (index < Math.min(first, count) ? index : tokens - count + index)),
  };
}

/** Options of `randomTokens`. */
export interface RandomTokensOptions {
  /** Of the random numbers, 0 … 2³² − 1: the same for the same seed and layer. Default 0. */
  readonly seed?: number | undefined;
}

/** Random tokens, to compare with: reads nothing to choose. Throws KV_UNKNOWN_OPTION, KV_INVALID_OPTION. */
export function randomTokens(options: RandomTokensOptions = {}): TokenSelector {
  const { seed } = readOptions('randomTokens', options, { seed: withDefault(integer({ max: 2 ** 32 - 1 }), 0) });
  return {
    name: 'random-tokens', looksAt: 'nothing',
    select: ({ layer, tokens, count }) => {
      const random = new Random(mix32(seed, layer));
      return topTokens(Float32Array.from({ length: tokens }, () => random.next()), count);
    },
  };
}

/**
 * The `count` tokens with the highest scores, ascending; ties go to the earlier token, so that a choice is the same
 * wherever it is made. NaN ranks lowest.
 */
export function topTokens(scores: Float32Array, count: number): Int32Array {
  if (count <= 0) return new Int32Array(0);
  if (count >= scores.length) return Int32Array.from(scores, (_, token) => token);
  const known = scores.map((score) => (Number.isNaN(score) ? -Infinity : score));
  const least = known.slice().sort()[known.length - count]!;
  let ties = count;
  for (const score of known) if (score > least) ties -= 1;
  const top = new Int32Array(count);
  let at = 0;
  for (let token = 0; token < known.length; token += 1) {
    if (known[token]! < least) continue;
    if (known[token] === least && ties-- <= 0) continue;
    top[at++] = token;
  }
  return top;
}

/**
 * The `count` tokens that most heads chose, ascending; of as many votes the one with the higher sum of scores, then the
 * earlier one.
 */
export function mostVoted(sets: readonly Int32Array[], scores: readonly Float32Array[], count: number): Int32Array {
  const votes = new Map<number, number>();
  for (const set of sets) for (const token of set) votes.set(token, (votes.get(token) ?? 0) + 1);
  const sumOf = (token: number): number => scores.reduce((sum, head) => sum + (head[token] ?? 0), 0);
  const candidates = [...votes].map(([token, count]) => ({ token, count, sum: sumOf(token) }));
  candidates.sort((a, b) => b.count - a.count || b.sum - a.sum || a.token - b.token);
  return Int32Array.from(candidates.slice(0, count), ({ token }) => token).sort();
}

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

// Attention scores: how much the queries of new tokens look at each token of a text, by the keys of some heads. Pure.
//
// Four queries at a time pass over a head's keys, which are copied together first: 2 to 3 times as fast as one query
// after the other, and each product is summed in the same order.

/** Shapes of `attentionScores`. */
export interface ScoreShapes {
  /** Rows of queries: new tokens. */
  readonly rows: number;
  readonly queryHeads: number;
  /** KV heads of the layer: query heads h · group … read KV head h. */
  readonly kvHeads: number;
  /** KV heads in `keys`: the layer's first ones. */
  readonly keyHeads: number;
  readonly dim: number;
  readonly tokens: number;
  /** Factor of the products. */
  readonly scale: number;
}

/** Queries that pass over the keys together. */
const together = 4;

/**
 * Of each KV head in `keys` ([token, key head, dim]) the mean over its query heads and all rows of `queries` ([row,
 * query head, dim]) of softmax(scale · q · K).
 */
export function attentionScores(queries: Float32Array, keys: Float32Array, shapes: ScoreShapes): Float32Array[] {
  const { rows, queryHeads, kvHeads, keyHeads, dim, tokens, scale } = shapes;
  const group = queryHeads / kvHeads;
  const count = rows * group;
  const own = new Float64Array(tokens * dim);
  const four = new Float64Array(together * dim);
  const products = Array.from({ length: together }, () => new Float64Array(tokens));
  return Array.from({ length: keyHeads }, (_, head) => {
    copyHead(keys, head * dim, keyHeads * dim, dim, own);
    const sums = new Float64Array(tokens);
    for (let first = 0; first < count; first += together) {
      const taken = Math.min(together, count - first);
      for (let query = 0; query < taken; query += 1) {
        const row = Math.floor((first + query) / group);
        const at = (row * queryHeads + head * group + ((first + query) % group)) * dim;
        for (let index = 0; index < dim; index += 1) four[query * dim + index] = queries[at + index]!;
      }
      multiplyFour(four, own, dim, scale, products);
      for (let query = 0; query < taken; query += 1) addSoftmax(sums, products[query]!);
    }
    return Float32Array.from(sums, (sum) => sum / count);
  });
}

/** own = one head's keys, [token, dim]. */
function copyHead(keys: Float32Array, start: number, stride: number, dim: number, own: Float64Array): void {
  for (let to = 0, from = start; to < own.length; from += stride) {
    for (let index = 0; index < dim; index += 1) own[to++] = keys[from + index]!;
  }
}

/** products[query][token] = scale · query · key. */
function multiplyFour(
  queries: Float64Array, keys: Float64Array, dim: number, scale: number, products: readonly Float64Array[],
): void {
  const [first, second, third, fourth] = products as [Float64Array, Float64Array, Float64Array, Float64Array];
  const [two, three] = [2 * dim, 3 * dim];
  for (let token = 0, at = 0; token < first.length; token += 1) {
    let a = 0;
    let b = 0;
    let c = 0;
    let d = 0;
    for (let index = 0; index < dim; index += 1, at += 1) {
      const key = keys[at]!;
      a += queries[index]! * key;
      b += queries[dim + index]! * key;
      c += queries[two + index]! * key;
      d += queries[three + index]! * key;
    }
    first[token] = a * scale;
    second[token] = b * scale;
    third[token] = c * scale;
    fourth[token] = d * scale;
  }
}

/** sums += softmax(products). */
function addSoftmax(sums: Float64Array, products: Float64Array): void {
  let most = -Infinity;
  for (let token = 0; token < sums.length; token += 1) if (products[token]! > most) most = products[token]!;
  let whole = 0;
  for (let token = 0; token < sums.length; token += 1) whole += products[token] = Math.exp(products[token]! - most);
  for (let token = 0; token < sums.length; token += 1) sums[token]! += products[token]! / whole;
}
