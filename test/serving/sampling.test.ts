import test from 'ava';

import { greedy, randomSampler } from 'virtual-kv';
import { slow } from '../runner/slow.js';

const logits = Float32Array.from([0, 2, 1, 3, 3, -1, 0.5]);

/** How often each token comes, in so many draws. */
function shares(sampler: ReturnType<typeof randomSampler>, draws = 10_000): number[] {
  const counts = new Array<number>(logits.length).fill(0);
  for (let index = 0; index < draws; index += 1) counts[sampler(logits, index)]! += 1;
  return counts.map((count) => count / draws);
}

function probabilities(temperature: number, keep: (token: number) => boolean = () => true): number[] {
  const weights = [...logits].map((logit, token) => (keep(token) ? Math.exp(logit / temperature) : 0));
  const total = weights.reduce((sum, weight) => sum + weight);
  return weights.map((weight) => weight / total);
}

test('greedy takes the most likely token, of equals the first', (t) => {
  t.is(greedy(logits, 0), 3);
  t.is(greedy(Float32Array.of(-Infinity), 0), 0);
});

test('a random sampler depends on the logits, the seed and the index, and on nothing else', (t) => {
  const draws = (seed: number): number[] => Array.from({ length: 50 }, (_, index) => randomSampler({ seed })(logits, index));
  t.deepEqual(draws(1), draws(1));
  t.notDeepEqual(draws(1), draws(2));
  t.notDeepEqual(draws(1), draws(1 + 2 ** 40));
  const sampler = randomSampler({ seed: 1 });
  t.deepEqual(draws(1).toReversed(), Array.from({ length: 50 }, (_, index) => sampler(logits, 49 - index)));
});

for (const [title, options, expected] of [
  ['tokens come as often as their probability says', {}, probabilities(1)],
  ['a low temperature prefers the likely', { temperature: 0.5 }, probabilities(0.5)],
  ['topK keeps the most likely tokens', { topK: 3 }, probabilities(1, (token) => [1, 3, 4].includes(token))],
  ['of equal logits topK keeps the first', { topK: 1 }, probabilities(1, (token) => token === 3)],
  ['topP keeps the most likely tokens with that share', { topP: 0.85 }, probabilities(1, (token) => [1, 3, 4].includes(token))],
  ['topP 0 keeps the most likely token', { topP: 0 }, probabilities(1, (token) => token === 3)],
  ['topP counts among the tokens that topK keeps', { topK: 3, topP: 0.8 }, probabilities(1, (token) => [3, 4].includes(token))],
  ['a topK above the vocabulary keeps all tokens', { topK: 99, temperature: 2 }, probabilities(2)],
] as const) {
  test(title, (t) => {
    const drawn = shares(randomSampler({ seed: 7, ...options }));
    for (const [token, share] of drawn.entries()) {
      t.true(Math.abs(share - expected[token]!) < 0.015, `token ${token}: ${share}, not ${expected[token]}`);
    }
  });
}

slow('a large vocabulary')('topK and topP find the same tokens in a large vocabulary as sorting does', (t) => {
  const large = Float32Array.from({ length: 2_000 }, (_, token) => 6 * Math.sin(token * token));
  const sorted = [...large.keys()].sort((a, b) => large[b]! - large[a]!);
  const most = sorted.slice(0, 40);
  for (let index = 0; index < 300; index += 1) t.true(most.includes(randomSampler({ topK: 40 })(large, index)));
  const weights = sorted.map((token) => Math.exp(large[token]!));
  const total = weights.reduce((sum, weight) => sum + weight);
  let mass = 0;
  const nucleus = sorted.filter((_, at) => (mass += weights[at]!) - weights[at]! < 0.3 * total);
  const drawn = new Set(Array.from({ length: 5_000 }, (_, index) => randomSampler({ topP: 0.3 })(large, index)));
  t.true([...drawn].every((token) => nucleus.includes(token)));
  t.true(drawn.size > 0.9 * nucleus.length);
});
