// Copies between the device and tiers, on streams of their own: behind the engine's queued work, through memory that the device copies by
// itself, with the checksums that the format says; and any driver call among them may fail.

import test from 'ava';

import { hostTier, isKvError, layoutKinds, type ModelShape } from 'virtual-kv';
import type { MockCall } from 'virtual-kv/testing';

import { sumsOf } from '#internal/tiers/contract-store.js';
import { CacheBench, drivers, type BenchOptions } from '../../helpers/cache.js';
import { RunAheadEngine, type Running } from '../../helpers/run-ahead-engine.js';
import { tokensOf } from '../prefix/spoken.js';
import { dropFromDevice, turn } from './device-index.js';
import { PlainTier } from './plain-tier.js';
import { slow } from '../../runner/slow.js';

/** Rows of 8 tokens, blocks of 8. */
const queueing: BenchOptions = {
  pageBytes: 4096, model: { layers: 2, kvHeads: 1, headDim: 256, dtype: 'float16' }, slots: 6, rows: 24, mapper: 'off',
  device: { streams: 'manual', granularityBytes: 4096, hasGarbage: true },
};
const prompt = tokensOf(1, 21);
/** Of 19 blocks: it comes up in three loads, of which two are under way at a time. */
const longPrompt = tokensOf(1, 149);

function benchOf(t: ConstructorParameters<typeof CacheBench>[0], options: BenchOptions = queueing): CacheBench {
  return new CacheBench(t, { ...options, prefixCache: { tiers: [hostTier({ bytes: 2 ** 26 })], tierBlockTokens: 8, modelId: 'test' } });
}

function promoted(bench: CacheBench, tokens: readonly number[]): ReturnType<CacheBench['cache']['prefixes']['promote']> {
  return bench.cache.prefixes.promote({ tokens: Int32Array.from(tokens) });
}

/** A request whose prompt is found and checked, with all work done; it runs on. */
function serve(engine: RunAheadEngine, tokens: readonly number[]): Running {
  const running = engine.start([...tokens, 7]);
  engine.step([running]);
  engine.assertAll();
  return running;
}

/** The prompt is in the tier alone. */
async function demote(bench: CacheBench, engine: RunAheadEngine): Promise<void> {
  const first = engine.start(prompt);
  engine.step([first]);
  engine.release(first);
  engine.finish();
  await bench.cache.prefixes.tiers!.settled();
  dropFromDevice(bench.cache);
}

test('text is read when the work that writes it is over, not before', async (t) => {
  const bench = benchOf(t);
  const { cache: { prefixes }, mock } = bench;
  const engine = new RunAheadEngine(bench);
  const first = engine.start(prompt);
  engine.step([first]);
  engine.release(first);
  await prefixes.tiers!.settled();
  t.true(mock.pendingWork > 0, 'nothing of the step is done');
  t.is(prefixes.tiers!.metrics().tiers[0]!.storedBlocks, 0);
  engine.finish();
  await prefixes.tiers!.settled();
  t.is(prefixes.tiers!.metrics().tiers[0]!.storedBlocks, 3);
  dropFromDevice(bench.cache);
  t.like(await promoted(bench, prompt), { promotedTokens: 21, end: 'complete' });
  t.is(serve(engine, prompt).sequence.cachedTokens, 21);
  engine.close();
  await prefixes.tiers!.close();
  bench.close();
});

test('text that another sequence computes at the same time is read behind the work of whose rows are cached', async (t) => {
  const bench = benchOf(t);
  const { cache: { prefixes }, mock } = bench;
  const engine = new RunAheadEngine(bench, { streams: 2 });
  const [second, first] = [engine.start(prompt), engine.start(prompt, {}, 1)];
  engine.step([second]); // its rows are those that are found
  engine.step([first]);
  engine.release(first);
  mock.completeStream(engine.streams[1]!);
  t.true(mock.pendingWork > 0, 'the second one is still to be written');
  await prefixes.tiers!.settled();
  t.is(prefixes.tiers!.metrics().tiers[0]!.storedBlocks, 3);
  engine.release(second);
  engine.finish();
  bench.cache.counts();
  dropFromDevice(bench.cache);
  t.like(await promoted(bench, prompt), { promotedTokens: 21, end: 'complete' });
  serve(engine, prompt);
  engine.close();
  await prefixes.tiers!.close();
  bench.close();
});

