// What a replay makes of the requests of a trace: what it asks the cache for, what it counts, and that it verifies every token. How
// the batching loop admits and preempts is the subject of test/serving.

import type { ExecutionContext } from 'ava';

import type { KvCache } from 'virtual-kv';

import { Random } from '#internal/base/random.js';
import { ReplayScheduler } from '#internal/replay/replay-scheduler.js';
import type { TraceRequest } from '#internal/replay/trace-request.js';
import { Verification } from '#internal/replay/verification.js';
import { cacheTests, type BenchOptions } from '../helpers/cache.js';
import { seedOf } from '../helpers/seed.js';

/** 4 KiB per token and tensor: a row of 64 KiB pages holds 16 tokens. */
const model = { layers: 1, kvHeads: 8, headDim: 256, dtype: 'float16' } as const;

interface ReplayBench {
  readonly t: ExecutionContext;
  readonly cache: KvCache;
  readonly scheduler: ReplayScheduler;
  readonly verification: Verification;
  /** One line per event: `acquire (10)`, `pass 0+10 1+1`, `end 0`. */
  readonly log: string[];
  /** Queues requests of so many prompt and output tokens. */
  readonly enqueue: (...lengths: readonly (readonly [number, number])[]) => void;
  readonly runToEnd: (maxSteps?: number) => Promise<void>;
}

function replayTests(
  title: string, options: BenchOptions & { readonly prefillTokensPerStep?: number }, body: (bench: ReplayBench) => Promise<void>,
): void {
  const { prefillTokensPerStep = 100, ...cacheOptions } = options;
  const benchOptions = { model, maxTokens: 2_048, slots: 4, rows: 64, prefixCache: 'off', mapper: 'off', ...cacheOptions } as const;
  cacheTests(title, benchOptions, async (t, { cache }) => {
    const log: string[] = [];
    const verification = watched(new Verification({ cache, mode: 'full', seed: 1, layout: cache.layout }), log);
    const acquire = cache.acquire.bind(cache);
    cache.acquire = (acquired = {}) => {
      log.push(`acquire (${Array.from(acquired.tokens!).length})`);
      return acquire(acquired);
    };
    const scheduler = new ReplayScheduler({
      cache, verification, maxBatch: cache.layout.slots, prefillTokensPerStep, sharesPrefixes: benchOptions.prefixCache !== 'off',
    });
    let line = 0;
    const enqueue: ReplayBench['enqueue'] = (...lengths) => {
      for (const [promptTokens, outputTokens] of lengths) scheduler.enqueue({ line: line += 1, arrivalMs: 0, promptTokens, outputTokens });
    };
    const runToEnd = async (maxSteps = 1_000): Promise<void> => {
      for (let steps = 0; !scheduler.isIdle; steps += 1) {
        if (steps === maxSteps) throw new Error('it does not end');
        await scheduler.step(() => { log.push('commit'); });
      }
      t.deepEqual([verification.mismatches, scheduler.usedTokens, scheduler.pagedTokens, cache.counts().activeSlots], [0, 0, 0, 0]);
    };
    await body({ t, cache, scheduler, verification, log, enqueue, runToEnd });
  });
}

/** Logs the passes, as the engine stamps them, and the ends of sequences. */
function watched(verification: Verification, log: string[]): Verification {
  const { stamp, verify } = verification;
  verification.stamp = (sequence, runs, keys, from, tokens) => {
    const part = `${sequence.slot}+${tokens}`;
    if (log.at(-1)?.startsWith('pass')) log.push(`${log.pop()} ${part}`);
    else log.push(`pass ${part}`);
    stamp.call(verification, sequence, runs, keys, from, tokens);
  };
  verification.verify = (sequence, runs, keys) => {
    log.push(`end ${sequence.slot}`);
    verify.call(verification, sequence, runs, keys);
  };
  return verification;
}

const withoutCommits = (log: readonly string[]): string[] => log.filter((line) => line !== 'commit');
const startingWith = (log: readonly string[], word: string): string[] => log.filter((line) => line.startsWith(word));

replayTests("the pass of the last prompt token gives the answer's first token", {}, async ({ t, scheduler, log, enqueue, runToEnd }) => {
  enqueue([10, 3]);
  await runToEnd();
  t.deepEqual(log, ['acquire (10)', 'pass 0+10', 'commit', 'pass 0+1', 'commit', 'pass 0+1', 'commit', 'end 0']);
  t.like(scheduler.totals, { steps: 3, completedRequests: 1, promptTokens: 10, generatedTokens: 3, preemptions: 0 });
});

replayTests('a request without output tokens is complete after its prefill', {}, async ({ t, scheduler, log, enqueue, runToEnd }) => {
  enqueue([10, 0], [10, 1]);
  await runToEnd();
  t.deepEqual(startingWith(log, 'pass'), ['pass 0+10 1+10']);
  t.like(scheduler.totals, { steps: 1, completedRequests: 2, promptTokens: 20, generatedTokens: 1 });
});

