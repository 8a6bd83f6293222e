// The contract of a tier as checks that every tier passes, ours and one of your own: `virtual-kv/testing` has them. They need no test
// framework, and say nothing of speed. Each check opens tiers of its own, in namespaces of its own, and closes them.

import assert = require('node:assert/strict');

import { callable } from '../base/options.js';
import {
  ContractStore, type ContractStoreOptions, digestOf, isAbsent, readsExactly, sameRecord, stored, type TierContractPlace,
} from './contract-store.js';
import { tokenChecks } from './contract-tokens.js';
import type { Tier } from './tier.js';

export type { TierContractPlace };

/** One check: `run` rejects with an AssertionError where the tier breaks the contract. */
export interface TierContractCheck {
  /** What the tier does, as a sentence. Unique among the checks. */
  readonly title: string;
  /** Runs it. Independent of the other checks: they may run in any order, and at the same time. */
  run(): Promise<void>;
}

/** Gets a store and leaves closing to the suite. */
type Check = (store: ContractStore) => Promise<void>;

/** By title. */
const checks: Readonly<Record<string, Check>> = {
  'a block comes back with the bytes and the sums that were put': async (store) => {
    const { tier } = await store.open();
    const blocks = [store.block(1), store.block(2)];
    await stored(tier, ...blocks);
    for (const block of [...blocks, blocks[0]!]) await readsExactly(tier, block);
  },

  'a key that was never put is absent, also in an empty store and beside others': async (store) => {
    const { tier } = await store.open();
    await isAbsent(tier, store.block(1));
    await stored(tier, store.block(2));
    await isAbsent(tier, store.block(1));
  },

  'a block has 1 … 4,096 tokens, with notes or without': async (store) => {
    const { tier } = await store.open();
    const blocks = [1, 2, 15, 16, 17, 256, 4_095, 4_096].map((tokens, seed) => store.block(seed, {
      tokens, notes: Uint8Array.from({ length: [0, 1, 5, 4_097][seed % 4]! }, (_, at) => at * 3),
    }));
    await stored(tier, ...blocks);
    for (const block of blocks) await readsExactly(tier, block);
  },

  'a payload has a byte or a few': async (store) => {
    const { tier } = await store.open();
    const blocks = [1, 2, 3, 4_095, 4_096].map((tokens, seed) => store.block(seed, { tokens }));
    await stored(tier, ...blocks);
    for (const block of blocks) await readsExactly(tier, block);
  },

  'a payload has up to 8 MiB': async (store) => {
    const { tier } = await store.open();
    const blocks = [512, 2_049, 4_096].map((tokens, seed) => store.block(seed, { tokens }));
    await stored(tier, ...blocks);
    for (const block of blocks) await readsExactly(tier, block);
  },

  'it keeps `capacityBytes`, refuses what is beyond by `full`, and has room again after a removal': async (store) => {
    const { tier } = await store.open();
    if (tier.capacityBytes === undefined) return;
    assert.ok(tier.capacityBytes >= store.capacityBytes);
    const most = Math.floor(tier.capacityBytes / (tier.sizeOf?.(65_536) ?? 65_536));
    const blocks = Array.from({ length: 2 * most }, (_, seed) => store.block(seed));
    const [within, beyond] = [blocks.slice(0, most), blocks.slice(most)];
    await stored(tier, ...within);
    const results = await Promise.all(beyond.map(({ record, payload }) => tier.put(record, payload)));
    for (const result of results) assert.ok(result.isStored || result.reason === 'full', 'a tier without room says `full`');
    for (const block of within) await readsExactly(tier, block);
    await tier.remove(blocks.slice(1).map(({ record }) => record.key));
    await stored(tier, store.block(9_999));
    await readsExactly(tier, blocks[0]!);
  },

  'what a store that is opened again finds is the whole record': async (store) => {
    const first = (await store.open()).tier;
    if (!first.isLasting) return;
    const start = store.block(1, { notes: new Uint8Array(0) });
    const blocks = [start, store.block(2, { parent: start.record, tokens: 3 }), store.block(3, { parent: start.record, notes: new Uint8Array(1_000).fill(9) })];
    await stored(first, ...blocks);
    await first.close();
    const { tier, found } = await store.open();
    for (const block of blocks) {
      await readsExactly(tier, block);
      const record = found.get(block.record.key);
      assert.ok(record !== undefined || tier.find !== undefined, 'a block was not found again');
      if (record !== undefined) sameRecord(record, block.record);
      if (tier.find !== undefined) assert.equal(await tier.find([block.record.key]), 1);
    }
  },

  'blocks of another namespace are neither found nor read': async (store) => {
    const { tier } = await store.open();
    const block = store.block(1);
    await stored(tier, block);
    if (tier.isLasting) await tier.close();
    const { tier: other, found } = await store.open(digestOf(`not ${store.namespace}`));
    assert.deepEqual([...found.keys()], []);
    await isAbsent(other, block);
    if (other.find !== undefined) assert.equal(await other.find([block.record.key]), 0);
    if (!tier.isLasting) return;
    await other.close();
    await readsExactly((await store.open()).tier, block);
  },

  'a removed block is absent, others stay, and unknown keys are passed over': async (store) => {
    const { tier } = await store.open();
    const blocks = [1, 2, 3].map((seed) => store.block(seed));
    await stored(tier, ...blocks);
    await tier.remove([blocks[1]!.record.key, digestOf('unknown'), blocks[1]!.record.key]);
    await tier.remove([]);
    await isAbsent(tier, blocks[1]!);
    await readsExactly(tier, blocks[0]!);
    await readsExactly(tier, blocks[2]!);
  },

  'a block that is put again is stored, also after it was removed': async (store) => {
    const { tier } = await store.open();
    const block = store.block(1);
    await stored(tier, block, block);
    await readsExactly(tier, block);
    await tier.remove([block.record.key]);
    await stored(tier, block);
    await readsExactly(tier, block);
  },

  'a removed block stays absent when its store is opened again': async (store) => {
    const { tier } = await store.open();
    if (!tier.isLasting) return;
    const blocks = [store.block(1), store.block(2)];
    await stored(tier, ...blocks);
    await tier.remove([blocks[0]!.record.key]);
    await tier.close();
    const { tier: next, found } = await store.open();
    await isAbsent(next, blocks[0]!);
    assert.ok(!found.has(blocks[0]!.record.key));
    await readsExactly(next, blocks[1]!);
  },

  'puts and gets of many blocks at once do not mix them up': async (store) => {
    const { tier } = await store.open();
    const blocks = Array.from({ length: 32 }, (_, seed) => store.block(seed, { tokens: 1 + (seed * 37) % 200 }));
    await Promise.all(blocks.map((block) => stored(tier, block)));
    await Promise.all([...blocks, ...blocks.toReversed()].map((block) => readsExactly(tier, block)));
  },

  'puts of one block at once all succeed, and gets of it at once all have its bytes': async (store) => {
    const { tier } = await store.open();
    const block = store.block(1, { tokens: 100 });
    await Promise.all(Array.from({ length: 8 }, () => stored(tier, block)));
    await Promise.all(Array.from({ length: 8 }, () => readsExactly(tier, block)));
    assert.ok(tier.statistics().blocks <= 1);
  },

  'a get while its block is put or removed is exact or a miss': async (store) => {
    const { tier } = await store.open();
    const block = store.block(1, { tokens: 200 });
    const exactOrMiss = async (): Promise<void> => {
      const target = new Uint8Array(block.record.bytes);
      const result = await tier.get(block.record.key, target);
      assert.ok(!result.isFound || Buffer.compare(target, block.payload) === 0, 'a block came back that was half there');
    };
    for (let round = 0; round < 8; round += 1) {
      await Promise.all([tier.put(block.record, block.payload), exactOrMiss(), exactOrMiss()]);
      await Promise.all([exactOrMiss(), tier.remove([block.record.key]), exactOrMiss()]);
      await isAbsent(tier, block);
    }
  },

  'what was put is not read again: its memory can be used for something else': async (store) => {
    const { tier } = await store.open();
    const blocks = [1, 2, 3, 4].map((seed) => store.block(seed, { tokens: 300 }));
    const memory = blocks.map(({ payload }) => Uint8Array.from(payload));
    await Promise.all(blocks.map(async ({ record }, index) => {
      assert.deepEqual(await tier.put(record, memory[index]!), { isStored: true });
      memory[index]!.fill(0xee);
    }));
    for (const block of blocks) await readsExactly(tier, block);
  },

  'payloads may lie in shared memory, at any address': async (store) => {
    const { tier } = await store.open();
    const plain = store.block(1, { tokens: 33 });
    const shared = new Uint8Array(new SharedArrayBuffer(plain.record.bytes + 3), 3);
    const block = store.block(1, { tokens: 33, payload: shared });
    await stored(tier, block);
    assert.ok(Buffer.compare(plain.payload, shared) === 0, 'put changed what it was given');
    await readsExactly(tier, plain);
    shared.fill(0);
    assert.ok((await tier.get(block.record.key, shared)).isFound);
    assert.ok(Buffer.compare(plain.payload, shared) === 0, 'a get gave other bytes in shared memory');
  },

  'a get that is cancelled resolves, and later ones are exact': async (store) => {
    const { tier } = await store.open();
    const block = store.block(1, { tokens: 200 });
    await stored(tier, block);
    const target = new Uint8Array(block.record.bytes);
    const before = await tier.get(block.record.key, target, AbortSignal.abort(new Error('mine')));
    assert.equal(typeof before.isFound, 'boolean');
    const controller = new AbortController();
    const during = tier.get(block.record.key, target, controller.signal);
    controller.abort();
    const result = await during;
    assert.ok(!result.isFound || Buffer.compare(target, block.payload) === 0);
    target.fill(0x5a);
    await readsExactly(tier, block);
    if (!result.isFound) assert.ok(target.every((byte) => byte === 0x5a), 'a cancelled get wrote after it was over');
  },

  'find counts the keys that are there, from the first to the first that is not': async (store) => {
    const { tier } = await store.open();
    if (tier.find === undefined) return;
    const blocks = Array.from({ length: 5 }, (_, seed) => store.block(seed));
    const keys = blocks.map(({ record }) => record.key);
    assert.equal(await tier.find(keys), 0);
    await stored(tier, blocks[0]!, blocks[1]!, blocks[3]!);
    assert.equal(await tier.find(keys), 2);
    assert.equal(await tier.find(keys.slice(2)), 0);
    assert.equal(await tier.find(keys.slice(3)), 1);
    assert.equal(await tier.find([keys[3]!, keys[0]!, keys[1]!]), 3);
    assert.equal(await tier.find([]), 0);
    const many = Array.from({ length: 3_000 }, (_, index) => keys[index % 2]!);
    assert.equal(await tier.find(many), many.length);
    await tier.remove([keys[0]!]);
    assert.equal(await tier.find(keys), 0);
    assert.ok((await tier.find(keys.slice(1, 2), AbortSignal.abort()) ?? 0) <= 1);
  },

  'what it lends is memory to put from, and is taken back where it is not put': async (store) => {
    const { tier } = await store.open();
    if (tier.lend === undefined) return;
    const model = store.block(1, { tokens: 128 });
    const lent = tier.lend(model.record.bytes)!;
    assert.equal(lent.length, model.record.bytes);
    const other = tier.lend(model.record.bytes)!;
    other.fill(1);
    lent.set(model.payload);
    await stored(tier, { record: model.record, payload: lent });
    tier.giveBack!(other);
    tier.lend(100)?.fill(2);
    await readsExactly(tier, model);
  },

  'what is borrowed stays as it is until it is released, also when its block is removed': async (store) => {
    const { tier } = await store.open();
    if (tier.borrow === undefined) return;
    const blocks = [store.block(1, { tokens: 128 }), store.block(2, { tokens: 128 })];
    await stored(tier, blocks[0]!);
    const { key, sums } = blocks[0]!.record;
    const borrowed = [tier.borrow(key)!, tier.borrow(key)!];
    borrowed[0]!.release();
    await tier.remove([key]);
    await stored(tier, blocks[1]!);
    assert.ok(Buffer.compare(borrowed[1]!.payload, blocks[0]!.payload) === 0);
    assert.deepEqual([...borrowed[1]!.sums], [...sums]);
    borrowed[1]!.release();
    // No comparison of a whole block: from Node.js 22 on its difference would be printed, which takes a minute.
    assert.ok(tier.borrow(key) === undefined, 'a removed block was lent');
    assert.ok(tier.borrow(digestOf('unknown')) === undefined, 'an unknown block was lent');
  },

  'its statistics count what it has': async (store) => {
    const { tier } = await store.open();
    assert.deepEqual([tier.statistics().blocks, tier.statistics().bytes], [0, 0]);
    const blocks = [1, 2, 3].map((seed) => store.block(seed));
    await stored(tier, ...blocks);
    const { blocks: count, bytes } = tier.statistics();
    assert.equal(count, 3);
    assert.ok(bytes >= blocks.reduce((sum, { record }) => sum + record.bytes, 0));
  },

  'it refuses all, by values, once it is closed; closing again changes nothing': async (store) => {
    const { tier } = await store.open();
    const block = store.block(1);
    await stored(tier, block);
    await Promise.all([tier.close(), tier.close()]);
    await tier.close();
    assert.equal((await tier.put(block.record, block.payload)).isStored, false);
    assert.equal((await tier.get(block.record.key, new Uint8Array(block.record.bytes))).isFound, false);
    if (tier.find !== undefined) assert.equal(await tier.find([block.record.key]) ?? 0, 0);
    await tier.remove([block.record.key]);
    assert.equal(typeof tier.statistics().blocks, 'number');
  },

  'a put that is under way when it is closed resolves, and what was stored is exact later': async (store) => {
    const { tier } = await store.open();
    const blocks = Array.from({ length: 16 }, (_, seed) => store.block(seed, { tokens: 500 }));
    const puts = blocks.map(({ record, payload }) => tier.put(record, payload));
    const gets = blocks.map(({ record }) => tier.get(record.key, new Uint8Array(record.bytes)));
    await tier.close();
    const results = await Promise.all(puts);
    await Promise.all(gets);
    if (!tier.isLasting) return;
    const { tier: next } = await store.open();
    for (const [index, block] of blocks.entries()) {
      const target = new Uint8Array(block.record.bytes);
      const result = await next.get(block.record.key, target);
      if (results[index]!.isStored) assert.ok(result.isFound, 'a block that was stored is gone');
      if (result.isFound) assert.ok(Buffer.compare(target, block.payload) === 0);
    }
  },
};

