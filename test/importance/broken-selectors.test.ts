// Selectors that are wrong: they throw, choose what is no choice, are no longer what they were when they were given, or meddle with what they choose for. The
// request loses its speed and nothing else; and what a selector may do is done.

import test, { type ExecutionContext } from 'ava';

import { isKvError, OnlineScheduler, type GenerationResult, type LayerChoice, type LayerQueries, type SelectionOptions, type Sequence, type TokenSelector } from 'virtual-kv';

import { Random } from '#internal/base/random.js';
import { dropFromDevice } from '../cache/tiers/device-index.js';
import { difference, mostLikely } from '../helpers/logits.js';
import { seedOf } from '../helpers/seed.js';
import { type SelectionWorld, sizes, storedText, type StoredText } from './selection-world.js';
import { slow } from '../runner/slow.js';
import { sampled } from '../runner/tier.js';

const seed = seedOf('wrong selectors');
const right: LayerQueries = { queries: new Float32Array(sizes.queryHeads * sizes.headDim).fill(0.1), queryHeads: sizes.queryHeads };

const worldOf = (t: ExecutionContext): Promise<StoredText> => storedText(t, new Random(seed));

/** What a scheduler answers to the text, one token. */
async function answer({ cache, engine }: SelectionWorld, tokens: Int32Array, chosen: SelectionOptions): Promise<GenerationResult> {
  const scheduler = new OnlineScheduler({ cache, engine });
  const result = await scheduler.submit({ tokens, maxNewTokens: 1, selection: chosen }).result;
  await scheduler.close();
  await cache.prefixes.tiers!.settled();
  dropFromDevice(cache);
  return result;
}

const broken: Readonly<Record<string, TokenSelector['select']>> = {
  'throws': () => { throw new Error('no choice today'); },
  'chooses a token twice': () => Int32Array.of(3, 3),
  'chooses in another order': () => Int32Array.of(5, 4),
  'chooses what is not there': ({ tokens }) => Int32Array.of(tokens),
  'chooses below the first token': () => Int32Array.of(-1, 2),
  'returns a list': () => [1, 2] as unknown as Int32Array,
  'returns numbers of another kind': () => Float32Array.of(1, 2) as unknown as Int32Array,
  'returns a promise': () => Promise.resolve(Int32Array.of(1)) as unknown as Int32Array,
  'returns null': () => null as unknown as Int32Array,
  'is async and fails': (() => Promise.reject(new Error('later'))) as unknown as TokenSelector['select'],
  ...Object.fromEntries([undefined, null, 0, ''].map((thrown): [string, TokenSelector['select']] => [`throws ${JSON.stringify(thrown) ?? 'undefined'} in the last layer`, ({ layer, count }) => {
    if (layer === sizes.layers - 1) throw thrown; // eslint-disable-line @typescript-eslint/only-throw-error -- on purpose
    return Int32Array.from({ length: count }, (_, token) => token);
  }])),
};
for (const [what, select] of sampled(Object.entries(broken), 3)) {
  for (const looksAt of ['nothing', 'probe-keys'] as const) {
    test(`a selector that ${what} (looks at ${looksAt}): the answer is exact, and the failure is counted as late`, async (t) => {
      const { world, text, exact } = await worldOf(t);
      const { lateErrors } = world.cache.metrics;
      const result = await answer(world, text, { ratio: 0.2, selector: { name: 'broken', looksAt, select } });
      t.deepEqual([...result.tokens], [mostLikely(exact)]);
      t.is(result.selection, undefined);
      t.is(world.cache.metrics.lateErrors, lateErrors + 1);
      t.like(world.cache.prefixes.tiers!.metrics().selections, { sequences: 1, lostSequences: 1 });
      await world.close();
    });
  }
}

test('what a selector throws that is no error, or nothing, is a failure all the same', async (t) => {
  const { world, text } = await worldOf(t);
  const mine = new Error('mine');
  for (const thrown of [undefined, null, 0, '', Number.NaN, mine]) {
    const lossy = await world.lossy(text, { ratio: 0.2, selector: { name: 'broken', looksAt: 'keys', select: () => { throw thrown; } } }); // eslint-disable-line @typescript-eslint/only-throw-error
    const error: unknown = await lossy.selection!.load(0, right).then(() => undefined, (error: unknown) => error);
    t.true(error === mine || isKvError(error, 'KV_INVALID_OPTION'), String(thrown));
    t.is(lossy.selection!.failure, error as Error);
    lossy.release();
  }
  await world.close();
});

