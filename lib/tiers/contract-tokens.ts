// What the contract suite checks of a tier that reads single tokens (`Tier.getTokens`): exact rows, nothing beside
// them, and damage that costs only the reads that touch it.

import assert = require('node:assert/strict');

import { Random } from '../base/random.js';
import { type ContractStore, digestOf, type MadeBlock, readsExactly as getsExactly, stored } from './contract-store.js';
import type { Tier, TierTokens, TierTokensGet } from './tier.js';

type TokenTier = Tier & Required<Pick<Tier, 'getTokens'>>;

function readsTokens(tier: Tier): tier is TokenTier {
  return tier.getTokens !== undefined;
}

/** Parts of one stripe each. */
function partsOf(...parts: readonly (readonly [stripe: number, tokens: readonly number[]])[]): TierTokens[] {
  return parts.map(([stripe, tokens]) => ({ stripe, tokens: Int32Array.from(tokens) }));
}

/** The rows that parts name, as the payload has them. */
function rowsOf(
  { record, payload }: MadeBlock, parts: readonly TierTokens[], stripeTokenBytes: readonly number[],
): Uint8Array {
  const rows = parts.flatMap(({ stripe, tokens }) => {
    const before = stripeTokenBytes.slice(0, stripe).reduce((sum, bytes) => sum + bytes, 0);
    const bytes = stripeTokenBytes[stripe]!;
    return [...tokens].map((
      token,
    ) => payload.subarray(before * record.tokens.length + token * bytes).subarray(0, bytes));
  });
  return Buffer.concat(rows);
}

/** Reads parts into memory with a margin around it; the bytes are right, or it is a miss. */
async function exactOrMiss(
  store: ContractStore, tier: TokenTier, block: MadeBlock, parts: readonly TierTokens[],
): Promise<TierTokensGet> {
  const margin = 67; // odd, so that the rows lie at no good address
  const rows = rowsOf(block, parts, store.stripeTokenBytes);
  const memory = new Uint8Array(rows.length + 2 * margin).fill(0xa5);
  const into = memory.subarray(margin, margin + rows.length);
  const result = await tier.getTokens(block.record.key, parts, into);
  assert.ok(!result.isFound || Buffer.compare(into, rows) === 0, 'other bytes came back for tokens');
  assert.ok(
    memory.every((byte, at) => byte === 0xa5 || (at >= margin && at < margin + rows.length)),
    'bytes beside the rows were written');
  assert.ok(Number.isSafeInteger(result.readBytes) && Number.isSafeInteger(result.chunks));
  return result;
}

async function readsExactly(
  store: ContractStore, tier: TokenTier, block: MadeBlock, parts: readonly TierTokens[],
): Promise<void> {
  const result = await exactOrMiss(store, tier, block, parts);
  assert.ok(result.isFound, `tokens of a block are not there: ${result.isFound ? '' : result.reason}`);
  const isAny = parts.some(({ tokens }) => tokens.length > 0);
  assert.equal(result.chunks > 0, isAny, 'chunks are counted where tokens are read');
  assert.ok(result.readBytes >= (isAny ? 1 : 0));
}

