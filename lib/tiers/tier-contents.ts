// TierContents: what one tier has, in the order in which it was used, and how full it is. It chooses what goes when the tier is full: the
// text used longest ago, or worth least, its end first, so that what stays of a text has no hole within the tier.
//
// Invariant: a block was used no earlier than the blocks behind it, since using one uses all before it: the one used longest ago has
// none behind it in the tier.

import { BlockRanking } from './block-ranking.js';
import type { StoredBlock, StoredTexts } from './stored-texts.js';
import type { Tier } from './tier.js';

export class TierContents {
  readonly tier: Tier;
  /** Its place among the tiers, the fastest first. */
  readonly number: number;
  readonly #texts: StoredTexts;
  /** Bytes that each block takes, the one used longest ago first. */
  readonly #blocks = new Map<StoredBlock, number>();
  /** Of blocks that were stored in another order than the text's, as far as known: the row of each token. */
  readonly #rows = new Map<StoredBlock, Int32Array>();
  /** Blocks that are being read, with how many readers. */
  readonly #inUse = new Map<StoredBlock, number>();
  /** By worth, of a tier that keeps so. */
  readonly #ranking: BlockRanking | undefined;
  /** Bytes of the capacity that its blocks take. Read only. */
  bytes = 0;

  /** @param importantTokens How many tokens of a block selections have chosen, on average; all where none has. */
  constructor(tier: Tier, number: number, texts: StoredTexts, importantTokens: (block: StoredBlock) => number) {
    this.tier = tier;
    this.number = number;
    this.#texts = texts;
    const { keeps = 'recent' } = tier;
    this.#ranking = keeps === 'recent' ? undefined : new BlockRanking(keeps === 'frequent' ? () => 1 : importantTokens);
  }

  get count(): number {
    return this.#blocks.size;
  }

  has(block: StoredBlock): boolean {
    return this.#blocks.has(block);
  }

  /** The tier has the block from now on. */
  add(block: StoredBlock, payloadBytes: number): void {
    if (this.#blocks.has(block)) return;
    const bytes = this.sizeOf(payloadBytes);
    this.bytes += bytes;
    this.#texts.place(block, this.number, true);
    this.#blocks.set(block, bytes);
    if (block.parent !== undefined) this.#ranking?.delete(block.parent);
    if (!this.#hasNext(block)) this.#ranking?.set(block);
    this.use(block);
  }

  /** The tier no longer has the block. */
  remove(block: StoredBlock): void {
    const bytes = this.#blocks.get(block);
    if (bytes === undefined) return;
    this.#blocks.delete(block);
    this.#rows.delete(block);
    this.bytes -= bytes;
    this.#texts.place(block, this.number, false);
    this.#ranking?.delete(block);
    const { parent } = block;
    if (parent !== undefined && this.#blocks.has(parent) && !this.#hasNext(parent)) this.#ranking?.set(parent);
  }

  /** The text up to the block's end was used. */
  use(block: StoredBlock): void {
    for (let at: StoredBlock | undefined = block; at !== undefined; at = at.parent) {
      const bytes = this.#blocks.get(at);
      if (bytes === undefined) continue;
      this.#blocks.delete(at);
      this.#blocks.set(at, bytes);
      if (this.#ranking?.has(at) === true) this.#ranking.set(at);
    }
  }

  /** Uses of all blocks have changed. */
  refresh(): void {
    this.#ranking?.refresh();
  }

  /** Whether a block of so many bytes that comes now has room, or is worth more than what goes first; of a tier that keeps what was used last, once it was used again. */
  isWorthRoom(block: StoredBlock, payloadBytes: number): boolean {
    if (this.#ranking === undefined) return block.uses > 1;
    return this.excess(payloadBytes) === 0 || this.#ranking.isAboveLowest(block);
  }

  /** Nothing removes the block until `endReading`. */
  beginReading(block: StoredBlock): void {
    this.#inUse.set(block, (this.#inUse.get(block) ?? 0) + 1);
  }

  endReading(block: StoredBlock): void {
    const readers = this.#inUse.get(block)! - 1;
    if (readers === 0) this.#inUse.delete(block);
    else this.#inUse.set(block, readers);
  }

  isRead(block: StoredBlock): boolean {
    return this.#inUse.has(block);
  }

  /** Bytes of the capacity that a payload of so many bytes takes. */
  sizeOf(payloadBytes: number): number {
    return this.tier.sizeOf?.(payloadBytes) ?? payloadBytes;
  }

  /** Bytes that are too many once a payload of so many comes. */
  excess(payloadBytes: number): number {
    return Math.max(0, this.bytes + this.sizeOf(payloadBytes) - (this.tier.capacityBytes ?? Infinity));
  }

  /**
   * Takes blocks out until `bytes` bytes are free, those used longest ago or worth least first, and none that is read or that `keeps` says so of;
   * returns them. The tier has to remove them.
   */
  evict(bytes: number, keeps: (block: StoredBlock) => boolean): StoredBlock[] {
    return this.#ranking === undefined ? this.#evictOldest(bytes, keeps) : this.#evictLeast(this.#ranking, bytes, keeps);
  }

  #evictLeast(ranking: BlockRanking, bytes: number, keeps: (block: StoredBlock) => boolean): StoredBlock[] {
    const evicted: StoredBlock[] = [];
    for (let freed = 0; freed < bytes;) {
      const block = ranking.take((each) => this.#inUse.has(each) || keeps(each));
      if (block === undefined) break;
      evicted.push(block);
      freed += this.bytesOf(block);
      this.remove(block);
    }
    return evicted;
  }

  #evictOldest(bytes: number, keeps: (block: StoredBlock) => boolean): StoredBlock[] {
    const evicted: StoredBlock[] = [];
    let freed = 0;
    for (const [block, size] of this.#blocks) {
      if (freed >= bytes) break;
      if (this.#inUse.has(block) || this.#hasNext(block) || keeps(block)) continue;
      evicted.push(block);
      freed += size;
      this.remove(block);
    }
    return evicted;
  }

  /** The row of each token of a block, as far as it is known; undefined: they are in the order of the text. */
  rowsOf(block: StoredBlock): Int32Array | undefined {
    return this.#rows.get(block);
  }

  /** The tier has stored the block anew in this order, unless it has lost it since. */
  noteRows(block: StoredBlock, rows: Int32Array): void {
    if (this.#blocks.has(block)) this.#rows.set(block, rows);
  }

  /** All blocks, the one used longest ago first. */
  blocks(): IterableIterator<StoredBlock> {
    return this.#blocks.keys();
  }

  /** Bytes of the capacity that a block takes which the tier has. */
  bytesOf(block: StoredBlock): number {
    return this.#blocks.get(block) ?? 0;
  }

  /** Whether the tier has a block behind this one. */
  #hasNext(block: StoredBlock): boolean {
    return block.children.some(({ tiers }) => (tiers & (1 << this.number)) !== 0);
  }
}
