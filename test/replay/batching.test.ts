import test from 'ava';

import { createError } from '#internal/base/errors.js';
import { Batching } from '#internal/replay/batching.js';
import type { TraceRequest } from '#internal/replay/trace-request.js';
import { Verification } from '#internal/replay/verification.js';
import { Random } from '#internal/base/random.js';
import { FakeCache, type Sharing } from './fake-cache.js';

function setUp({ slots = 4, budgetTokens = 1_000, prefillTokensPerStep = 100, sharing = 'off' as Sharing } = {}): {
  cache: FakeCache; batching: Batching; verification: Verification; enqueue: (...lengths: [number, number][]) => void;
} {
  const cache = new FakeCache({ slots, budgetTokens, sharing });
  const verification = new Verification({ cache, mode: 'full', seed: 1, layout: { pageBytes: 64, maxTokenBytes: 1 } });
  const batching = new Batching({ cache, verification, maxBatch: slots, prefillTokensPerStep, sharesPrefixes: sharing !== 'off' });
  let line = 0;
  const enqueue = (...lengths: [number, number][]): void => {
    for (const [promptTokens, outputTokens] of lengths) batching.enqueue({ line: ++line, arrivalMs: 0, promptTokens, outputTokens });
  };
  return { cache, batching, verification, enqueue };
}

function runToEnd(batching: Batching, atMost = 1_000): void {
  for (let steps = 0; !batching.isIdle; ++steps) {
    if (steps === atMost) throw new Error('it does not end');
    step(batching);
  }
}

function step(batching: Batching): void {
  batching.step();
  batching.releaseDone();
}

test("the pass of the last prompt token gives the answer's first token", (t) => {
  const { cache, batching, enqueue } = setUp();
  enqueue([10, 3]);
  runToEnd(batching);
  t.deepEqual(cache.log, ['acquire 0 (10)', 'pass 0+10', 'pass 0+1', 'pass 0+1', 'release 0']);
  t.like(batching.totals, { steps: 3, completedRequests: 1, promptTokens: 10, generatedTokens: 3, preemptions: 0 });
});

test('a request for no token at all is over after its prefill', (t) => {
  const { cache, batching, enqueue } = setUp();
  enqueue([10, 0], [10, 1]);
  runToEnd(batching);
  t.deepEqual(cache.log, ['acquire 0 (10)', 'acquire 1 (10)', 'pass 0+10 1+10', 'release 0', 'release 1']);
  t.like(batching.totals, { completedRequests: 2, promptTokens: 20, generatedTokens: 1 });
});

test('prompts are computed in chunks, decoding first, admission as far as the step has prefill tokens', (t) => {
  const { cache, batching, enqueue } = setUp({ prefillTokensPerStep: 64 });
  enqueue([100, 3], [40, 2], [10, 1]);
  runToEnd(batching);
  t.deepEqual(cache.log, [
    'acquire 0 (100)', 'pass 0+64',
    'acquire 1 (40)', 'pass 0+36 1+28',
    'acquire 2 (10)', 'pass 0+1 1+12 2+10', 'release 2',
    'pass 0+1 1+1', 'release 0', 'release 1',
  ]);
});

test('a request waits for a slot, and keeps those behind it waiting', (t) => {
  const { cache, batching, enqueue } = setUp({ slots: 2 });
  enqueue([10, 2], [10, 3], [10, 1], [10, 1]);
  runToEnd(batching);
  t.deepEqual(cache.log, [
    'acquire 0 (10)', 'acquire 1 (10)', 'pass 0+10 1+10', 'pass 0+1 1+1', 'release 0',
    'acquire 0 (10)', 'pass 1+1 0+10', 'release 1', 'release 0',
    'acquire 0 (10)', 'pass 0+10', 'release 0',
  ]);
});

test('a refused admission is not tried again before a sequence has finished', (t) => {
  const { cache, batching, enqueue } = setUp({ budgetTokens: 100 });
  enqueue([50, 5], [60, 1], [10, 1]);
  runToEnd(batching);
  t.deepEqual(cache.log.filter((line) => line.startsWith('refuse')), ['refuse (60)']);
  t.is(cache.log.indexOf('acquire 0 (60)'), cache.log.indexOf('release 0') + 1, 'in order of arrival');
  t.is(batching.totals.completedRequests, 3);
});

