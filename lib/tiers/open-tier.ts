// OpenTier: one tier at work for a cache: what it has, how full it is, how fast, and what it did. It makes room before it puts, and forgets what
// the tier lost. Calls of the tier that fail are refusals and misses.

import { Absences, type BlockAbsence } from './absences.js';
import type { HostMemory } from './host-memory.js';
import { LoadEstimate } from './load-estimate.js';
import type { StoredBlock, StoredTexts } from './stored-texts.js';
import { TierContents } from './tier-contents.js';
import { TierCounts } from './tier-counts.js';
import type { BlockRecord, BorrowedBlock, GetMiss, PutRefusal, Tier, TierGet } from './tier.js';

/** Puts that are under way at most. */
const mostPuts = 16;

/** A payload that can be loaded, until `release`. */
export interface Fetched {
  readonly payload: Uint8Array;
  readonly sums: Uint32Array;
  readonly from: OpenTier;
  release(): void;
}

/** Why there is none. `no-memory`: there is no room for the payload now. */
export interface Missed {
  readonly reason: GetMiss | 'no-memory';
}

export class OpenTier {
  readonly tier: Tier;
  readonly contents: TierContents;
  readonly estimate = new LoadEstimate();
  readonly counts = new TierCounts();
  readonly absences = new Absences();
  state: 'opening' | 'open' | 'failed' | 'closed' = 'opening';
  readonly #texts: StoredTexts;
  readonly #report: (error: unknown) => void;
  #puts = 0;
  readonly #waiting: (() => void)[] = [];

  /** @param report Hears of failures that no call reports. */
  constructor(tier: Tier, number: number, texts: StoredTexts, importantTokens: (block: StoredBlock) => number, report: (error: unknown) => void) {
    this.tier = tier;
    this.contents = new TierContents(tier, number, texts, importantTokens);
    this.#texts = texts;
    this.#report = report;
  }

  /** Whether it is in service and has the block. */
  has(block: StoredBlock): boolean {
    return this.state === 'open' && this.contents.has(block);
  }

