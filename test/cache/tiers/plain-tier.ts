// PlainTier: a tier of a test's own, in plain memory that the test can look into and whose methods it can replace.

import type { BlockRecord, Tier, TierContext, TierGet, TierPut } from 'virtual-kv';

/** A tier in memory that the test can look into; it lends nothing. */
export class PlainTier implements Tier {
  readonly name: string;
  readonly isLasting = true;
  readonly takesOnlyWholeBlocks = false;
  readonly capacityBytes = undefined;
  readonly blocks = new Map<string, { record: BlockRecord; payload: Uint8Array }>();
  puts = 0;

  constructor(name: string) {
    this.name = name;
  }

  open(context: TierContext): Promise<void> {
    for (const { record } of this.blocks.values()) context.found(record);
    return Promise.resolve();
  }

  put(record: BlockRecord, payload: Uint8Array): Promise<TierPut> {
    this.puts += 1;
    this.blocks.set(record.key, { record: { ...record, tokens: record.tokens.slice(), sums: record.sums.slice() }, payload: payload.slice() });
    return Promise.resolve({ isStored: true });
  }

  get(key: string, payload: Uint8Array): Promise<TierGet> {
    const block = this.blocks.get(key);
    if (block === undefined) return Promise.resolve({ isFound: false, reason: 'absent' });
    payload.set(block.payload);
    return Promise.resolve({ isFound: true, sums: block.record.sums.slice() });
  }

  remove(keys: readonly string[]): Promise<void> {
    for (const key of keys) this.blocks.delete(key);
    return Promise.resolve();
  }

  statistics(): { blocks: number; bytes: number } {
    return { blocks: this.blocks.size, bytes: 0 };
  }

  close(): Promise<void> {
    return Promise.resolve();
  }
}