test('when decoding runs out of memory the latest admitted gives way, and computes its answer so far again', (t) => {
  const { cache, batching, verification, enqueue } = setUp({ budgetTokens: 26 });
  enqueue([10, 8], [10, 8]);
  runToEnd(batching);
  t.deepEqual(cache.log, [
    'acquire 0 (10)', 'acquire 1 (10)', 'pass 0+10 1+10', 'pass 0+1 1+1', 'pass 0+1 1+1', 'pass 0+1 1+1',
    'release 1', 'pass 0+1', 'pass 0+1', 'pass 0+1', 'pass 0+1', 'release 0',
    'acquire 0 (14)', 'pass 0+14', 'pass 0+1', 'pass 0+1', 'pass 0+1', 'release 0',
  ]);
  t.like(batching.totals, {
    completedRequests: 2, promptTokens: 20, generatedTokens: 16, preemptions: 1, recomputedTokens: 13, steps: 12,
  });
  t.is(verification.mismatches, 0);
  t.is(verification.verifiedTokens, 13 + 17 + 17, 'a preempted sequence is verified too');
});

test('the preempted come back before those who never ran', (t) => {
  const { cache, batching, enqueue } = setUp({ budgetTokens: 44, slots: 3 });
  enqueue([10, 12], [10, 6], [20, 4], [5, 1]);
  runToEnd(batching);
  const admitted = cache.log.filter((line) => line.startsWith('acquire')).map((line) => Number(/\((\d+)\)/.exec(line)![1]));
  t.deepEqual(admitted, [10, 10, 20, 22, 5], 'the third, with its two tokens so far, before the fourth');
  t.is(batching.totals.completedRequests, 4);
});

test('what recovery says decides: retry is tried again, anything else is thrown', (t) => {
  const failed = createError('KV_DRIVER_CALL_FAILED', { call: 'cuMemMap', status: 999, statusName: 'CUDA_ERROR_UNKNOWN' });
  const { cache, batching, enqueue } = setUp();
  enqueue([10, 2]);
  cache.prepareErrors.push(failed, failed);
  batching.step();
  t.is(batching.totals.steps, 1);
  cache.prepareErrors.push(failed, failed, failed);
  t.is(t.throws(() => batching.step()), failed);
  const lost = createError('KV_DRIVER_LOST', { driver: 'mock', call: 'cuMemMap', status: 700, statusName: 'CUDA_ERROR_ILLEGAL_ADDRESS' });
  cache.prepareErrors.push(lost);
  t.is(t.throws(() => batching.step()), lost);
});

test('with nobody to wait for, or to preempt, a refusal is thrown', (t) => {
  const { batching, enqueue } = setUp({ budgetTokens: 50 });
  enqueue([60, 1]);
  t.is(t.throws(() => batching.step(), { name: 'KvCapacityError' })?.message.includes('page'), true);
  const other = setUp({ budgetTokens: 12 });
  other.enqueue([10, 9]);
  t.throws(() => runToEnd(other.batching), { name: 'KvCapacityError' });
});

test('what the cache has of a prompt is not computed', (t) => {
  const { cache, batching, enqueue } = setUp({ prefillTokensPerStep: 64 });
  cache.cachedTokens = 96;
  enqueue([100, 2]);
  runToEnd(batching);
  t.deepEqual(cache.log, ['acquire 0 (100)', 'pass 0+4', 'pass 0+1', 'release 0']);
  t.like(batching.totals, { promptTokens: 100, cachedTokens: 96 });
});

test('tokens are counted while they are valid, and in blocks as a paged cache would hold them', (t) => {
  const { batching, enqueue } = setUp({ prefillTokensPerStep: 64 });
  enqueue([20, 2], [70, 1]);
  batching.step();
  t.deepEqual([batching.usedTokens, batching.pagedTokens], [64, 32 + 48]);
  batching.step();
  t.deepEqual([batching.usedTokens, batching.pagedTokens], [21 + 70, 32 + 80], 'those that are done count until they are released');
  batching.releaseDone();
  t.deepEqual([batching.usedTokens, batching.pagedTokens], [0, 0]);
  t.true(batching.isIdle);
});

test('stop() verifies and releases what runs', (t) => {
  const { cache, batching, verification, enqueue } = setUp({ slots: 2 });
  enqueue([10, 5], [10, 5], [10, 5]);
  batching.step();
  batching.stop();
  t.true(batching.isIdle);
  t.is(cache.running.size, 0);
  t.deepEqual([verification.verifiedTokens, batching.totals.completedRequests], [20, 0]);
});