/** By title. */
export const tokenChecks: Readonly<Record<string, (store: ContractStore) => Promise<void>>> = {
  'single tokens come back with exactly their bytes, and nothing beside them is written': async (store) => {
    const { tier } = await store.open();
    if (!readsTokens(tier)) return;
    const random = new Random(14);
    for (const tokens of [1, 16, 257, 3_000]) {
      const block = store.block(tokens, { tokens });
      await stored(tier, block);
      const some =
        (): number[] => Array.from({ length: tokens }, (_, token) => token).filter(() => random.integer(10) === 0);
      const all = Array.from({ length: tokens }, (_, token) => token);
      await readsExactly(store, tier, block, []);
      await readsExactly(store, tier, block, partsOf([0, [0]], [3, [tokens - 1]]));
      await readsExactly(store, tier, block, partsOf([2, some()], [1, []], [0, some()], [2, some()]));
      await readsExactly(store, tier, block, partsOf([0, all], [1, all], [2, all], [3, all]));
    }
  },

  'tokens of a block, of a stripe or of a place that is not there are absent': async (store) => {
    const { tier } = await store.open();
    if (!readsTokens(tier)) return;
    const block = store.block(1);
    const read = async (key: string, parts: readonly TierTokens[], bytes: number): Promise<void> => {
      const result = await tier.getTokens(key, parts, new Uint8Array(bytes));
      assert.ok(!result.isFound, 'tokens came back that are nowhere');
      assert.equal(result.reason, 'absent');
    };
    await read(block.record.key, partsOf([0, [0]]), 64);
    await stored(tier, block);
    await read(digestOf('unknown'), partsOf([0, [0]]), 64);
    await read(block.record.key, partsOf([0, [3, 16]]), 128);
    await read(block.record.key, partsOf([0, [-1]]), 64);
    await read(block.record.key, partsOf([4, [0]]), 64);
    await read(block.record.key, partsOf([0, [0]]), 65);
    await read(block.record.key, partsOf([0, [0, 1]]), 127);
    await readsExactly(store, tier, block, partsOf([0, [0]]));
  },

  'tokens that are read while their block is put or removed are exact or a miss': async (store) => {
    const { tier } = await store.open();
    if (!readsTokens(tier)) return;
    const block = store.block(1, { tokens: 200 });
    const parts = partsOf([0, [0, 3, 199]], [3, [7]]);
    for (let round = 0; round < 8; round += 1) {
      await Promise.all([
        tier.put(block.record, block.payload),
        ...Array.from({ length: 3 }, () => exactOrMiss(store, tier, block, parts)),
      ]);
      await readsExactly(store, tier, block, parts);
      await Promise.all([
        exactOrMiss(store, tier, block, parts), tier.remove([block.record.key]), exactOrMiss(store, tier, block, parts),
      ]);
      assert.ok(!(await exactOrMiss(store, tier, block, parts)).isFound);
    }
    await stored(tier, block);
    await tier.close();
    assert.ok(!(await exactOrMiss(store, tier, block, parts)).isFound, 'a closed tier has tokens');
  },

  'a block that is reordered keeps its bytes, and one that cannot be stays as it was': async (store) => {
    const { tier } = await store.open();
    assert.ok(
      tier.chunkBytes === undefined || (Number.isSafeInteger(tier.chunkBytes) && tier.chunkBytes > 0),
      '`chunkBytes` is a number of bytes');
    if (tier.reorder === undefined) return;
    const block = store.block(1, { tokens: 100 });
    await stored(tier, block);
    for (const step of [99, 37, 1]) {
      // steps that share no divisor with 100
      const order = Int32Array.from({ length: 100 }, (_, row) => (row * step + 5) % 100);
      const result = await tier.reorder(block.record.key, order);
      assert.ok(result.isStored || result.reason !== undefined);
      await getsExactly(tier, block);
      if (readsTokens(tier)) await readsExactly(store, tier, block, partsOf([0, [0, 5, 99]], [3, [41, 42]]));
    }
    for (const order of [[0], [], Array.from({ length: 100 }, () => 0)]) {
      assert.equal((await tier.reorder(block.record.key, Int32Array.from(order))).isStored, false);
    }
    assert.equal((await tier.reorder(digestOf('unknown'), Int32Array.of(0))).isStored, false);
    await getsExactly(tier, block);
    if (!tier.isLasting) return;
    await tier.close();
    await getsExactly((await store.open()).tier, block);
  },

  'damage costs only the tokens that share a checksum with it': async (store) => {
    const { tier } = await store.open();
    if (!readsTokens(tier) || tier.borrow === undefined) return; // there is no way to damage it from here
    const block = store.block(1, { tokens: 4_096 });
    await stored(tier, block);
    const all = Array.from({ length: 4_096 }, (_, token) => token);
    await readsExactly(store, tier, block, partsOf([0, all]));
    const borrowed = tier.borrow(block.record.key)!;
    borrowed.payload[64 * 4_095]! ^= 4; // in the last token of the first stripe
    borrowed.release();
    const damaged = await exactOrMiss(store, tier, block, partsOf([0, [0, 4_095]]));
    assert.ok(!damaged.isFound, 'damage was not seen');
    assert.equal(damaged.reason, 'corrupt');
    await readsExactly(store, tier, block, partsOf([0, [0, 1, 2]], [1, all]));
  },
};