replayTests('a step decodes first, then computes chunks of prompts in order of arrival', { prefillTokensPerStep: 64 }, async (bench) => {
  const { t, log, enqueue, runToEnd } = bench;
  enqueue([100, 3], [40, 2], [10, 1]);
  await runToEnd();
  t.deepEqual(withoutCommits(log), [
    'acquire (100)', 'pass 0+64',
    'acquire (40)', 'pass 0+36 1+28',
    'acquire (10)', 'pass 0+1 1+12 2+10', 'end 2',
    'pass 0+1 1+1', 'end 0', 'end 1',
  ]);
});

replayTests('a request waits for a slot, and later requests wait behind it', { slots: 2 }, async ({ t, log, enqueue, runToEnd }) => {
  enqueue([10, 2], [11, 3], [12, 1], [13, 1]);
  await runToEnd();
  t.deepEqual(startingWith(log, 'acquire'), ['acquire (10)', 'acquire (11)', 'acquire (12)', 'acquire (13)']);
  t.deepEqual(startingWith(log, 'pass').map((line) => line.split(' ').length - 1), [2, 2, 2, 1]);
});

replayTests('a request without room is not tried again before a sequence has ended', { rows: 6 }, async ({ t, scheduler, log, enqueue, runToEnd }) => {
  enqueue([50, 5], [60, 1], [10, 1]);
  await runToEnd();
  t.deepEqual(startingWith(log, 'acquire'), ['acquire (50)', 'acquire (60)', 'acquire (10)'], 'in order of arrival');
  t.is(withoutCommits(log).indexOf('acquire (60)'), withoutCommits(log).indexOf('end 0') + 1);
  t.is(scheduler.totals.completedRequests, 3);
});

replayTests('when memory runs out, the latest request is preempted and computes its answer so far again', { rows: 3 }, async (bench) => {
  const { t, scheduler, verification, log, enqueue, runToEnd } = bench;
  enqueue([10, 30], [10, 30]);
  await runToEnd();
  // Both fill their rows with 16 tokens, and one row is left.
  t.deepEqual(startingWith(log, 'acquire'), ['acquire (10)', 'acquire (10)', 'acquire (17)']);
  t.like(scheduler.totals, {
    completedRequests: 2, promptTokens: 20, generatedTokens: 60, preemptions: 1, recomputedTokens: 16, recoveredTokens: 0,
  });
  t.is(verification.verifiedTokens, 39 + 16 + 39, 'a preempted sequence is verified too');
});

replayTests('a preempted request comes back before those that never ran', { rows: 5, slots: 3 }, async ({ t, scheduler, log, enqueue, runToEnd }) => {
  enqueue([10, 30], [10, 20], [20, 14], [5, 1]);
  await runToEnd();
  const admitted = startingWith(log, 'acquire').map((line) => Number(/\d+/.exec(line)![0]));
  t.true(scheduler.totals.preemptions > 0);
  const last = admitted.indexOf(5);
  t.deepEqual(admitted.slice(0, 3), [10, 10, 20]);
  t.true(last > 3 && admitted.slice(3, last).every((tokens) => tokens > 20), 'with the answer so far');
  t.is(scheduler.totals.completedRequests, 4);
});

replayTests('a request that does not fit an empty cache rejects the step', { rows: 3 }, async ({ t, scheduler, enqueue }) => {
  enqueue([60, 1]);
  await t.throwsAsync(scheduler.step(), { code: 'KV_OUT_OF_PAGES' });
});

replayTests('tokens are counted while they are valid, and in blocks as a paged cache would hold them', { prefillTokensPerStep: 64 }, async (bench) => {
  const { t, scheduler, enqueue } = bench;
  const counted: [number, number][] = [];
  const count = (): void => { counted.push([scheduler.usedTokens, scheduler.pagedTokens]); };
  enqueue([20, 2], [70, 1]);
  await scheduler.step(count);
  t.deepEqual(counted, [[64, 32 + 48]]);
  await scheduler.step(count);
  t.deepEqual(counted[1], [21 + 70, 32 + 80], 'completed sequences count until they are released');
  t.deepEqual([scheduler.usedTokens, scheduler.pagedTokens], [0, 0]);
  t.true(scheduler.isIdle);
});

replayTests('stop() verifies and releases the running sequences, and forgets the waiting requests', { slots: 2 }, async (bench) => {
  const { t, cache, scheduler, verification, enqueue } = bench;
  enqueue([10, 5], [10, 5], [10, 5]);
  await scheduler.step();
  scheduler.stop();
  t.true(scheduler.isIdle);
  t.is(cache.counts().activeSlots, 0);
  t.deepEqual([verification.verifiedTokens, scheduler.totals.completedRequests], [20, 0]);
});

const seed = seedOf('replay-scheduler');

