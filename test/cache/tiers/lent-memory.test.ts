// Memory that a tier lends is its own again once it was put: no other tier is given it then.

import test from 'ava';

import type { BlockRecord, BorrowedBlock, TierContext, TierPut } from 'virtual-kv';
import { PutLimit } from '#internal/tiers/open-tier.js';
import { crc32c } from '#internal/tiers/contract-store.js';

import { turn } from './device-index.js';
import { PlainTier } from './plain-tier.js';
import { benchOf, close, serve, textOf } from './tier-bench.js';

const text = textOf(64);

/** A tier that lends memory, and writes over what is its own again. */
class LendingTier extends PlainTier {
  readonly lent = new Set<Uint8Array>();
  readonly #readers = new Map<Uint8Array, number>();
  context: TierContext | undefined;
  /** Loses each block as soon as it has it. */
  loses = false;

  override open(context: TierContext): Promise<void> {
    this.context = context;
    return Promise.resolve(); // what it has it does not tell
  }

  lend(bytes: number): Uint8Array {
    const payload = new Uint8Array(bytes);
    this.lent.add(payload);
    return payload;
  }

  giveBack(payload: Uint8Array): void {
    if (!this.lent.delete(payload)) throw new Error('it has not lent this');
    payload.fill(0xee);
  }

  override put(record: BlockRecord, payload: Uint8Array): Promise<TierPut> {
    this.puts += 1;
    const isLent = this.lent.delete(payload);
    if (this.blocks.has(record.key)) {
      if (isLent) payload.fill(0xee);
      return Promise.resolve({ isStored: true });
    }
    this.blocks.set(record.key, { record: { ...record, sums: record.sums.slice() }, payload: isLent ? payload : payload.slice() });
    if (this.loses) queueMicrotask(() => { this.#lose(record.key); });
    return Promise.resolve({ isStored: true });
  }

  borrow(key: string): BorrowedBlock | undefined {
    const block = this.blocks.get(key);
    if (block === undefined) return undefined;
    const { payload, record: { sums } } = block;
    this.#readers.set(payload, (this.#readers.get(payload) ?? 0) + 1);
    return { payload, sums, release: () => {
      this.#readers.set(payload, this.#readers.get(payload)! - 1);
      this.#reuse(payload);
    } };
  }

  override remove(keys: readonly string[]): Promise<void> {
    const gone = keys.flatMap((key) => this.blocks.get(key) ?? []);
    void super.remove(keys);
    for (const { payload } of gone) this.#reuse(payload);
    return Promise.resolve();
  }

  #lose(key: string): void {
    this.context!.lost([key]);
    void this.remove([key]);
  }

  #reuse(payload: Uint8Array): void {
    const isKept = [...this.blocks.values()].some((block) => block.payload === payload);
    if (!isKept && (this.#readers.get(payload) ?? 0) === 0) payload.fill(0xee);
  }
}

/** Blocks of which some stripe has other bytes than it was stored with. */
function damaged({ blocks }: PlainTier): number {
  return [...blocks.values()].filter(({ record: { sums, tokens }, payload }) => {
    const stripe = payload.length / sums.length;
    return tokens.length * 256 !== stripe
      || sums.some((sum, at) => crc32c(payload.subarray(at * stripe, (at + 1) * stripe)) !== sum);
  }).length;
}

test('what memory has already goes on to slower tiers from there, not from memory that it took back', async (t) => {
  const [memory, slow] = [new LendingTier('memory'), new PlainTier('slow')];
  const first = benchOf(t, [memory]);
  serve(first, text, 3);
  await close(first);
  t.is(memory.blocks.size, 4);
  const again = Object.assign(new LendingTier('memory'), { blocks: memory.blocks });
  const bench = benchOf(t, [again, slow]);
  serve(bench, text, 3);
  await close(bench);
  t.is(slow.blocks.size, 4);
  t.is(damaged(slow), 0);
});

for (const loses of [false, true]) {
  test(`a tier behind another lends memory, ${loses ? 'loses what is put at once, ' : ''}and no tier has other bytes`, async (t) => {
    const [plain, memory] = [new PlainTier('plain'), Object.assign(new LendingTier('memory'), { loses })];
    const slow = new PlainTier('slow');
    const { put } = PlainTier.prototype;
    for (const tier of [plain, slow]) {
      tier.put = async (record, payload) => {
        for (let round = 0; round < 3; round += 1) await turn();
        return put.call(tier, record, payload);
      };
    }
    const bench = benchOf(t, [plain, memory, slow]);
    serve(bench, text, 3);
    await bench.cache.prefixes.tiers!.settled();
    t.is(bench.cache.metrics.lateErrors, 0);
    await close(bench);
    t.deepEqual([damaged(plain), damaged(slow), damaged(memory)], [0, 0, 0]);
    t.is(memory.lent.size, 0, 'all is put or given back');
    if (!loses) t.deepEqual([plain.blocks.size, memory.blocks.size, slow.blocks.size], [4, 4, 4]);
  });
}

test('memory of a tier that cannot be read in place is not borrowed for others', async (t) => {
  const memory = new LendingTier('memory');
  Object.assign(memory, { borrow: undefined, loses: true });
  const slow = new PlainTier('slow');
  const bench = benchOf(t, [memory, slow]);
  serve(bench, text, 3);
  await close(bench);
  t.deepEqual([slow.blocks.size, damaged(slow)], [4, 0]);
});

test('of many puts that wait, no more go on than may be under way', async (t) => {
  const puts = new PutLimit();
  let [begun, most] = [0, 0];
  const all = Array.from({ length: 100 }, async () => {
    await puts.begin();
    begun += 1;
    most = Math.max(most, begun);
    await turn();
    begun -= 1;
    puts.end();
  });
  await Promise.all(all);
  await puts.idle();
  t.is(most, 16);
});
