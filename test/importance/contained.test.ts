// What selections must not do: be found by another request, be forked, be cut back, be stored, or cost a request its answer where a tier loses the
// text; and what is beside them must be exact.

import test from 'ava';

import {
  firstAndLast, isKvError, OfflineScheduler, OnlineScheduler, probeHeads, type GenerationOutcome, type GenerationRequest, type GenerationResult, type Sequence, type TokenSelector,
} from 'virtual-kv';

import { Random } from '#internal/base/random.js';
import { dropFromDevice, turn } from '../cache/tiers/device-index.js';
import { PlainTier } from '../cache/tiers/plain-tier.js';
import { mostLikely } from '../helpers/logits.js';
import { seedOf } from '../helpers/seed.js';
import { SelectionWorld, sizes } from './selection-world.js';
import { slow } from '../runner/slow.js';

const seed = seedOf('contained selections');
const selection = { ratio: 0.2, selector: firstAndLast() };

function textOf(random: Random, tokens: number): Int32Array {
  return Int32Array.from({ length: tokens }, () => random.integer(sizes.vocabularyTokens));
}

/** Greedy answers of a model without a cache. */
function exactAnswer({ plain }: SelectionWorld, prompt: Int32Array, tokens: number): number[] {
  const text = [...prompt];
  while (text.length < prompt.length + tokens) text.push(mostLikely(plain.logits(text).at(-1)!));
  return text.slice(prompt.length);
}

function valueOf(outcome: GenerationOutcome): GenerationResult {
  if (outcome.status === 'rejected') throw outcome.reason;
  return outcome.value;
}

test(`what is computed over a selection is never found, stored or forked (seed ${seed})`, async (t) => {
  const random = new Random(seed);
  const tier = new PlainTier('mine');
  const world = new SelectionWorld(t, random, { tiers: [tier] });
  const { cache, cache: { prefixes } } = world;
  const text = textOf(random, 100);
  await world.store(text.subarray(0, 80));
  const { puts } = tier;
  const lossy = await world.lossy(text, selection);
  t.true(lossy.isLossy);
  t.is(prefixes.lookup({ tokens: text }).cachedTokens, 0);
  await world.finish(lossy, text);
  lossy.append([1, 2, 3]);
  t.is(prefixes.lookup({ tokens: text }).cachedTokens, 0);
  t.is(prefixes.lookup({ tokens: text }).pendingTokens, 0);
  t.false(lossy.keepValue('logits'));
  t.throws(() => lossy.fork(), { code: 'KV_SEQUENCE_LOSSY' });
  t.throws(() => { lossy.truncate(79); }, { code: 'KV_SEQUENCE_LOSSY' });
  t.notThrows(() => { lossy.truncate(85); });
  lossy.release();
  await prefixes.tiers!.settled();
  t.is(prefixes.lookup({ tokens: text }).cachedTokens, 0, 'nor once it is over');
  t.is(tier.puts, puts);
  const again = cache.acquire({ tokens: text });
  t.is(again.length, 0);
  t.false(again.isLossy);
  t.is(again.selection, undefined);
  again.release();
  t.like(prefixes.tiers!.metrics(), { promotions: { complete: 0 }, selections: { sequences: 1, lostSequences: 0, layers: 3, tokens: 240, selectedTokens: 48, fallBacks: 0 } });
  await world.close();
});

test(`an idle slot that held selected tokens serves the next text whole (seed ${seed})`, async (t) => {
  const random = new Random(seed + 1);
  const world = new SelectionWorld(t, random, { slots: 1 });
  const text = textOf(random, 100);
  const exact = await world.store(text);
  for (let round = 0; round < 2; round += 1) {
    const lossy = await world.lossy(text, { ratio: 0.1, selector: firstAndLast() });
    await world.finish(lossy, text);
    lossy.release();
    const sequence = world.cache.acquire({ tokens: text });
    t.is(sequence.length, 0);
    t.deepEqual(await world.finish(sequence, text), exact);
    sequence.release();
    await world.cache.prefixes.tiers!.settled();
    dropFromDevice(world.cache);
  }
  await world.close();
});