replayTests(`a random load completes every request, and every token is right (seed ${seed})`, { slots: 5, rows: 22, prefillTokensPerStep: 48 }, async (bench) => {
  const { t, scheduler, enqueue, runToEnd } = bench;
  const random = new Random(seed);
  const lengths = Array.from({ length: 200 }, (): [number, number] => [1 + random.integer(200), random.integer(100)]);
  enqueue(...lengths);
  await runToEnd(100_000);
  const sum = (at: 0 | 1): number => lengths.reduce((total, pair) => total + pair[at], 0);
  t.like(scheduler.totals, { completedRequests: 200, promptTokens: sum(0), generatedTokens: sum(1) });
  t.true(scheduler.totals.preemptions > 0, 'the load is meant to preempt');
});

const saying = (promptTokens: number, outputTokens: number, ...ids: number[]): TraceRequest =>
  ({ line: 1, arrivalMs: 0, promptTokens, outputTokens, hashIds: Int32Array.from(ids) });

const sharing = { prefixCache: {}, slots: 1, rows: 256, prefillTokensPerStep: 2_000 } as const;

replayTests('requests share what their traces say alike, and every token is verified', sharing, async ({ t, scheduler, verification, log, runToEnd }) => {
  for (const request of [saying(1_024, 3, 1, 2), saying(1_500, 1, 1, 2, 3), saying(1_500, 1, 1, 4, 3), saying(1_500, 0, 1, 2, 3)]) {
    scheduler.enqueue(request);
  }
  await runToEnd();
  t.deepEqual(startingWith(log, 'pass'), ['pass 0+1024', 'pass 0+1', 'pass 0+1', 'pass 0+476', 'pass 0+988', 'pass 0+1']);
  const { adoptedTokens, aliasedTokens, copiedTokens } = scheduler.totals;
  t.like(scheduler.totals, { promptTokens: 5_524, cachedTokens: 1_024 + 512 + 1_499 });
  t.is(adoptedTokens + aliasedTokens + copiedTokens, 1_024 + 512 + 1_499);
  t.is(verification.verifiedTokens, 1_026 + 3 * 1_500);
});

replayTests('answers, and prompts without ids, are shared with no other request', sharing, async ({ t, scheduler, runToEnd }) => {
  const alike = [saying(700, 1, 1), saying(700, 1, 1), saying(700, 1), saying(700, 1)];
  for (const request of [saying(700, 400, 1, 2), saying(1_024, 1, 1, 2), ...alike]) scheduler.enqueue(request);
  await runToEnd();
  t.is(scheduler.totals.cachedTokens, 700 + 512 + 512, 'the second finds the prompt of the first, and nothing of its answer');
});

replayTests('a wrong token in a cached row is found by the request that shares it', sharing, async ({ t, cache, scheduler, verification }) => {
  for (const request of [saying(1_024, 2, 1, 2), saying(1_024, 1, 1, 2)]) scheduler.enqueue(request);
  const acquired: ReturnType<KvCache['acquire']>[] = [];
  const acquire = cache.acquire.bind(cache);
  cache.acquire = (options) => {
    const sequence = acquire(options);
    acquired.push(sequence);
    return sequence;
  };
  await scheduler.step();
  cache.stamp(acquired[0]!, 300, 1, 77);
  while (!scheduler.isIdle) await scheduler.step();
  t.deepEqual([verification.mismatches, scheduler.totals.cachedTokens], [2, 1_023], 'by both of them');
});

replayTests('a preempted request finds its own tokens again, prompt and answer', { prefixCache: {}, rows: 3 }, async (bench) => {
  const { t, scheduler, runToEnd } = bench;
  for (const id of [1, 2]) scheduler.enqueue(saying(10, 20, id));
  await runToEnd();
  t.like(scheduler.totals, {
    completedRequests: 2, promptTokens: 20, generatedTokens: 40, preemptions: 1, recomputedTokens: 0, recoveredTokens: 16, cachedTokens: 0,
  });
});

replayTests(`a random load with shared prefixes ends with every token right (seed ${seed})`, {
  prefixCache: {}, slots: 5, rows: 250, prefillTokensPerStep: 700,
}, async ({ t, scheduler, runToEnd }) => {
  const random = new Random(seed);
  for (let line = 0; line < 60; line += 1) {
    const promptTokens = 1 + random.integer(1_600);
    const ids = Array.from({ length: Math.ceil(promptTokens / 512) }, (_, block) => 10 * block + random.integer(2));
    scheduler.enqueue(saying(promptTokens, random.integer(400), ...ids));
  }
  await runToEnd(100_000);
  const { completedRequests, preemptions, cachedTokens, recoveredTokens, promptTokens } = scheduler.totals;
  t.true(preemptions > 0 && recoveredTokens > 0 && cachedTokens > 0.2 * promptTokens, 'the load is meant to do all that');
  t.is(completedRequests, 60);
});
