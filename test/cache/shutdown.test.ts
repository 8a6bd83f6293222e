// The end of a cache: its schedulers, its tiers and itself, in order, so that nothing that was finished is lost; and what is told where it is.

import test from 'ava';

import { OfflineScheduler, OnlineScheduler } from 'virtual-kv';
import { PatternEngine, turn } from '../serving/pattern-engine.js';
import { PlainTier } from './tiers/plain-tier.js';
import { benchOf, serve, textOf } from './tiers/tier-bench.js';

/** Of the engine's vocabulary. */
const prompt = (tokens: number, first = 0): number[] => Array.from({ length: tokens }, (_, at) => (first + at * 7) % 61);

test('shutdown ends requests, stores what is finished, closes tiers and cache, and lets nothing begin meanwhile', async (t) => {
  const tier = new PlainTier('mine');
  const bench = benchOf(t, [tier]);
  const { cache } = bench;
  const engine = new PatternEngine({ cache, pause: turn });
  const scheduler = new OnlineScheduler({ cache, engine });
  const running = cache.acquire({ tokens: textOf(5, 9) });
  await scheduler.submit({ tokens: prompt(64), maxNewTokens: 1 }).result;
  const open = scheduler.submit({ tokens: prompt(64, 5), maxNewTokens: 500 });
  const run = new OfflineScheduler({ cache, engine }).run([{ tokens: prompt(30, 9), maxNewTokens: 500 }]);
  const outcome = run.next();
  await turn();
  const over = cache.shutdown();
  t.throws(() => cache.acquire(), { code: 'KV_CLOSED' });
  t.throws(() => scheduler.submit({ tokens: [1], maxNewTokens: 1 }), { code: 'KV_CLOSED' });
  running.release();
  await t.throwsAsync(open.result, { code: 'KV_CLOSED' });
  t.like(await outcome, { value: { status: 'rejected', reason: { code: 'KV_CLOSED' } } });
  await over;
  t.true(cache.isClosed && scheduler.isClosed);
  t.true(tier.blocks.size >= 4);
  await cache.shutdown();
  await cache[Symbol.asyncDispose]();
  bench.close();
});

test('shutdown that an engine keeps from ending is refused in time, and may be called again', async (t) => {
  const bench = benchOf(t, [new PlainTier('mine')]);
  const { cache } = bench;
  let answer: (() => void) | undefined;
  const engine = new PatternEngine({ cache, pause: () => new Promise<void>((resolve) => { answer = resolve; }) });
  const scheduler = new OnlineScheduler({ cache, engine });
  scheduler.submit({ tokens: prompt(20), maxNewTokens: 1 }).result.catch(() => { /* it is ended */ });
  while (answer === undefined) await turn();
  await t.throwsAsync(cache.shutdown({ timeoutMs: 0 }), { code: 'KV_TIMEOUT' });
  t.false(cache.isClosed);
  const again = cache.shutdown();
  answer();
  await again;
  t.true(cache.isClosed);
  bench.close();
});

test('text whose sequence waits for a stream is stored by shutdown, too', async (t) => {
  const tier = new PlainTier('mine');
  const bench = benchOf(t, [tier], { device: { streams: 'manual' } });
  const { cache, mock } = bench;
  const sequence = cache.acquire({ tokens: textOf(32) });
  bench.compute(sequence, 32);
  mock.queueWork(0n, [{ address: sequence.address(0), bytes: 1, access: 'read' }]);
  sequence.release({ fence: { stream: 0n } });
  await cache.shutdown();
  t.is(tier.blocks.size, 2);
  bench.close();
});

test('`tiers.close` alone counts text that it could not read as dropped, and none waits behind it', async (t) => {
  const tier = new PlainTier('mine');
  const bench = benchOf(t, [tier], { device: { streams: 'manual' } });
  const { cache, mock } = bench;
  const tiers = cache.prefixes.tiers!;
  const first = cache.acquire({ tokens: textOf(32) });
  bench.compute(first, 32);
  const second = cache.acquire({ tokens: textOf(33) }); // shares its rows, with work that no copy can be put behind
  cache.prepare(bench.batchOf([second, 1]));
  first.release();
  second.release({ fence: { step: 7 } });
  await tiers.close();
  const { waitingTexts, droppedTexts } = tiers.metrics();
  t.deepEqual([waitingTexts, droppedTexts + tier.blocks.size / 2], [0, 1], 'stored, or counted');
  mock.completeAll();
  cache.completeStep(7);
});

test('a cache that closes over text that was not offered says so, once in a process', async (t) => {
  const warnings: (Error & { code?: string })[] = [];
  const hear = (warning: Error): void => { warnings.push(warning); };
  process.on('warning', hear);
  for (let cache = 0; cache < 2; cache += 1) {
    const bench = benchOf(t, [new PlainTier('mine')]);
    await bench.cache.prefixes.tiers!.ready();
    serve(bench, textOf(32), 1);
    bench.close();
    await turn();
  }
  const orderly = benchOf(t, [new PlainTier('mine')]);
  serve(orderly, textOf(32), 1);
  await orderly.cache.shutdown();
  orderly.close();
  await turn();
  process.off('warning', hear);
  const told = warnings.filter(({ code }) => code === 'KV_TEXT_NOT_STORED');
  t.is(told.length, 1);
  t.regex(told[0]!.message, /1 finished text/);
});