/** Stores of another kind than the others', by title of their check. */
const storeOptions: Readonly<Record<string, Omit<ContractStoreOptions, 'make'>>> = {
  'a payload has a byte or a few': { stripeTokenBytes: [1] },
  'a payload has up to 8 MiB': { stripeTokenBytes: [1_024, 512, 512] },
  'it keeps `capacityBytes`, refuses what is beyond by `full`, and has room again after a removal': {
    stripeTokenBytes: [2_048, 2_048], capacityBytes: 2 ** 20,
  },
};

/**
 * Checks of a tier, to be run by any test framework: `for (const { title, run } of tierContract(makeTier)) test(title, run)`.
 * `makeTier` returns a tier that was not opened, in the store that it is told. Throws KV_INVALID_OPTION.
 */
export function tierContract(makeTier: (place: TierContractPlace) => Tier | Promise<Tier>): readonly TierContractCheck[] {
  callable()(makeTier, { owner: 'tierContract', option: 'makeTier' });
  return Object.entries({ ...checks, ...levelChecks, ...tokenChecks }).map(([title, check]) => ({
    title,
    run: async () => {
      const store = new ContractStore({ make: makeTier, ...storeOptions[title] });
      try {
        await check(store);
      } finally {
        await store.close();
      }
    },
  }));
}

// What the contract of a tier says of priority levels: hints that it may keep.

/** By title. */
export const levelChecks: Readonly<Record<string, (store: ContractStore) => Promise<void>>> = {
  'a level changes nothing of a block, and is found again as it was put or set later, or not at all': async (store) => {
    const { tier } = await store.open();
    const blocks = [0, 1, 200, 255].map((level, seed) => store.block(seed, { level }));
    await stored(tier, ...blocks);
    tier.setLevel?.(blocks[1]!.record.key, 7);
    tier.setLevel?.(digestOf('unknown'), 7);
    for (const block of blocks) await readsExactly(tier, block);
    if (!tier.isLasting) return;
    await tier.close();
    const { tier: next, found } = await store.open();
    for (const block of blocks) {
      await readsExactly(next, block);
      const { key, level } = block.record;
      const told = found.get(key)?.level;
      assert.ok(
        told === undefined || told === level || (told === 7 && level === 1),
        `a block of level ${level} was found with level ${told}`);
    }
  },
};