test(`a selection is taken by its own prompt in its own domain and cache alone (seed ${seed})`, async (t) => {
  const random = new Random(seed + 2);
  const [world, other] = [new SelectionWorld(t, random), new SelectionWorld(t, random)];
  const text = textOf(random, 60);
  await world.store(text);
  const { selected } = await world.cache.prefixes.promote({ tokens: text, selection });
  t.is(selected!.tokens, 59);
  const changed = text.slice();
  changed[3]! += 1;
  for (const acquire of [
    () => other.cache.acquire({ tokens: text, selected }), () => world.cache.acquire({ tokens: changed, selected }),
    () => world.cache.acquire({ tokens: text.subarray(0, 59), selected }), () => world.cache.acquire({ tokens: text, selected, tenant: 'a' }),
    () => world.cache.acquire({ tokens: text, selected, salt: 'a' }), () => world.cache.acquire({ tokens: text, selected, adapter: 'a' }),
    () => world.cache.acquire({ tokens: text, selected, caching: 'off' }), () => world.cache.acquire({ tokens: text, selected, caching: 'write' }),
    () => world.cache.acquire({ selected }), () => world.cache.acquire({ tokens: text, selected: {} as never }),
  ]) t.throws(acquire, { code: 'KV_INVALID_OPTION' });
  t.is(world.cache.counts().activeSlots, 0);
  t.is((await world.cache.prefixes.promote({ tokens: textOf(random, 40), selection })).selected, undefined, 'tiers have nothing of it');
  await world.close();
  await other.close();
});

test(`text that tiers have lost since is computed by an exact sequence (seed ${seed})`, async (t) => {
  const random = new Random(seed + 3);
  const tier = new PlainTier('mine');
  const world = new SelectionWorld(t, random, { tiers: [tier] });
  const text = textOf(random, 60);
  const exact = await world.store(text);
  const { selected } = await world.cache.prefixes.promote({ tokens: text, selection });
  world.cache.prefixes.reset();
  const sequence = world.cache.acquire({ tokens: text, selected });
  t.false(sequence.isLossy);
  t.is(sequence.length, 0);
  t.deepEqual(await world.finish(sequence, text), exact);
  sequence.release();
  await world.close();
});

slow('a random world of selections')(`through a scheduler: a request with a selection is sooner told, those beside it are exact, and all of them are when a tier loses text (seed ${seed})`, async (t) => {
  const random = new Random(seed + 4);
  const tier = new PlainTier('mine');
  const world = new SelectionWorld(t, random, { tiers: [tier] });
  const { cache, engine } = world;
  const text = textOf(random, 90);
  await world.store(text.subarray(0, 80));
  const requests: GenerationRequest[] = [
    { tokens: text, maxNewTokens: 6, selection }, { tokens: textOf(random, 30), maxNewTokens: 6, caching: 'off' },
    { tokens: textOf(random, 50), maxNewTokens: 8, caching: 'off' },
  ];
  const run = async (): Promise<GenerationResult[]> => {
    const outcomes: GenerationOutcome[] = [];
    for await (const outcome of new OfflineScheduler({ cache, engine, prefillTokensPerStep: 32 }).run(requests)) outcomes.push(outcome);
    return outcomes.sort((a, b) => a.index - b.index).map(valueOf);
  };
  const [lossy, ...others] = await run();
  t.like(lossy!.selection, { sequences: 1, lostSequences: 0, layers: 3, tokens: 240, selectedTokens: 48 });
  t.is(lossy!.cachedTokens, 0);
  t.is(lossy!.tokens.length, 6);
  for (const [index, result] of others.entries()) {
    t.deepEqual([...result.tokens], exactAnswer(world, requests[index + 1]!.tokens as Int32Array, requests[index + 1]!.maxNewTokens));
    t.is(result.selection, undefined);
  }
  await cache.prefixes.tiers!.settled();
  t.is(cache.prefixes.lookup({ tokens: text }).cachedTokens, 0);
  t.like(await cache.prefixes.promote({ tokens: text }), { cachedTokens: 80 });
  dropFromDevice(cache);

  const get = tier.get.bind(tier);
  let reads = 0;
  for (const failing of [1, 2]) { // of the two blocks that are wanted
    reads = 0;
    tier.get = (key, payload) => ((reads += 1) === failing ? Promise.resolve({ isFound: false, reason: 'failed' }) : get(key, payload));
    const results = await run();
    for (const [index, result] of results.entries()) {
      t.deepEqual([...result.tokens], exactAnswer(world, requests[index]!.tokens as Int32Array, requests[index]!.maxNewTokens), `read ${failing}`);
      t.is(result.selection, undefined);
    }
    await cache.prefixes.tiers!.settled();
    dropFromDevice(cache);
  }
  t.is(cache.prefixes.tiers!.metrics().selections.lostSequences, 2);
  await world.close();
});

