// SideBudget: the bound on all side tensors of a cache together, whatever their pages' sizes. Sequences and leases keep what they have;
// cached rows are evicted for new ones, of the text that was used longest ago first and its end before its start: a text that misses its
// end costs a short computation, one that misses its start all of it. What the eviction policy of K and V withholds is not evicted.

import { createError } from '../base/errors.js';
import type { SideVictim } from './cover-victims.js';
import type { SideTensor } from './side-tensor.js';

export class SideBudget {
  readonly #tensors: readonly SideTensor[];
  #bytes: number;

  constructor(tensors: readonly SideTensor[], bytes: number) {
    this.#tensors = tensors;
    this.#bytes = bytes;
  }

  get bytes(): number {
    return this.#bytes;
  }

  /** Bytes that are mapped, cached or set aside. */
  get usedBytes(): number {
    return this.#tensors.reduce((sum, tensor) => sum + tensor.usedBytes, 0);
  }

  /** Of these, bytes that cannot be evicted: what sequences and leases have, and what is in quarantine. */
  get unevictableBytes(): number {
    return this.usedBytes - this.#idleBytes;
  }

  get #idleBytes(): number {
    return this.#tensors.reduce((sum, { idleBytes }) => sum + idleBytes, 0);
  }

  get #evictableBytes(): number {
    return this.#tensors.reduce((sum, { idleBytes, withheldBytes }) => sum + idleBytes - withheldBytes, 0);
  }

  get quarantinedBytes(): number {
    return this.#tensors.reduce((sum, { open: { pool } }) => sum + pool.counts().quarantinedPages * pool.pageBytes, 0);
  }

  /**
   * Sees that `pages` more pages can be taken. Throws KV_OUT_OF_PAGES when sequences, leases and text that the eviction policy withholds
   * have too much for that; then nothing is evicted.
   */
  makeRoom(tensor: SideTensor, pages: number): void {
    if (pages <= 0) return;
    const { pool } = tensor.open;
    const bytes = pages * pool.pageBytes;
    const { used, created } = this.#pagesWith(tensor, pages);
    const needed = used + bytes > this.#bytes ? used - this.#evictableBytes + bytes : 0;
    if (needed > this.#bytes || (needed > 0 && !this.#evictTo(this.#bytes - bytes))) {
      throw createError('KV_OUT_OF_PAGES', {
        needRows: pages, haveRows: 0, needPages: pages, havePages: Math.max(0, pages - Math.ceil((needed - this.#bytes) / pool.pageBytes)),
        budgetBytes: this.#bytes, pageBytes: pool.pageBytes, slots: [], pagesPerRow: 1, sideTensor: tensor.open.name,
      });
    }
    if (created > this.#bytes) this.#trim(pages, tensor);
  }

  /** Raises or lowers the bound; what sequences and leases have stays, and what is withheld. Throws what the driver throws. */
  set(bytes: number): void {
    for (const { open: { pool } } of this.#tensors) pool.setBudget(Math.max(bytes, pool.pageBytes));
    this.#bytes = bytes;
    this.#evictTo(bytes);
    this.#trim(0, undefined);
  }

  /** Evicts until no more than `bytes` are used. False: that cannot be. */
  #evictTo(bytes: number): boolean {
    while (this.usedBytes > bytes) if (!this.#evictOldest()) return false;
    return true;
  }

  #evictOldest(): boolean {
    let oldest: SideTensor | undefined;
    let best: SideVictim | undefined;
    for (const tensor of this.#tensors) {
      const victim = tensor.nextVictim();
      if (victim === undefined || (best !== undefined && !goesBefore(victim, best))) continue;
      oldest = tensor;
      best = victim;
    }
    return oldest?.evict() ?? false;
  }

  /** Bytes that are used now, and bytes of all pages with `pages` more of `keeper` in use: asks each pool once. */
  #pagesWith(keeper: SideTensor | undefined, pages: number): { readonly used: number; readonly created: number } {
    let used = 0;
    let created = 0;
    for (const tensor of this.#tensors) {
      const { pool } = tensor.open;
      const { createdPages, freePages, earmarkedPages } = pool.counts();
      used += (createdPages - freePages + earmarkedPages) * pool.pageBytes;
      created += (createdPages + (tensor === keeper ? Math.max(0, pages - freePages) : 0)) * pool.pageBytes;
    }
    return { used, created };
  }

  /** Gives free pages back to the system where, with `pages` more of `keeper` in use, there would be more than the bound. */
  #trim(pages: number, keeper: SideTensor | undefined): void {
    let { created } = this.#pagesWith(keeper, pages);
    for (const tensor of this.#tensors) {
      if (created <= this.#bytes) return;
      const { pool } = tensor.open;
      if (tensor === keeper) continue;
      created -= pool.counts().freePages * pool.pageBytes;
      pool.trim();
    }
  }
}

/** Where two were used at the same time, by requests that carried both tensors: rows that only one of them has are of no use to these. */
function goesBefore(one: SideVictim, other: SideVictim): boolean {
  return (one.lastUse - other.lastUse || other.tokens - one.tokens || other.tokenBytes - one.tokenBytes) < 0;
}

/** Bytes and pages of all side tensors, now. */
export interface SideCounts {
  /** What may be used at most. */
  readonly budgetBytes: number;
  /** Mapped, cached or set aside. */
  readonly usedBytes: number;
  /** Of `usedBytes`, those that running sequences and hand-overs have. What is neither held nor in quarantine is evicted when it is needed, unless the eviction policy withholds its text. */
  readonly heldBytes: number;
  /** Of `usedBytes`, those that the driver neither unmapped nor put back as they were: lost until the cache closes. */
  readonly quarantinedBytes: number;
  /** Side slots that only leases keep. */
  readonly leasedSlots: number;
  /** Bytes in the CPU's memory that are registered with the device, which copies there by itself. */
  readonly registeredBytes: number;
  /**
   * Bytes that came from the device to memory which it would not register (a limit on locked memory, say), since the cache was opened:
   * the same rows, but each such copy waits.
   */
  readonly pageableBytes: number;
}