test('what a promotion writes comes behind queued work that it goes on from, and is there when it is told', async (t) => {
  const bench = benchOf(t);
  const { mock } = bench;
  const engine = new RunAheadEngine(bench, { streams: 2 });
  await demote(bench, engine);
  const running = engine.start(prompt.slice(0, 12), {}, 1);
  engine.step([running]);
  mock.resetCallCounts();
  t.like(await promoted(bench, prompt), { cachedTokens: 21, end: 'complete' });
  t.true(mock.callCounts().cuStreamWaitEvent > 0, 'the row that it shares is copied behind the work that writes it');
  t.is(serve(engine, prompt).sequence.cachedTokens, 21);
  engine.close();
  await bench.cache.prefixes.tiers!.close();
  bench.close();
});

test('promotions and requests that end them for want of pages never touch rows that a copy uses', async (t) => {
  const bench = benchOf(t, { ...queueing, rows: 10 });
  const { cache: { prefixes } } = bench;
  const engine = new RunAheadEngine(bench, { streams: 2 });
  for (const lane of [0, 1]) {
    const running = engine.start(tokensOf(1 + lane, 40), {}, lane);
    engine.step([running]);
    engine.release(running);
    await prefixes.tiers!.settled();
  }
  for (let round = 0; round < 12; round += 1) {
    engine.finish();
    dropFromDevice(bench.cache);
    const promotion = promoted(bench, tokensOf(1 + round % 2, 40));
    for (let wait = 0; wait < round % 4; wait += 1) await turn();
    const running = engine.start(tokensOf(9 + round, 56), {}, round % 2); // seven of ten rows
    engine.step([running]);
    const { end } = await promotion;
    t.true(['complete', 'no-memory'].includes(end), end);
    engine.release(running);
    await prefixes.tiers!.settled();
    engine.assertAll();
  }
  engine.close();
  await prefixes.tiers!.close();
  bench.close();
});

const kinds: readonly MockCall[] = [
  'cuMemHostRegister', 'cuMemHostUnregister', 'cuMemcpyDtoHAsync', 'cuMemcpyHtoDAsync', 'cuMemcpyDtoDAsync', 'cuMemMap', 'cuMemUnmap', 'cuMemSetAccess',
  'cuStreamCreate', 'cuStreamDestroy', 'cuStreamSynchronize', 'cuStreamWaitEvent', 'cuEventCreate', 'cuEventRecord', 'cuEventQuery', 'cuEventDestroy',
  'cuCtxPushCurrent',
];

for (const kind of kinds) {
  for (const [text, most] of [[prompt, 15], [longPrompt, 40]] as const) {
    slow('a sweep of calls that fail')(`any call of ${kind} that fails in a demotion, a promotion or at the end costs that copy and nothing else (${text.length} tokens)`, async (t) => {
      let reached = 0;
      for (let nth = 1; nth === reached + 1 && nth <= most; nth += 1) if (await failOne(t, text, kind, nth)) reached = nth;
      t.log(`${kind} failed ${reached} times`);
      t.true(reached > 0);
    });
  }
}

/** Whether the scenario came to the call. */
async function failOne(t: ConstructorParameters<typeof CacheBench>[0], text: readonly number[], kind: MockCall, nth: number): Promise<boolean> {
  const bench = benchOf(t);
  const { cache, mock } = bench;
  const { prefixes } = cache;
  const tiers = prefixes.tiers!;
  const engine = new RunAheadEngine(bench, { streams: 2, probes: 0 });
  const first = engine.start(text);
  engine.step([first]);
  mock.resetCallCounts();
  bench.fail(kind, nth);
  const mayFail = async (act: () => unknown): Promise<void> => {
    try {
      await act();
    } catch (error) {
      t.true(isKvError(error) && /^KV_(DRIVER_CALL_FAILED|OUT_OF_|SLOT_BUSY)/.test(error.code), `${kind} number ${nth}: ${String(error)}`);
    }
  };
  await mayFail(() => { engine.release(first); });
  engine.forgetReleased();
  mock.completeAll();
  await mayFail(() => tiers.settled());
  await mayFail(() => { dropFromDevice(cache); });
  await mayFail(() => { engine.step([engine.start(text.slice(0, 12), {}, 1)]); });
  await mayFail(() => promoted(bench, text));
  mock.completeAll();
  for (const running of engine.running) await mayFail(() => { engine.release(running); });
  engine.forgetReleased();
  t.deepEqual(mock.misuses(), []);
  const isReached = mock.callCounts()[kind] >= nth;
  bench.forgiveAll();
  engine.assertAll();
  const again = serve(engine, text); // found on the device or computed anew: the bytes are right
  engine.release(again);
  await tiers.settled();
  dropFromDevice(cache);
  await promoted(bench, text);
  engine.release(serve(engine, text));
  engine.close();
  await tiers.close();
  if (isReached) {
    bench.close();
    return true;
  }
  const before = mock.callCounts()[kind];
  bench.fail(kind, nth);
  await mayFail(() => { cache.close(); });
  const isReachedAtEnd = mock.callCounts()[kind] >= before + nth;
  bench.forgiveAll();
  cache.close();
  bench.close();
  return isReachedAtEnd;
}