slow('many selectors')('a selector is read once, when it is given: what it says of itself later changes nothing', async (t) => {
  const { world, text } = await worldOf(t);
  const kinds = ['nothing', 'probe-keys', 'keys'] as const;
  for (const looksAt of kinds) {
    for (const later of [...kinds, 'values']) {
      let reads = 0;
      const selector = {
        name: 'turncoat', first: 3,
        get looksAt() { return (reads += 1) > 1 ? later : looksAt; },
        select({ count }: LayerChoice) { return Int32Array.from({ length: count }, (_, token) => this.first + token); },
      };
      const { selected } = await world.cache.prefixes.promote({ tokens: text, selection: { ratio: 0.2, selector: selector as TokenSelector } });
      selector.select = () => Int32Array.of(79);
      const lossy = world.cache.acquire({ tokens: text, selected });
      const logits = await world.finish(lossy, text);
      const chosen = new Set(Array.from({ length: 16 }, (_, token) => 3 + token));
      t.true(difference(logits, world.plain.logits(text, { from: 0, to: 80, choose: () => chosen }).at(-1)!) < 2e-5, `${looksAt}, then ${later}`);
      t.is(reads, 1);
      lossy.release();
    }
  }
  await world.close();
});

slow('many selectors')('a selector may choose fewer tokens than it was asked for, none, and more; what it does to its array afterwards changes nothing', async (t) => {
  const { world, text } = await worldOf(t);
  for (const looksAt of ['nothing', 'probe-keys', 'keys'] as const) {
    for (const chosen of [[], [7], Array.from({ length: 40 }, (_, token) => 2 * token)]) {
      const selector: TokenSelector = { name: 'own', looksAt, select: () => {
        const array = Int32Array.from(chosen);
        queueMicrotask(() => { array.fill(79); });
        return array;
      } };
      const lossy = await world.lossy(text, { ratio: 0.1, selector });
      const logits = await world.finish(lossy, text);
      t.is(lossy.selection!.failure, undefined);
      t.is(lossy.selection!.counts.selectedTokens, sizes.layers * chosen.length);
      const expected = world.plain.logits(text, { from: 0, to: 80, choose: () => new Set(chosen) }).at(-1)!;
      for (const [token, logit] of logits.entries()) t.true(Math.abs(logit - expected[token]!) < 1e-4);
      lossy.release();
    }
  }
  await world.close();
});

/** What a selector may do in the middle of its choice, and what becomes of the layer. */
const meddling: Readonly<Record<string, (world: SelectionWorld, sequence: Sequence, abort: AbortController) => void>> = {
  'aborts its signal': (_, __, abort) => { abort.abort(); },
  'releases its sequence': (_, sequence) => { sequence.release(); },
  'preempts all': ({ cache }) => { cache.prefixes.reset({ preempt: true }); },
  'loads its layer again': (_, { selection }, { signal }) => { selection!.load(0, { ...right, signal }).catch(() => { /* judged by the layer */ }); },
  'acquires and releases another slot': ({ cache }) => { cache.acquire({ tokens: [1, 2, 3] }).release(); },
};
for (const [what, meddle] of Object.entries(meddling)) {
  test(`a selector that ${what} in the middle of its choice harms nothing else`, async (t) => {
    const { world, text, exact } = await worldOf(t);
    for (const looksAt of ['nothing', 'probe-keys', 'keys'] as const) {
      const abort = new AbortController();
      let sequence: Sequence | undefined = undefined;
      let isOver = false;
      const selector: TokenSelector = { name: 'meddling', looksAt, select: ({ count }) => {
        if (sequence !== undefined && !isOver) { // some are asked for the first layer before it is there
          isOver = true;
          meddle(world, sequence, abort);
        }
        return Int32Array.from({ length: count }, (_, token) => token);
      } };
      sequence = await world.lossy(text, { ratio: 0.2, selector });
      for (let layer = 0; layer < sizes.layers; layer += 1) {
        const error: unknown = await sequence.selection!.load(layer, { ...right, signal: abort.signal }).then(() => undefined, (error: unknown) => error);
        t.true(error === undefined || isKvError(error, 'KV_SELECTION_LOST') || isKvError(error, 'KV_SLOT_RELEASED'), String(error));
      }
      t.true(isOver);
      if (!sequence.isReleased) sequence.release();
      await world.cache.prefixes.tiers!.settled();
      world.cache.prefixes.reset();
      await world.store(text.subarray(0, 80));
      t.deepEqual([...(await answer(world, text, { ratio: 1 })).tokens], [mostLikely(exact)]);
      world.cache.prefixes.reset();
      await world.store(text.subarray(0, 80));
    }
    t.is(world.cache.counts().activeSlots, 0);
    await world.close();
  });
}
