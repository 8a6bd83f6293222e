// Tiers of a user's own that answer late, refuse, lose blocks, and give other bytes or those of other blocks, while text
// is computed, dropped and promoted: what is found has the bytes that were computed last, and what tiers keep is whole.

import test from 'ava';

import type { BlockRecord, TierGet, TierPut } from 'virtual-kv';

import { Random } from '#internal/base/random.js';
import { seedOf } from '../../helpers/seed.js';
import { scaled } from '../../runner/tier.js';
import { dropFromDevice, turn } from './device-index.js';
import { damaged, LendingTier } from './lending-tier.js';
import { PlainTier } from './plain-tier.js';
import { benchOf, close, textOf } from './tier-bench.js';

const seed = seedOf('odd tiers');
const texts = 6;

type Blocks = PlainTier['blocks'];

/** Makes a tier late and odd, as long as `isOdd` says so. */
function odd<T extends PlainTier>(tier: T, random: Random, isOdd: () => boolean): T {
  const { put, get, remove } = tier;
  const late = async (): Promise<void> => {
    for (let rounds = random.integer(4); rounds > 0; rounds -= 1) await turn();
  };
  const happens = (share: number): boolean => isOdd() && random.chance(share);
  return Object.assign(tier, {
    put: async (record: BlockRecord, payload: Uint8Array): Promise<TierPut> => {
      await late();
      if (happens(0.1)) return { isStored: false, reason: random.chance(0.5) ? 'full' : 'busy' };
      if (happens(0.05)) throw new Error('mine');
      const stored = await put.call(tier, record, payload);
      await late();
      return stored;
    },
    get: async (key: string, payload: Uint8Array): Promise<TierGet> => {
      await late();
      if (happens(0.05)) return { isFound: false, reason: random.chance(0.5) ? 'absent' : 'timeout' };
      const others: Blocks = tier.blocks;
      const other = [...others.values()].find((block) => block.record.key !== key && block.payload.length === payload.length);
      const got = await get.call(tier, key, payload);
      if (got.isFound && happens(0.05)) payload[random.integer(payload.length)]! ^= 1;
      if (got.isFound && other !== undefined && happens(0.05)) {
        payload.set(other.payload);
        return { isFound: true, sums: other.record.sums.slice(), record: other.record };
      }
      await late();
      return got;
    },
    remove: async (keys: readonly string[]): Promise<void> => {
      await late();
      await remove.call(tier, keys);
      await late();
    },
  });
}

for (const on of ['host', 'mock'] as const) {
  test(`whatever tiers of one's own answer, what is found is what was computed last (${on}, seed ${seed})`, async (t) => {
    const random = new Random(seed);
    let isOdd = true;
    const memory = odd(new LendingTier('memory'), random, () => isOdd);
    Object.assign(memory, { capacityBytes: 20 * 16 * 1024 });
    const disk = odd(new PlainTier('disk'), random, () => isOdd);
    const shared = odd(new PlainTier('shared'), random, () => isOdd);
    Object.assign(shared, {
      takesOnlyWholeBlocks: true,
      find: async (keys: readonly string[]) => {
        const missing = keys.findIndex((key) => !shared.blocks.has(key));
        for (let rounds = random.integer(4); rounds > 0; rounds -= 1) await turn();
        return missing < 0 ? keys.length : missing;
      },
    });
    const bench = benchOf(t, [memory, disk, shared], { on });
    const { cache, cache: { prefixes } } = bench;
    await prefixes.tiers!.ready();
    const generations = new Int32Array(texts);
    const counts = { found: 0, promoted: 0, drops: 0 };
    const underWay = new Set<Promise<unknown>>();
    const begin = (promise: Promise<unknown>): void => {
      const over = promise.finally(() => { underWay.delete(over); });
      underWay.add(over);
    };
    const promptOf = (number: number): { tokens: Int32Array; salt: string } => ({ tokens: textOf(140, 100 * number), salt: `${number}` });
    const promote = async (number: number): Promise<void> => {
      const { promotedTokens } = await prefixes.promote(promptOf(number), { deadlineMs: 600_000 });
      counts.promoted += promotedTokens;
    };
    const serve = (number: number): void => {
      const tokens = textOf(40 + 16 * random.integer(6) + random.integer(3), 100 * number);
      const sequence = cache.acquire({ tokens, salt: `${number}` });
      const found = sequence.cachedTokens;
      bench.prepare(sequence, tokens.length - found);
      const key = 1 + number + texts * generations[number]!;
      cache.stamp(sequence, found, tokens.length - found, key);
      bench.commit();
      t.is(cache.verifyStamp(sequence, 0, tokens.length, key), 0, `text ${number}, found ${found}`);
      counts.found += found;
      sequence.release();
    };
    for (let step = scaled(600, 600); step > 0; step -= 1) {
      const number = random.integer(texts);
      const what = random.integer(10);
      if (what < 3) serve(number);
      else if (what < 6) {
        if (random.chance(0.2)) await prefixes.tiers!.settled(); // else most text goes from the device before tiers have it
        if (random.chance(0.8)) dropFromDevice(cache);
        begin(promote(number));
      } else if (what < 7 && random.chance(0.3)) {
        generations[number] = generations[number]! + 1;
        counts.drops += 1;
        begin(prefixes.drop(promptOf(number)));
      } else if (what < 8) serve(number);
      else if (random.chance(0.1)) memory.loseOne();
      else await turn();
      if (underWay.size > 8) await Promise.race(underWay);
      if (step % 50 === 0) cache.verify();
    }
    isOdd = false;
    await Promise.all(underWay);
    await prefixes.tiers!.settled();
    cache.verify();
    for (let number = 0; number < texts; number += 1) serve(number);
    await prefixes.tiers!.settled();
    dropFromDevice(cache);
    for (let number = 0, before = counts.promoted; number < texts; number += 1, before = counts.promoted) {
      await promote(number);
      t.true(counts.promoted > before, `text ${number}`);
      serve(number);
    }
    await close(bench);
    t.deepEqual([memory, disk, shared].map(damaged), [0, 0, 0]);
    t.log(counts);
    t.true(counts.found > 0 && counts.drops > 0);
  });
}