for (const [memory, refusals] of [['pinned', 0], ['pageable', 20]] as const) {
  test(`where the device ${refusals === 0 ? 'registers' : 'refuses to register'} memory, copies go through ${memory} memory, and metrics say so`, async (t) => {
    const bench = benchOf(t);
    const tiers = bench.cache.prefixes.tiers!;
    t.is(tiers.metrics().staging, undefined, 'nothing was copied');
    if (refusals > 0) bench.mock.failCall('cuMemHostRegister', { result: 2, times: refusals });
    const engine = new RunAheadEngine(bench);
    await demote(bench, engine);
    const { pinnedBytes, pageableBytes } = tiers.metrics().staging!;
    t.true((refusals === 0 ? pinnedBytes : pageableBytes) > 0);
    t.is(refusals === 0 ? pageableBytes : pinnedBytes, 0);
    t.like(await promoted(bench, prompt), { promotedTokens: 21, end: 'complete' });
    t.is(serve(engine, prompt).sequence.cachedTokens, 21);
    engine.close();
    await tiers.close();
    bench.close();
  });
}

test('a driver whose memory the CPU copies has no staging memory', async (t) => {
  const bench = benchOf(t, { on: 'host', model: { layers: 1, kvHeads: 1, headDim: 256, dtype: 'float16' } });
  const { cache } = bench;
  const sequence = cache.acquire({ tokens: Int32Array.from(prompt) });
  bench.prepare(sequence, prompt.length);
  cache.stamp(sequence, 0, prompt.length, 4);
  bench.commit();
  sequence.release();
  const tiers = cache.prefixes.tiers!;
  await tiers.settled();
  t.true(tiers.metrics().tiers[0]!.storedBlocks > 0);
  t.is(tiers.metrics().staging, undefined);
  await tiers.close();
  bench.close();
});

/** Tensors whose tokens are short, odd, and as long as those of large models; the last ones have layers that differ. */
const models: readonly ModelShape[] = [
  { layers: 2, kvHeads: 1, headDim: 8, dtype: 'float16' },
  { layers: 1, kvHeads: 3, headDim: 80, dtype: 'float32' },
  { layers: 2, kvHeads: 8, headDim: 128, dtype: 'float16' },
  { layers: 2, layerShapes: [{ kvHeads: 2, headDim: 96 }, { kvHeads: 5, headDim: 40 }], dtype: 'bfloat16' },
];

for (const on of drivers) {
  for (const layout of layoutKinds) {
    test(`every stripe has the checksum of the format, whatever its length (${on}, ${layout})`, async (t) => {
      for (const model of models) {
        for (const blockTokens of [1, 37, 64]) {
          const tier = new PlainTier('keeping');
          const bench = new CacheBench(t, {
            on, layout, model, slots: 2, maxTokens: 200, pageBytes: 65_536, memoryBudgetBytes: 2 ** 24,
            prefixCache: { tiers: [tier], tierBlockTokens: blockTokens, modelId: 'test' },
          });
          const { cache } = bench;
          const sequence = cache.acquire({ tokens: Int32Array.from({ length: 75 }, (_, at) => at) });
          bench.prepare(sequence, 75);
          cache.stamp(sequence, 0, 75, 4);
          bench.commit();
          sequence.release();
          await cache.prefixes.tiers!.settled();
          t.is(tier.blocks.size, Math.ceil(75 / blockTokens));
          const stripeTokenBytes = cache.tensors.map(({ tokenBytes }) => tokenBytes);
          for (const { record, payload } of tier.blocks.values()) {
            t.deepEqual(record.sums, sumsOf(payload, record.tokens.length, stripeTokenBytes));
          }
          await cache.prefixes.tiers!.close();
          bench.close();
        }
      }
    });
  }
}
