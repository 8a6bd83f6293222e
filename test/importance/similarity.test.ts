// The numbers of the similarity test, by hand: the expected overlap of random sets, the threshold, where it falls between two overlaps, and
// what is selected.

import test from 'ava';

import { allHeads, firstAndLast, probeHeads, randomTokens, type TokenSelector } from 'virtual-kv';

import { Random } from '#internal/base/random.js';
import {
  areSimilar, countAt, jaccard, meanSimilarity, mostVoted, randomSimilarity, similarityThreshold, topTokens,
} from '#internal/tiers/selection/selectors.js';
import { seedOf } from '../helpers/seed.js';

const near = (actual: number, expected: number): boolean => Math.abs(actual - expected) < 5e-7;

/** Two sets of `count` tokens, of which `overlap` are the same. */
function pairOf(count: number, overlap: number): Int32Array[] {
  return [0, count - overlap].map((from) => Int32Array.from({ length: count }, (_, index) => from + index));
}

/** Scores whose highest ones are these tokens'. */
function scoresOf(tokens: number, high: readonly number[]): Float32Array {
  return Float32Array.from({ length: tokens }, (_, token) => (high.includes(token) ? 1 : 0.1));
}

function select(selector: TokenSelector, tokens: number, count: number, scores: readonly Float32Array[], layer = 0): number[] | undefined {
  const selected = selector.select({ layer, tokens, count, scores });
  return selected && [...selected];
}

test('random sets of a tenth, a fifth and half of the tokens are as similar as they are', (t) => {
  for (const [share, similarity, threshold] of [[0.1, 0.0526316, 0.170902], [0.2, 0.1111111, 0.267581], [0.5, 0.3333333, 0.517282], [1, 1, 1]] as const) {
    t.true(near(randomSimilarity(1000 * share, 1000), similarity), `${share}`);
    t.true(near(similarityThreshold(1000 * share, 1000), threshold), `${share}`);
  }
  t.is(randomSimilarity(0, 10), 0);
  t.is(randomSimilarity(0, 0), 1);
  t.is(similarityThreshold(0, 10), 0);
  t.true(areSimilar(pairOf(10, 10), 10, 10), 'all tokens are always selected');
  t.true(areSimilar([], 0, 0));
});

test('of 1,000 tokens the overlap that is trusted is 30 of 100, 85 of 200, 341 of 500, and not one less', (t) => {
  for (const [count, least] of [[50, 10], [100, 30], [200, 85], [250, 119], [500, 341]] as const) {
    t.true(areSimilar(pairOf(count, least), count, 1000), `${count}`);
    t.false(areSimilar(pairOf(count, least - 1), count, 1000), `${count}`);
  }
});

test('heads that are exactly as similar as the threshold are trusted', (t) => {
  const sets = pairOf(18, 4);
  t.is(meanSimilarity(sets), 0.125);
  t.is(similarityThreshold(18, 297), 0.125, 'to the bit: (1 / 32) ** 0.6');
  t.true(areSimilar(sets, 18, 297));
});

test('the similarity of heads is the mean over their pairs', (t) => {
  const sets = [[0, 1], [0, 1], [0, 2]].map((set) => Int32Array.from(set));
  t.true(near(meanSimilarity(sets), 5 / 9));
  t.is(jaccard(new Int32Array(0), new Int32Array(0)), 1);
  t.is(meanSimilarity([Int32Array.of(3)]), 1, 'of a single head');
});

test('a ratio selects at least one token, at most all, and no more than it says', (t) => {
  for (const [ratio, tokens, count] of [[0.1, 1000, 100], [0.07, 100, 7], [0.001, 10, 1], [1, 10, 10], [0.5, 0, 0], [0.34, 3, 2], [0.05, 1, 1]] as const) {
    t.is(countAt(ratio, tokens), count, `${ratio} of ${tokens}`);
  }
});

test('probe heads that agree select what most of them chose; those that do not select all', (t) => {
  const agreeing = [[0, 1], [0, 1], [0, 2]].map((high) => scoresOf(10, high));
  t.deepEqual(select(probeHeads(), 10, 2, agreeing), [0, 1]);
  t.is(select(probeHeads(), 10, 2, [[0, 1], [2, 3], [4, 5]].map((high) => scoresOf(10, high))), undefined);
});

test('of as many votes the higher score wins, and of equal scores the earlier token', (t) => {
  const sets = [Int32Array.of(1, 4), Int32Array.of(2, 4)];
  const flat = new Float32Array(6).fill(0.5);
  t.deepEqual([...mostVoted(sets, [flat, flat], 2)], [1, 4]);
  const higher = flat.slice();
  higher[2] = 0.75;
  t.deepEqual([...mostVoted(sets, [flat, higher], 2)], [2, 4]);
  t.deepEqual([...topTokens(flat, 3)], [0, 1, 2]);
  t.deepEqual([...topTokens(Float32Array.of(Number.NaN, 1, 2), 2)], [1, 2], 'what is no number is lowest');
  t.deepEqual([...topTokens(flat, 0)], []);
  t.deepEqual([...topTokens(flat, 9)], [0, 1, 2, 3, 4, 5]);
});

test('selectors that look at nothing choose by position or by chance', (t) => {
  t.deepEqual(select(firstAndLast(), 10, 6, []), [0, 1, 2, 3, 8, 9]);
  t.deepEqual(select(firstAndLast({ first: 1 }), 10, 3, []), [0, 8, 9]);
  t.deepEqual(select(firstAndLast(), 10, 2, []), [0, 1]);
  const random = randomTokens({ seed: 5 });
  t.deepEqual(select(random, 100, 10, [], 1), select(random, 100, 10, [], 1));
  t.notDeepEqual(select(random, 100, 10, [], 1), select(random, 100, 10, [], 2));
  t.deepEqual(select(allHeads(), 4, 2, [Float32Array.of(0.9, 0, 0.1, 0), Float32Array.of(0, 0.2, 0.5, 0.3)]), [0, 2]);
  t.throws(() => firstAndLast({ first: -1 }), { code: 'KV_INVALID_OPTION' });
  t.throws(() => randomTokens({ seed: 0.5 }), { code: 'KV_INVALID_OPTION' });
});

const seed = seedOf('top tokens');

test(`top tokens are those of a full sort (seed ${seed})`, (t) => {
  const random = new Random(seed);
  for (let round = 0; round < 200; round += 1) {
    const tokens = 1 + random.integer(60);
    const scores = Float32Array.from({ length: tokens }, () => random.integer(8) / 8); // many ties
    const count = random.integer(tokens + 1);
    const sorted = [...scores.keys()].sort((a, b) => scores[b]! - scores[a]! || a - b).slice(0, count).sort((a, b) => a - b);
    t.deepEqual([...topTokens(scores, count)], sorted);
  }
});
