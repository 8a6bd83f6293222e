// What selections have chosen of a text, for the device's eviction policy: it ranks exact text, of which earlier requests have read some tokens alone.

import test from 'ava';

import { firstAndLast, hostTier, importance, type EvictionContext } from 'virtual-kv';

import { Random } from '#internal/base/random.js';
import type { PrefixIndex } from '#internal/prefix/prefix-index.js';
import { dropFromDevice } from '../cache/tiers/device-index.js';
import { randomText } from '../helpers/llama-shapes.js';
import { seedOf } from '../helpers/seed.js';
import { MiB, SelectionWorld } from './selection-world.js';

const seed = seedOf('device eviction');
/** Of a text: one extent, and less than a row. */
const tokens = 64;

const indexOf = ({ cache }: SelectionWorld): PrefixIndex => (cache.prefixes as unknown as { readonly index: PrefixIndex }).index;

/** Computes the text, or what is not cached of it, exactly. */
async function use(world: SelectionWorld, text: Int32Array, tenant?: string): Promise<void> {
  const sequence = world.cache.acquire({ tokens: text, tenant });
  await world.finish(sequence, text);
  sequence.release();
  await world.cache.prefixes.tiers!.settled();
}

/** A request that is given `count` tokens of the text in each layer, and one more of its own. */
async function select(world: SelectionWorld, text: Int32Array, count: number, tenant?: string): Promise<void> {
  const prompt = { tokens: Int32Array.of(...text, 1), tenant };
  const { selected } = await world.cache.prefixes.promote({ ...prompt, selection: { ratio: count / tokens, selector: firstAndLast({ first: 10 }) } });
  const sequence = world.cache.acquire({ ...prompt, selected });
  await world.finish(sequence, prompt.tokens);
  sequence.release();
  await world.cache.prefixes.tiers!.settled();
}

const cases = [
  { title: 'of two texts the one with two chosen tokens and two uses outlasts that with one and three', tenant: undefined, stays: 1 },
  { title: 'what selections chose of the same text in another domain says nothing', tenant: 'another', stays: 0 },
] as const;

for (const { title, tenant, stays } of cases) {
  test(`importance(): ${title} (seed ${seed})`, async (t) => {
    const random = new Random(seed);
    const world = new SelectionWorld(t, random, { tiers: [hostTier({ bytes: 16 * MiB })], policy: importance() });
    const texts = [0, 1].map(() => Int32Array.from(randomText(random, tokens)));
    for (const [index, text] of texts.entries()) {
      await use(world, text, tenant);
      dropFromDevice(world.cache);
      await select(world, text, index + 1, tenant);
      dropFromDevice(world.cache);
    }
    for (const [index, uses] of [3, 2].entries()) for (let at = 0; at < uses; at += 1) await use(world, texts[index]!);
    const kept = (): number[] => texts.map((text) => world.cache.prefixes.lookup({ tokens: text }).cachedTokens);
    t.true(kept().every((cached) => cached >= tokens - 1));
    t.is(indexOf(world).evict(1), 1);
    world.cache.counts();
    t.deepEqual(kept().map((cached) => cached > 0), [stays === 0, stays === 1]);
    await world.close();
  });
}

test(`a policy is told how many tokens of an extent were chosen; those of blocks of which nothing was count whole (seed ${seed})`, async (t) => {
  const random = new Random(seed + 1);
  let told: EvictionContext['selected'] | undefined;
  const added: number[] = [];
  const world = new SelectionWorld(t, random, {
    tiers: [hostTier({ bytes: 16 * MiB })],
    policy: (context) => {
      told = context.selected;
      const policy = importance()(context);
      return Object.assign(policy, { add: ((add) => (node: number) => { added.push(node); add(node); })(policy.add.bind(policy)) });
    },
  });
  const text = Int32Array.from(randomText(random, tokens));
  await use(world, text);
  t.is(told!(added.at(-1)!, 0, tokens), undefined, 'nothing was chosen');
  dropFromDevice(world.cache);
  await select(world, text, 12); // the first ten and the last two, of blocks of 16
  await use(world, Int32Array.of(...text, ...randomText(random, 10)));
  const node = added.at(-1)!;
  t.deepEqual([[0, tokens], [0, 16], [8, 20], [62, tokens], [60, tokens + 6]].map(([from, to]) => told!(node, from!, to!)?.chosenTokens), [12, 10, 2, 2, 8]);
  t.is(told!(node, 0, tokens)!.uses, 3, 'computed, selected, computed again');
  t.is(told!(node, tokens, tokens + 6), undefined, 'no selection had this');
  await world.close();
});