test('a random load ends with every request served once and every token right', (t) => {
  const { cache, batching, verification, enqueue } = setUp({ slots: 5, budgetTokens: 300, prefillTokensPerStep: 48 });
  let state = 1;
  const random = (below: number): number => (state = (state * 48_271) % 2_147_483_647) % below;
  const lengths = Array.from({ length: 400 }, (): [number, number] => [1 + random(200), random(100)]);
  enqueue(...lengths);
  runToEnd(batching, 100_000);
  const sum = (at: 0 | 1): number => lengths.reduce((total, pair) => total + pair[at], 0);
  t.like(batching.totals, { completedRequests: 400, promptTokens: sum(0), generatedTokens: sum(1) });
  t.true(batching.totals.preemptions > 0, 'the load is meant to preempt');
  t.deepEqual([verification.mismatches, cache.running.size, cache.freeTokens, batching.usedTokens], [0, 0, 300, 0]);
});

const saying = (promptTokens: number, outputTokens: number, ...ids: number[]): TraceRequest =>
  ({ line: 1, arrivalMs: 0, promptTokens, outputTokens, hashIds: Int32Array.from(ids) });

test('a cache that is told what requests say shares what they have in common, and every token is verified', (t) => {
  const { cache, batching, verification } = setUp({ slots: 1, budgetTokens: 4_000, prefillTokensPerStep: 2_000, sharing: 'right' });
  for (const request of [saying(1_024, 3, 1, 2), saying(1_500, 1, 1, 2, 3), saying(1_500, 1, 1, 4, 3), saying(1_500, 0, 1, 2, 3)]) {
    batching.enqueue(request);
  }
  runToEnd(batching);
  const passes = cache.log.filter((line) => line.startsWith('pass'));
  t.deepEqual(passes, ['pass 0+1024', 'pass 0+1', 'pass 0+1', 'pass 0+476', 'pass 0+988', 'pass 0+1']);
  t.like(batching.totals, { promptTokens: 5_524, cachedTokens: 1_024 + 512 + 1_499, aliasedTokens: 3_035, adoptedTokens: 0, copiedTokens: 0 });
  t.deepEqual([verification.mismatches, verification.verifiedTokens], [0, 1_026 + 3 * 1_500]);
});

test('answers, and prompts without ids, are like no other', (t) => {
  const { batching } = setUp({ slots: 1, budgetTokens: 4_000, prefillTokensPerStep: 2_000, sharing: 'right' });
  const alike = [saying(700, 1, 1), saying(700, 1, 1), saying(700, 1), saying(700, 1)];
  for (const request of [saying(700, 400, 1, 2), saying(1_024, 1, 1, 2), ...alike]) batching.enqueue(request);
  runToEnd(batching);
  t.is(batching.totals.cachedTokens, 700 + 512 + 512, 'the second finds the prompt of the first, and nothing of its answer');
});

test('rows of another text are noticed', (t) => {
  const { batching, verification } = setUp({ slots: 1, budgetTokens: 4_000, prefillTokensPerStep: 2_000, sharing: 'wrong' });
  for (const request of [saying(1_024, 1, 1, 2), saying(1_024, 1, 1, 3)]) batching.enqueue(request);
  runToEnd(batching);
  t.is(verification.mismatches, 1_023 - 512);
});

test('who gave way finds its own tokens again, prompt and answer', (t) => {
  const { cache, batching, verification } = setUp({ budgetTokens: 26, sharing: 'right' });
  for (const id of [1, 2]) batching.enqueue(saying(10, 8, id));
  runToEnd(batching);
  t.is(cache.log.filter((line) => line.startsWith('pass')).at(-4), 'pass 0+1', 'the one token that was not computed');
  t.like(batching.totals, {
    completedRequests: 2, promptTokens: 20, generatedTokens: 16, preemptions: 1, recomputedTokens: 0, recoveredTokens: 13,
    cachedTokens: 0, steps: 12,
  });
  t.is(verification.mismatches, 0);
});

test('a random load with shared prefixes ends with every token right', (t) => {
  const { cache, batching, verification } = setUp({ slots: 5, budgetTokens: 4_000, prefillTokensPerStep: 700, sharing: 'right' });
  const random = new Random(7);
  for (let line = 0; line < 200; ++line) {
    const promptTokens = 1 + random.integer(2_000);
    const ids = Array.from({ length: Math.ceil(promptTokens / 512) }, (_, block) => 10 * block + random.integer(2));
    batching.enqueue(saying(promptTokens, random.integer(600), ...ids));
  }
  runToEnd(batching, 100_000);
  const { completedRequests, preemptions, cachedTokens, recoveredTokens, promptTokens } = batching.totals;
  t.true(preemptions > 0 && recoveredTokens > 0 && cachedTokens > 0.2 * promptTokens, 'the load is meant to do all that');
  t.deepEqual([completedRequests, verification.mismatches, cache.running.size, batching.usedTokens], [200, 0, 0, 0]);
});