  /** Resolves when one more put may be under way: a tier that writes slowly has its writers wait. */
  async room(): Promise<void> {
    while (this.#puts >= mostPuts) await new Promise<void>((resolve) => { this.#waiting.push(resolve); });
  }

  /**
   * Puts a block, after making room for it; resolves when the tier is done with the payload. `isWanted`: whether it may still be found, asked
   * again whenever time has passed.
   */
  async put(block: StoredBlock, record: BlockRecord, payload: Uint8Array, isWanted: () => boolean): Promise<void> {
    const { contents, tier, counts } = this;
    block.pins += 1;
    await this.room();
    this.#puts += 1;
    try {
      if (!isWanted()) return;
      if (this.state !== 'open') {
        this.#refused(block, 'failed');
        return;
      }
      await this.makeRoom(record.bytes, block);
      if (!isWanted()) return;
      const beganMs = performance.now();
      let put = await tier.put(record, payload);
      if (!put.isStored && put.reason === 'full') {
        await this.#evict(contents.sizeOf(record.bytes), block);
        put = await tier.put(record, payload);
      }
      if (put.isStored && !isWanted()) {
        await this.#remove([block]);
      } else if (put.isStored) {
        contents.add(block, record.bytes);
        counts.stored(record.bytes, performance.now() - beganMs);
        this.#supersede(block);
      } else {
        this.#refused(block, put.reason);
        if (put.error !== undefined) this.#report(put.error);
      }
    } catch (error) { // a tier of the user's that throws
      this.#refused(block, 'failed');
      this.#report(error);
    } finally {
      this.#puts -= 1;
      for (const wake of this.#waiting.splice(0)) wake(); // each looks again
      block.pins -= 1;
      this.#texts.prune(block);
    }
  }

  /** The block's payload: the tier's own, or its copy in memory of `scratch`. */
  fetch(block: StoredBlock, bytes: number, scratch: HostMemory, signal: AbortSignal | undefined): Promise<Fetched | Missed> {
    return this.tier.borrow === undefined ? this.#get(block, bytes, scratch, signal) : Promise.resolve(this.borrow(block));
  }

  /** The block's payload in the tier's own memory; a tier that lends none has none there. */
  borrow(block: StoredBlock): Fetched | Missed {
    let borrowed: BorrowedBlock | undefined;
    try {
      borrowed = this.tier.borrow?.(block.key);
    } catch (error) { // a tier of the user's that throws
      this.#report(error);
      return { reason: 'failed' };
    }
    if (borrowed === undefined) {
      if (this.tier.borrow !== undefined) this.#lose(block, 'lost');
      return { reason: 'absent' };
    }
    this.contents.beginReading(block);
    let isOver = false;
    return {
      payload: borrowed.payload, sums: borrowed.sums, from: this,
      release: () => {
        if (isOver) return;
        isOver = true;
        this.contents.endReading(block);
        borrowed.release();
      },
    };
  }

  /** How many of these blocks the tier has, from the first on, which others may have stored. */
  async find(keys: readonly string[], signal: AbortSignal): Promise<number> {
    if (this.state !== 'open' || this.tier.find === undefined || keys.length === 0) return 0;
    try {
      return Math.max(0, Math.min(keys.length, Math.floor(await this.tier.find(keys, signal)) || 0));
    } catch (error) { // a tier of the user's that throws
      this.#report(error);
      return 0;
    }
  }

  /** Memory of the tier in which a payload can be made; undefined: it lends none now. */
  lend(bytes: number): Uint8Array | undefined {
    try {
      return this.tier.lend?.(bytes);
    } catch (error) { // a tier of the user's that throws
      this.#report(error);
      return undefined;
    }
  }

  /** Takes back memory that was lent and not put. */
  giveBack(payload: Uint8Array): void {
    try {
      this.tier.giveBack?.(payload);
    } catch (error) { // a tier of the user's that throws
      this.#report(error);
    }
  }

  /** Removes what is too much once a payload of so many bytes comes, but not what `coming` hangs on. */
  async makeRoom(bytes: number, coming: StoredBlock | undefined): Promise<void> {
    const excess = this.contents.excess(bytes);
    if (excess > 0) await this.#evict(excess, coming);
  }

  /** Drops blocks, which are found there no more. */
  forget(blocks: readonly StoredBlock[]): void {
    for (const block of blocks) this.contents.remove(block);
    this.#remove(blocks).catch(this.#report);
  }

  /** Drops all that it has, and what is on its way there; a store that others share keeps what it has. */
  clear(): void {
    this.absences.clear();
    const blocks = [...this.contents.blocks()];
    if (this.tier.find === undefined) this.forget(blocks);
    else for (const block of blocks) this.contents.remove(block);
  }

  /** What came from it was not what was stored. */
  damaged(block: StoredBlock): void {
    this.counts.damaged += 1;
    this.#lose(block, 'corrupt');
  }

  /** The tier says that it no longer has the block. */
  lose(key: string): void {
    const block = this.#texts.find(key);
    if (block === undefined) return;
    this.contents.remove(block);
    this.absences.note(key, 'lost');
  }

  async close(): Promise<void> {
    this.state = 'closed';
    await this.tier.close();
  }

  /** The end of a shorter text that a longer one has whole is of no further use. */
  #supersede(block: StoredBlock): void {
    const shorter = this.#texts.startOf(block);
    if (shorter === undefined || shorter.children.length > 0 || !this.contents.has(shorter) || this.contents.isRead(shorter)) return;
    this.forget([shorter]);
  }

  async #get(block: StoredBlock, bytes: number, scratch: HostMemory, signal: AbortSignal | undefined): Promise<Fetched | Missed> {
    const { contents, counts } = this;
    const payload = scratch.take(bytes);
    if (payload === undefined) return { reason: 'no-memory' };
    contents.beginReading(block);
    const beganMs = performance.now();
    let got: TierGet;
    try {
      got = await this.tier.get(block.key, payload, signal);
    } catch (error) { // a tier of the user's that throws
      got = { isFound: false, reason: 'failed', error };
    } finally {
      contents.endReading(block);
    }
    if (got.isFound) {
      counts.loaded(bytes, performance.now() - beganMs);
      return { payload, sums: got.sums, from: this, release: () => { scratch.give(payload); } };
    }
    scratch.give(payload);
    counts.missed(got.reason);
    if (got.error !== undefined) this.#report(got.error);
    if (got.reason === 'absent') this.#lose(block, 'lost');
    if (got.reason === 'corrupt') this.#lose(block, 'corrupt');
    return { reason: got.reason };
  }

  async #evict(bytes: number, coming: StoredBlock | undefined): Promise<void> {
    const evicted = this.contents.evict(bytes, (block) => isAbove(block, coming));
    this.counts.evicted += evicted.length;
    for (const { key } of evicted) this.absences.note(key, 'evicted');
    await this.#remove(evicted);
  }

  #refused(block: StoredBlock, reason: PutRefusal): void {
    this.counts.refused(reason);
    this.absences.note(block.key, reason);
  }

  #lose(block: StoredBlock, reason: BlockAbsence): void {
    this.absences.note(block.key, reason);
    this.forget([block]);
  }

  async #remove(blocks: readonly StoredBlock[]): Promise<void> {
    if (blocks.length > 0) await this.tier.remove(blocks.map(({ key }) => key));
  }
}

function isAbove(block: StoredBlock, below: StoredBlock | undefined): boolean {
  for (let at = below; at !== undefined; at = at.parent) if (at === block) return true;
  return false;
}
