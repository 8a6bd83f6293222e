// LendingTier: a tier for tests that lends memory. It overwrites lent memory once the cache has returned it, so that a
// later read of that memory finds other bytes.

import type { BlockRecord, BorrowedBlock, TierContext, TierPut } from 'virtual-kv';
import { crc32c } from '#internal/tiers/contract-store.js';

import { PlainTier } from './plain-tier.js';

/** A tier that lends memory, and writes over what is its own again. */
export class LendingTier extends PlainTier {
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

  /** Loses the block that it has had longest. */
  loseOne(): void {
    const [key] = this.blocks.keys();
    if (key !== undefined) this.#lose(key);
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
export function damaged({ blocks }: PlainTier): number {
  return [...blocks.values()].filter(({ record: { sums, tokens }, payload }) => {
    const stripe = payload.length / sums.length;
    return tokens.length * 256 !== stripe
      || sums.some((sum, at) => crc32c(payload.subarray(at * stripe, (at + 1) * stripe)) !== sum);
  }).length;
}
