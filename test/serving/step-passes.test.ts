import test from 'ava';

import { planStep } from '#internal/serving/step-passes.js';

interface Prompt {
  readonly remaining: number;
  readonly urgency?: number;
  /** Of an indivisible item, from its next token on. */
  readonly item?: readonly [from: number, to: number];
}

function plan(prompts: readonly (number | Prompt)[], tokens: number, shortTokens = 0, promptTokens = Infinity): { passes: number[]; prefillTokens: number } {
  const members = prompts.map((prompt) => {
    const { remaining, urgency = 0, item: [from, to] = [0, 0] }: Prompt = typeof prompt === 'number' ? { remaining: prompt } : prompt;
    return {
      remainingPrefillTokens: remaining, urgency, passTokens: -1, leastTokens: from === 0 && to > 0 ? to : 1,
      wholeTokens: (count: number) => (count > from && count < to ? from : count),
    };
  });
  const prefillTokens = planStep(members, { tokens, shortTokens, promptTokens });
  return { passes: members.map(({ passTokens }) => passTokens), prefillTokens };
}

test('every decoding sequence gets a token, whatever the budget of prompts', (t) => {
  t.deepEqual(plan([0, 5, 0, 0], 3), { passes: [1, 3, 1, 1], prefillTokens: 3 });
});

test('prompts get the budget in order, each as much as it can use', (t) => {
  t.deepEqual(plan([5, 4, 9, 2], 12), { passes: [5, 4, 3, 0], prefillTokens: 12 });
  t.deepEqual(plan([5, 4], 100), { passes: [5, 4], prefillTokens: 9 });
  t.deepEqual(plan([], 100), { passes: [], prefillTokens: 0 });
});

test('no prompt gets more of a step than layers with a window hold at once, and the rest goes to others', (t) => {
  t.deepEqual(plan([90, 80, 2], 12, 0, 5), { passes: [5, 5, 2], prefillTokens: 12 });
  t.deepEqual(plan([90, 80], 12, 4, 3), { passes: [3, 3], prefillTokens: 6 });
  t.deepEqual(plan([{ remaining: 9, item: [0, 7] }], 12, 0, 3), { passes: [7], prefillTokens: 7 });
});

test('a part of the budget goes to the shortest prompts first, and the first in order always goes on', (t) => {
  t.deepEqual(plan([90, 80, 2, 0], 12, 4), { passes: [8, 2, 2, 1], prefillTokens: 12 });
  t.deepEqual(plan([90, 3, 3, 3], 12, 4), { passes: [8, 3, 1, 0], prefillTokens: 12 });
  t.deepEqual(plan([90], 12, 4), { passes: [12], prefillTokens: 12 });
  t.deepEqual(plan([3, 90], 12, 4), { passes: [3, 9], prefillTokens: 12 });
});

test('a short prompt that is less urgent than the first has no part of its own', (t) => {
  t.deepEqual(plan([{ remaining: 90, urgency: 1 }, 2, { remaining: 3, urgency: 2 }], 12, 4), { passes: [9, 0, 3], prefillTokens: 12 });
});

test('no plan ends inside an indivisible item; one that is larger than a step is computed alone', (t) => {
  t.deepEqual(plan([90, { remaining: 50, item: [2, 30] }, 9], 100), { passes: [90, 2, 8], prefillTokens: 100 });
  t.deepEqual(plan([{ remaining: 90, item: [3, 15] }, 9], 12), { passes: [3, 9], prefillTokens: 12 });
  t.deepEqual(plan([{ remaining: 90, item: [0, 15] }, 9], 12), { passes: [15, 0], prefillTokens: 15 });
  t.deepEqual(plan([9, { remaining: 90, item: [0, 15] }], 12), { passes: [9, 0], prefillTokens: 9 });
  t.deepEqual(plan([{ remaining: 90, item: [0, 11] }, 3], 12, 4), { passes: [12, 0], prefillTokens: 12 });
});