/** Ways in which a request loses its slot while it runs; each returns when that cannot fail to happen any more. */
const preemptions: Readonly<Record<string, (world: SelectionWorld, scheduler: OnlineScheduler) => Promise<unknown>>> = {
  'a more urgent request': (_, scheduler) => scheduler.submit({ tokens: [1, 2, 3], maxNewTokens: 2, urgency: 9 }).result,
  'a reset': ({ cache }) => Promise.resolve(cache.prefixes.reset({ preempt: true })),
};
for (const [what, preempt] of Object.entries(preemptions)) {
  const declare = what === 'a reset' ? slow('computes long texts exactly') : test;
  test(`tokens that came from a selection are told of, though ${what} preempts their request, which goes on exactly (seed ${seed})`, async (t) => {
    const random = new Random(seed + 10);
    const world = new SelectionWorld(t, random, { slots: 1 });
    const { cache, engine } = world;
    const text = textOf(random, 90);
    await world.store(text.subarray(0, 80));
    const scheduler = new OnlineScheduler({ cache, engine });
    const stream = scheduler.submit({ tokens: text, maxNewTokens: 40, selection });
    let preempting: Promise<unknown> | undefined;
    let read = 0;
    for await (const _ of stream) if ((read += 1) === 4) preempting = preempt(world, scheduler);
    const { tokens, preemptions, selection: made } = await stream.result;
    await preempting;
    t.is(preemptions, 1);
    t.is(tokens.length, 40);
    t.like(made, { sequences: 1, lostSequences: 0, layers: 3, tokens: 240, selectedTokens: 48, fallBacks: 0 });
    t.deepEqual([...tokens.subarray(39)], exactAnswer(world, Int32Array.from([...text, ...tokens.subarray(0, 39)]), 1), 'exact behind what it had');
    await scheduler.close();
    await cache.prefixes.tiers!.settled();
    await world.close();
  });

  declare(`a request that ${what} preempts before its selection gave a token is answered exactly, and says so (seed ${seed})`, async (t) => {
    const random = new Random(seed + 11);
    const world = new SelectionWorld(t, random, { slots: 1 });
    const { cache, engine } = world;
    const text = textOf(random, 200);
    await world.store(text.subarray(0, 80));
    const scheduler = new OnlineScheduler({ cache, engine, prefillTokensPerStep: 8 });
    const { result } = scheduler.submit({ tokens: text, maxNewTokens: 4, selection });
    const tiers = cache.prefixes.tiers!;
    while (tiers.metrics().selections.layers < 3) await turn(); // of 15 steps the first has loaded all
    const preempting = preempt(world, scheduler);
    const { tokens, preemptions, selection: made } = await result;
    await preempting;
    t.is(preemptions, 1);
    t.is(made, undefined);
    t.deepEqual([...tokens], exactAnswer(world, text, 4));
    await scheduler.close();
    await tiers.settled();
    await world.close();
  });
}

test(`of several answers to one prompt with a selection each is given its own (seed ${seed})`, async (t) => {
  const world = new SelectionWorld(t, new Random(seed + 8));
  const { cache, engine } = world;
  const text = textOf(new Random(seed + 9), 90);
  await world.store(text.subarray(0, 80));
  const scheduler = new OnlineScheduler({ cache, engine });
  const results = await Promise.all(scheduler.submitAnswers({ tokens: text, maxNewTokens: 6, selection }, 3).map(({ result }) => result));
  for (const { tokens, selection } of results) {
    t.deepEqual([...tokens], [...results[0]!.tokens]);
    t.like(selection, { sequences: 1, lostSequences: 0, tokens: 240, selectedTokens: 48 });
  }
  t.is(cache.prefixes.lookup({ tokens: text }).cachedTokens, 0);
  await scheduler.close();
  await world.close();
});

