// TierContents: what one tier has, in the order in which it was used, and how full it is. It chooses what goes when the
// tier is full: text of the lowest priority level, and of that what is least likely to return or worth least, its end
// first, so that what stays of a text has no hole within the tier.
//
// Invariants: a block was used no earlier than the blocks behind it, since using one uses all before it, and its level
// is no lower: the one of the lowest level that was used longest ago has none behind it in the tier.

import type { PrefixDomain } from '../prefix/domain.js';
import { BlockRanking, LevelOrder, ReuseOrder, type TextReuse } from './block-order.js';
import type { StoredBlock, StoredTexts } from './stored-texts.js';
import type { Tier } from './tier.js';

/** The highest priority level. */
export const highestLevel = 255;

/** What tiers rank blocks by. */
export interface BlockWorth {
  /** How many tokens of a block selections have chosen, on average; all where none has. */
  readonly importantTokens: (block: StoredBlock) => number;
  /** Which text is likely to be used again. */
  readonly reuse: TextReuse;
}

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
  /** Which goes first: of all blocks, or where `#ranksEnds` of those with none behind them in the tier. */
  readonly #order: LevelOrder;
  /** Whether it keeps what is important. */
  readonly #ranksEnds: boolean;
  /** Undefined: a tenant may have all of it. */
  readonly tenants: TenantBytes | undefined;
  /** Bytes of the capacity that its blocks take. Read only. */
  bytes = 0;

  constructor(tier: Tier, number: number, texts: StoredTexts, worth: BlockWorth) {
    this.tier = tier;
    this.number = number;
    this.#texts = texts;
    const { keeps = 'adaptive', tenantBytes } = tier;
    this.tenants = tenantBytes === undefined ? undefined : new TenantBytes(tenantBytes, number);
    this.#ranksEnds = keeps === 'important';
    this.#order = new LevelOrder(
      () => (keeps === 'adaptive' ? new ReuseOrder(worth.reuse) : new BlockRanking(worth.importantTokens)));
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
    this.tenants?.add(block, bytes);
    if (this.#ranksEnds) {
      if (block.parent !== undefined) this.#order.delete(block.parent);
      if (!this.#hasNext(block)) this.#order.set(block);
    }
    this.use(block);
  }

  /** The tier no longer has the block. */
  remove(block: StoredBlock): void {
    const bytes = this.#blocks.get(block);
    if (bytes === undefined) return;
    this.#blocks.delete(block);
    this.#rows.delete(block);
    this.bytes -= bytes;
    this.tenants?.remove(block, bytes);
    this.#texts.place(block, this.number, false);
    this.#order.delete(block);
    const { parent } = block;
    if (this.#ranksEnds && parent !== undefined && this.#blocks.has(parent) && !this.#hasNext(parent)) {
      this.#order.set(parent);
    }
  }

  /** The text up to the block's end was used. */
  use(block: StoredBlock): void {
    for (let at: StoredBlock | undefined = block; at !== undefined; at = at.parent) {
      const bytes = this.#blocks.get(at);
      if (bytes === undefined) continue;
      this.#blocks.delete(at);
      this.#blocks.set(at, bytes);
      this.tenants?.use(at, bytes);
      if (!this.#ranksEnds || this.#order.has(at)) this.#order.set(at);
    }
  }

  /** Uses of all blocks have changed. */
  refresh(): void {
    this.#order.refresh();
  }

  /**
   * Whether a block of so many bytes that comes now has room, or is worth more than what goes first; of a tier that
   * keeps what is likely to return, once it was used again.
   */
  isWorthRoom(block: StoredBlock, payloadBytes: number): boolean {
    if (!this.takes(block, payloadBytes) || this.tenantExcess(block, payloadBytes) > 0) return false;
    if (!this.#ranksEnds) return block.uses > 1;
    return this.excess(payloadBytes) === 0 || this.#order.isAboveLowest(block);
  }

  /** False: there is no room for a block of so many bytes, and all that the tier has is of higher levels. */
  takes(block: StoredBlock, payloadBytes: number): boolean {
    return this.excess(payloadBytes) === 0 || (this.#order.lowest ?? 0) <= block.level;
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
   * Takes blocks out until `bytes` bytes are free: of the lowest level first, none above `mostLevel`, and within a
   * level those least likely to return or worth least; none that is read or that `keeps` says so of. Returns them. The
   * tier has to remove them.
   */
  evict(bytes: number, keeps: (block: StoredBlock) => boolean, mostLevel = highestLevel): StoredBlock[] {
    const evicted: StoredBlock[] = [];
    const skips = (block: StoredBlock): boolean => this.#inUse.has(block) || this.#hasNext(block) || keeps(block);
    for (let freed = 0; freed < bytes;) {
      const block = this.#order.take(skips, mostLevel);
      if (block === undefined) break;
      evicted.push(block);
      freed += this.bytesOf(block);
      this.remove(block);
    }
    return evicted;
  }

  /** Bytes of its tenant that are too many once a payload of so many comes; 0: it is on its way, and counted. */
  tenantExcess(coming: StoredBlock, payloadBytes: number): number {
    const { tenants } = this;
    if (tenants === undefined) return 0;
    return Math.max(
      0, tenants.bytesOf(coming) + (payloadBytes === 0 ? 0 : this.sizeOf(payloadBytes)) - tenants.limitBytes);
  }

  /**
   * As `evict`, of blocks of one tenant, those used longest ago first: none above the level of `coming`, nor what it
   * hangs on; none where they are too few.
   */
  evictOfTenant(coming: StoredBlock, bytes: number): StoredBlock[] {
    const above = new Set<StoredBlock>();
    for (let at = coming.parent; at !== undefined; at = at.parent) above.add(at);
    const evicted = this.tenants!.oldest(
      coming, bytes, (block) => this.#inUse.has(block) || block.level > coming.level || above.has(block));
    for (const block of evicted) this.remove(block);
    return evicted;
  }

  /**
   * Takes out what is too much once a payload of so many bytes comes, its tenant's first, but not what `coming` hangs
   * on, and nothing of a higher priority level; nothing where its tenant may not have as much, or keeps what is left.
   * `isOnItsWay`: it is counted for its tenant. Returns what the tier has to remove.
   */
  makeRoom(payloadBytes: number, coming: StoredBlock, isOnItsWay = false): StoredBlock[] {
    if (this.sizeOf(payloadBytes) > (this.tenants?.limitBytes ?? Infinity)) return [];
    const own = this.tenantExcess(coming, isOnItsWay ? 0 : payloadBytes);
    const evicted = own > 0 ? this.evictOfTenant(coming, own) : [];
    if (own > 0 && evicted.length === 0) return evicted;
    const excess = this.excess(payloadBytes);
    return excess > 0 ? [...evicted, ...this.evictFor(coming, excess)] : evicted;
  }

  /** Takes out blocks until `bytes` bytes are free for `coming`: none that it hangs on, nor of a higher level. */
  evictFor(coming: StoredBlock, bytes: number): StoredBlock[] {
    return this.evict(bytes, (block) => isAbove(block, coming), coming.level);
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

function isAbove(block: StoredBlock, below: StoredBlock): boolean {
  for (let at: StoredBlock | undefined = below; at !== undefined; at = at.parent) if (at === block) return true;
  return false;
}

// TenantBytes: how many bytes of a tier the text of each tenant takes, and which of its blocks go when that is too
// many: those used longest ago, whatever the tier prefers otherwise. Text that the tier has from before counts for
// itself until a request of its tenant uses it: keys do not tell whose it is.
//
// Invariant: of one tenant a block was used no earlier than the blocks behind it, as in the tier.

/** What a tenant has. */
interface Owned {
  bytes: number;
  /** Bytes that are on their way to the tier. */
  pendingBytes: number;
  /** Of what was its own before it was known to be this tenant's, by root: none of it was used since. */
  readonly adopted: Map<StoredBlock, Map<StoredBlock, number>>;
  /** Bytes that each other block takes, the one used longest ago first. */
  readonly blocks: Map<StoredBlock, number>;
}

/** The owner of a domain's text. */
export function ownerOf({ tenant }: PrefixDomain): string {
  return tenant === undefined ? 'no tenant' : `tenant ${tenant}`;
}

export class TenantBytes {
  /** Bytes that a tenant may have. */
  readonly limitBytes: number;
  /** The tier's bit in `StoredBlock.tiers`. */
  readonly #tier: number;
  readonly #owners = new Map<string, Owned>();

  /** @param number The tier's. */
  constructor(limitBytes: number, number: number) {
    this.limitBytes = limitBytes;
    this.#tier = 1 << number;
  }

  /** Bytes of all tenants. */
  get bytes(): number {
    return [...this.#owners.values()].reduce((sum, { bytes }) => sum + bytes, 0);
  }

  /** Bytes of the tenant whose text the block is, with those that are on their way. */
  bytesOf(block: StoredBlock): number {
    const owned = this.#owners.get(block.root.owner);
    return owned === undefined ? 0 : owned.bytes + owned.pendingBytes;
  }

  /** The block is on its way to the tier, until `arrived`. */
  coming(block: StoredBlock, bytes: number): void {
    this.#ownedBy(block).pendingBytes += bytes;
  }

  /** The block is no longer on its way: it was added, or refused. */
  arrived(block: StoredBlock, bytes: number): void {
    this.#ownedBy(block).pendingBytes -= bytes;
    this.#tidy(block);
  }

  /** The tier has the block from now on. */
  add(block: StoredBlock, bytes: number): void {
    const owned = this.#ownedBy(block);
    owned.blocks.set(block, bytes);
    owned.bytes += bytes;
  }

  /** The tier no longer has the block. */
  remove(block: StoredBlock, bytes: number): void {
    const owned = this.#ownedBy(block);
    forget(owned, block);
    owned.bytes -= bytes;
    this.#tidy(block);
  }

  /** The block was used: it is the latest of its tenant. */
  use(block: StoredBlock, bytes: number): void {
    const owned = this.#ownedBy(block);
    forget(owned, block);
    owned.blocks.set(block, bytes);
  }

  /** Text below `root` is `owner`'s from now on; it was its own. It was used before what `owner` has used. */
  rename(root: StoredBlock, owner: string): void {
    const found = this.#owners.get(root.owner);
    if (found === undefined) return;
    this.#owners.delete(root.owner);
    const known = this.#owners.get(owner);
    if (known === undefined) {
      this.#owners.set(owner, found);
      return;
    }
    known.bytes += found.bytes;
    known.pendingBytes += found.pendingBytes;
    if (found.blocks.size > 0) known.adopted.set(root, found.blocks);
  }

  /**
   * The blocks of the tenant whose text `coming` is, the one used longest ago first, that take `bytes` bytes, of those
   * that `skips` does not say so of and behind which none is left; none where they are too few.
   */
  oldest(coming: StoredBlock, bytes: number, skips: (block: StoredBlock) => boolean): StoredBlock[] {
    const owned = this.#owners.get(coming.root.owner);
    if (owned === undefined) return [];
    const found = new Set<StoredBlock>();
    let freed = 0;
    for (const blocks of [...owned.adopted.values(), owned.blocks]) {
      for (const [block, its] of blocks) {
        if (freed >= bytes) return [...found];
        if (block.children.some((child) => (child.tiers & this.#tier) !== 0 && !found.has(child)) || skips(block)) {
          continue;
        }
        found.add(block);
        freed += its;
      }
    }
    return freed >= bytes ? [...found] : [];
  }

  #ownedBy({ root: { owner } }: StoredBlock): Owned {
    let owned = this.#owners.get(owner);
    if (owned === undefined) {
      this.#owners.set(owner, owned = { bytes: 0, pendingBytes: 0, adopted: new Map(), blocks: new Map() });
    }
    return owned;
  }

  #tidy({ root: { owner } }: StoredBlock): void {
    const owned = this.#owners.get(owner)!;
    if (owned.bytes === 0 && owned.pendingBytes === 0) this.#owners.delete(owner);
  }
}

function forget({ adopted, blocks }: Owned, block: StoredBlock): void {
  if (blocks.delete(block)) return;
  const its = adopted.get(block.root);
  its?.delete(block);
  if (its?.size === 0) adopted.delete(block.root);
}
