// A tier in plain memory that does everything a tier can: what the contract suite is tried on. Its faults, one each, are what the suite
// must find.

import type {
  BlockRecord, BorrowedBlock, GetMiss, Tier, TierContext, TierGet, TierPut, TierStatistics, TierTokens, TierTokensGet,
} from 'virtual-kv';

export type Fault =
  | 'keeps payload' | 'swaps sums' | 'forgets removal' | 'answers after close' | 'counts holes' | 'writes beside' | 'is never full'
  | 'reuses borrowed memory' | 'finds other namespaces' | 'rejects' | 'loses the notes' | 'gives other tokens' | 'reads past damage';

interface Kept {
  readonly record: BlockRecord;
  readonly payload: Uint8Array;
  /** The same, where no one damages it: in the place of sums. */
  readonly intact: Uint8Array;
}

/** Blocks of a store, by namespace and key: what a disk would keep. */
const places = new Map<string, Map<string, Map<string, Kept>>>();

export class MemoryTier implements Tier {
  readonly name = 'memory';
  readonly isLasting = true;
  readonly takesOnlyWholeBlocks = false;
  readonly capacityBytes: number;
  readonly #store: string;
  readonly #fault: Fault | undefined;
  #blocks = new Map<string, Kept>();
  #isOpen = false;
  #stripeTokenBytes: readonly number[] = [];

  constructor(store: string, capacityBytes: number, fault?: Fault) {
    this.#store = store;
    this.#fault = fault;
    this.capacityBytes = capacityBytes;
  }

  async open(context: TierContext): Promise<void> {
    const namespaces = places.get(this.#store) ?? new Map<string, Map<string, Kept>>();
    places.set(this.#store, namespaces);
    const namespace = this.#fault === 'finds other namespaces' ? '' : context.namespace;
    this.#blocks = namespaces.get(namespace) ?? new Map<string, Kept>();
    namespaces.set(namespace, this.#blocks);
    this.#isOpen = true;
    this.#stripeTokenBytes = context.stripeTokenBytes;
    for (const { record } of this.#blocks.values()) context.found(this.#fault === 'loses the notes' ? { ...record, notes: new Uint8Array(0) } : record);
  }

  async put(record: BlockRecord, payload: Uint8Array): Promise<TierPut> {
    if (!this.#isOpen && this.#fault !== 'answers after close') {
      if (this.#fault === 'rejects') throw new Error('closed');
      return { isStored: false, reason: 'failed' };
    }
    if (this.#blocks.has(record.key)) return { isStored: true };
    const isFull = this.#usedBytes() + record.bytes > this.capacityBytes;
    if (isFull && this.#fault !== 'is never full') return { isStored: false, reason: 'full' };
    if (isFull) return { isStored: false, reason: 'failed' };
    this.#blocks.set(record.key, {
      record, payload: this.#fault === 'keeps payload' ? payload : Uint8Array.from(payload), intact: Uint8Array.from(payload),
    });
    return { isStored: true };
  }

  async get(key: string, payload: Uint8Array): Promise<TierGet> {
    const kept = this.#isOpen ? this.#blocks.get(key) : undefined;
    if (kept === undefined) return { isFound: false, reason: this.#isOpen ? 'absent' : 'failed' };
    payload.set(kept.payload);
    if (this.#fault === 'writes beside') new Uint8Array(payload.buffer, 0, 1).fill(1);
    return { isFound: true, sums: this.#fault === 'swaps sums' ? kept.record.sums.toReversed() : kept.record.sums };
  }

  async getTokens(key: string, parts: readonly TierTokens[], into: Uint8Array): Promise<TierTokensGet> {
    const kept = this.#isOpen ? this.#blocks.get(key) : undefined;
    let [at, chunks] = [0, 0];
    const miss = (reason: GetMiss): TierTokensGet => ({ isFound: false, reason, readBytes: at, chunks });
    for (const { stripe, tokens } of parts) {
      const bytes = this.#stripeTokenBytes[stripe] ?? 0;
      const start = this.#stripeTokenBytes.slice(0, stripe).reduce((sum, before) => sum + before, 0) * (kept?.record.tokens.length ?? 0);
      for (const given of tokens) {
        const token = this.#fault === 'gives other tokens' ? Math.max(0, given - 1) : given;
        if (kept === undefined || bytes === 0 || token < 0 || token >= kept.record.tokens.length || at + bytes > into.length) return miss('absent');
        const [row, intact] = [kept.payload, kept.intact].map((payload) => payload.subarray(start + token * bytes, start + (token + 1) * bytes));
        if (this.#fault !== 'reads past damage' && Buffer.compare(row!, intact!) !== 0) return miss('corrupt');
        into.set(row!, at);
        at += bytes;
        chunks += 1;
      }
    }
    return kept !== undefined && at === into.length ? { isFound: true, readBytes: at, chunks } : miss('absent');
  }

  async find(keys: readonly string[]): Promise<number> {
    if (!this.#isOpen) return 0;
    if (this.#fault === 'counts holes') return keys.filter((key) => this.#blocks.has(key)).length;
    const missing = keys.findIndex((key) => !this.#blocks.has(key));
    return missing < 0 ? keys.length : missing;
  }

  async remove(keys: readonly string[]): Promise<void> {
    for (const key of keys) {
      if (this.#fault === 'reuses borrowed memory') this.#blocks.get(key)?.payload.fill(0);
      if (this.#fault !== 'forgets removal') this.#blocks.delete(key);
    }
  }

  lend(bytes: number): Uint8Array {
    return new Uint8Array(bytes);
  }

  giveBack(): void {}

  borrow(key: string): BorrowedBlock | undefined {
    const kept = this.#blocks.get(key);
    return kept && { ...kept, sums: kept.record.sums, release: () => { /* nothing is kept for it */ } };
  }

  statistics(): TierStatistics {
    return { blocks: this.#blocks.size, bytes: this.#usedBytes() };
  }

  async close(): Promise<void> {
    this.#isOpen = false;
  }

  #usedBytes(): number {
    return [...this.#blocks.values()].reduce((sum, { record }) => sum + record.bytes, 0);
  }
}