test(`a request that is aborted in the middle of loading leaves nothing, and a tier that does not answer costs its time and no more (seed ${seed})`, async (t) => {
  const random = new Random(seed + 5);
  const tier = new PlainTier('mine');
  const world = new SelectionWorld(t, random, { tiers: [tier] });
  const { cache, engine } = world;
  const text = textOf(random, 90);
  await world.store(text.subarray(0, 80));
  const waiting: (() => void)[] = [];
  const get = tier.get.bind(tier);
  tier.get = async (key, payload) => {
    await new Promise<void>((resolve) => { waiting.push(resolve); });
    return get(key, payload);
  };
  const scheduler = new OnlineScheduler({ cache, engine });
  const abort = new AbortController();
  const stream = scheduler.submit({ tokens: text, maxNewTokens: 4, selection, signal: abort.signal });
  while (waiting.length === 0) await turn();
  abort.abort();
  t.true(isKvError(await t.throwsAsync(stream.result), 'KV_ABORTED'));
  for (const go of waiting.splice(0)) go();
  await scheduler.idle();
  t.is(cache.counts().activeSlots, 0);
  const layerTimeoutMs = 12_345;
  const { timeout } = AbortSignal;
  t.teardown(() => { AbortSignal.timeout = timeout; });
  const isOver = new AbortController();
  AbortSignal.timeout = (ms) => (ms === layerTimeoutMs ? isOver.signal : timeout.call(AbortSignal, ms));
  const unanswered = scheduler.submit({ tokens: text, maxNewTokens: 4, selection: { ...selection, layerTimeoutMs } });
  while (waiting.length === 0) await turn();
  isOver.abort();
  const late = await unanswered.result;
  t.deepEqual([...late.tokens], exactAnswer(world, text, 4));
  t.is(late.selection, undefined);
  t.is(cache.prefixes.tiers!.metrics().selections.lostSequences, 1);
  for (const go of waiting.splice(0)) go();
  await scheduler.close();
  await world.close();
});

test(`damage that a selection meets is a miss, and the block is dropped (seed ${seed})`, async (t) => {
  const random = new Random(seed + 6);
  const tier = new PlainTier('mine');
  const world = new SelectionWorld(t, random, { tiers: [tier] });
  const text = textOf(random, 60);
  await world.store(text);
  const [, second] = [...tier.blocks.values()].sort((a, b) => a.record.position - b.record.position);
  second!.payload.fill(1);
  const lossy = await world.lossy(text, { ratio: 0.5, selector: probeHeads() });
  await world.finish(lossy, text);
  t.true(isKvError(lossy.selection!.failure, 'KV_SELECTION_LOST'));
  t.false(tier.blocks.has(second!.record.key));
  lossy.release();
  await world.close();
});

test('what cannot select says so', async (t) => {
  const world = new SelectionWorld(t, new Random(seed + 7));
  const { cache, engine } = world;
  const scheduler = new OnlineScheduler({ cache, engine: { vocabularyTokens: engine.vocabularyTokens, prefill: engine.prefill.bind(engine), decode: engine.decode.bind(engine) } });
  const tokens = [1, 2, 3];
  t.throws(() => scheduler.submit({ tokens, maxNewTokens: 1, selection }), { code: 'KV_INVALID_OPTION', message: /canSelect/ });
  await scheduler.close();
  const able = new OnlineScheduler({ cache, engine });
  t.throws(() => able.submit({ tokens, maxNewTokens: 1, selection, caching: 'off' }), { code: 'KV_INVALID_OPTION' });
  t.throws(() => able.submit({ tokens, maxNewTokens: 1, selection, handOver: true }), { code: 'KV_INVALID_OPTION' });
  await able.close();
  await world.store(Int32Array.from({ length: 40 }, (_, at) => at));
  const wrong: TokenSelector = { name: 'wrong', looksAt: 'nothing', select: () => Int32Array.of(3, 3) };
  const text = Int32Array.from({ length: 40 }, (_, at) => at);
  const lossy: Sequence = await world.lossy(text, { ratio: 0.5, selector: wrong });
  await world.finish(lossy, text);
  t.true(isKvError(lossy.selection!.failure, 'KV_INVALID_OPTION'));
  lossy.release();
  await world.close();
});
