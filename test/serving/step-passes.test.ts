import test from 'ava';

import { planStep } from '#internal/serving/step-passes.js';

const plan = (remaining: readonly number[], budget: number): { passes: number[]; prefillTokens: number } => {
  const members = remaining.map((remainingPrefillTokens) => ({ remainingPrefillTokens, passTokens: -1 }));
  const prefillTokens = planStep(members, budget);
  return { passes: members.map(({ passTokens }) => passTokens), prefillTokens };
};

test('everybody who decodes gets a token, whatever the budget of prompts', (t) => {
  t.deepEqual(plan([0, 5, 0, 0], 3), { passes: [1, 3, 1, 1], prefillTokens: 3 });
});

test('prompts get the budget in order, the first as much as it can use', (t) => {
  t.deepEqual(plan([5, 4, 9, 2], 12), { passes: [5, 4, 3, 0], prefillTokens: 12 });
  t.deepEqual(plan([5, 4], 100), { passes: [5, 4], prefillTokens: 9 });
  t.deepEqual(plan([], 100), { passes: [], prefillTokens: 0 });
});
