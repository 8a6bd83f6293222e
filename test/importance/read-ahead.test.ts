// What is read while layers before are computed: all that does not depend on a layer's own queries, and no more than that.

import test, { type ExecutionContext } from 'ava';

import { allHeads, firstAndLast, hostTier, probeHeads, type SelectionOptions, type Sequence, type Tier, type TierTokens, type TokenSelector } from 'virtual-kv';

import { Random } from '#internal/base/random.js';
import { turn } from '../cache/tiers/device-index.js';
import { seedOf } from '../helpers/seed.js';
import { MiB, SelectionWorld, sizes } from './selection-world.js';

const seed = seedOf('read ahead');
const { layers, queryHeads, headDim } = sizes;
const right = { queries: new Float32Array(queryHeads * headDim).fill(0.1), queryHeads };
const stored = 80;

/** Host memory that notes what it is asked for: the stripes of each read, once, and what ends it. */
function watched(): { readonly tier: Tier; readonly taken: () => string[]; readonly signals: Set<AbortSignal> } {
  const inner = hostTier({ bytes: 16 * MiB });
  const asked = new Set<string>();
  const signals = new Set<AbortSignal>();
  const { getTokens } = inner;
  const nameOf = (stripe: number): string => (stripe >= 2 * layers ? `probes ${stripe - 2 * layers}` : `${stripe % 2 === 0 ? 'K' : 'V'} ${stripe >> 1}`);
  inner.getTokens = (key, parts: readonly TierTokens[], into, signal) => {
    for (const { stripe } of parts) asked.add(nameOf(stripe));
    if (signal !== undefined) signals.add(signal);
    return getTokens!.call(inner, key, parts, into, signal);
  };
  return {
    tier: inner, signals,
    taken: () => {
      const names = [...asked].sort();
      asked.clear();
      return names;
    },
  };
}

/** What is read before any layer is asked for, and, by layer, from then on until the next is. */
async function readsOf(t: ExecutionContext, selection: SelectionOptions): Promise<{ readonly first: string[]; readonly then: string[][]; readonly sequence: Sequence; readonly world: SelectionWorld }> {
  const random = new Random(seed);
  const { tier, taken } = watched();
  const world = new SelectionWorld(t, random, { tiers: [tier] });
  const text = Int32Array.from({ length: stored + 1 }, () => random.integer(sizes.vocabularyTokens));
  await world.store(text.subarray(0, stored));
  taken();
  const sequence = await world.lossy(text, selection);
  const settle = async (): Promise<string[]> => {
    for (let turns = 0; turns < 20; turns += 1) await turn();
    return taken();
  };
  const first = await settle();
  const then: string[][] = [];
  for (let layer = 0; layer < layers; layer += 1) {
    await sequence.selection!.load(layer, right);
    then.push(await settle());
  }
  t.true(sequence.selection!.isLoaded);
  return { first, then, sequence, world };
}

async function end({ sequence, world }: { readonly sequence: Sequence; readonly world: SelectionWorld }): Promise<void> {
  sequence.release();
  await world.close();
}

for (const [name, selection] of [['tokens that are chosen without looking', { ratio: 0.2, selector: firstAndLast() }], ['all tokens', { ratio: 1, selector: probeHeads() }]] as const) {
  test(`${name}: K and V of a layer are read while the layer before is computed`, async (t) => {
    const reads = await readsOf(t, selection);
    t.deepEqual([reads.first, ...reads.then], [['K 0', 'V 0'], ['K 1', 'V 1'], ['K 2', 'V 2'], []]);
    await end(reads);
  });
}

test('probe keys are read two layers ahead; K and V, which depend on queries, when they are chosen', async (t) => {
  const reads = await readsOf(t, { ratio: 0.2, selector: { ...probeHeads(), select: ({ count }) => Int32Array.from({ length: count }, (_, token) => token) } });
  t.deepEqual([reads.first, ...reads.then], [['probes 0', 'probes 1'], ['K 0', 'V 0', 'probes 2'], ['K 1', 'V 1'], ['K 2', 'V 2']]);
  await end(reads);
});

test('of keys that a selector looks at none is read twice', async (t) => {
  const reads = await readsOf(t, { ratio: 0.2, selector: allHeads() });
  t.deepEqual([reads.first, ...reads.then], [['K 0', 'K 1'], ['K 2', 'V 0'], ['V 1'], ['V 2']]);
  await end(reads);
});

test('a selector is asked once for each layer, in order, and never in the middle of `acquire`', async (t) => {
  const asked: number[] = [];
  let isAcquired = false;
  const selector: TokenSelector = { name: 'noting', looksAt: 'nothing', select: ({ layer, count }) => {
    t.true(isAcquired);
    asked.push(layer);
    return Int32Array.from({ length: count }, (_, token) => token);
  } };
  const random = new Random(seed);
  const world = new SelectionWorld(t, random);
  const text = Int32Array.from({ length: stored + 1 }, () => random.integer(sizes.vocabularyTokens));
  await world.store(text.subarray(0, stored));
  const { selected } = await world.cache.prefixes.promote({ tokens: text, selection: { ratio: 0.2, selector } });
  const sequence = world.cache.acquire({ tokens: text, selected });
  isAcquired = true;
  await world.finish(sequence, text);
  t.deepEqual(asked, [0, 1, 2]);
  sequence.release();
  await world.close();
});

test('what is read ahead for a sequence that fails is given up, and no more is read', async (t) => {
  const random = new Random(seed);
  const { tier, taken, signals } = watched();
  const world = new SelectionWorld(t, random, { tiers: [tier] });
  const text = Int32Array.from({ length: stored + 1 }, () => random.integer(sizes.vocabularyTokens));
  await world.store(text.subarray(0, stored));
  for (const selector of [firstAndLast(), probeHeads()]) {
    signals.clear();
    const sequence = await world.lossy(text, { ratio: 0.2, selector });
    await turn();
    t.true(signals.size > 0);
    t.true([...signals].every(({ aborted }) => !aborted));
    await t.throwsAsync(sequence.selection!.load(0, { ...right, signal: AbortSignal.abort() }), { code: 'KV_SELECTION_LOST' });
    t.true([...signals].every(({ aborted }) => aborted));
    taken();
    await t.throwsAsync(sequence.selection!.load(1, right), { code: 'KV_SELECTION_LOST' });
    t.deepEqual(taken(), []);
    sequence.release();
  }
  await world.close();
});
