// SideBudget: the bound on all side tensors of a cache together, whatever their pages' sizes. Sequences and leases keep
// what they have; cached rows are evicted for new ones, of the text that was used longest ago first and its end before
// its start: a text that misses its end costs a short computation, one that misses its start all of it. What the
// eviction policy of K and V withholds is evicted last, and only while it takes more than the policy's share. Whether
// there is room is counted here and nowhere else, for all tensors and sequences of a call together, before anything is
// taken.

import { createError } from '../base/errors.js';
import type { WithheldNodes } from './side-cover.js';
import type { EvictedText, SideTensor, SideVictim } from './side-tensor.js';

/** Pages of a tensor that something new needs, beside those that are set aside for it. */
export interface SideNeed {
  readonly tensor: SideTensor;
  readonly pages: number;
}

export class SideBudget {
  readonly #tensors: readonly SideTensor[];
  readonly #withheld: Pick<WithheldNodes, 'share'>;
  #bytes: number;
  /** Whether more may be used than the bound, since it was lowered. */
  #isAbove = false;

  constructor(tensors: readonly SideTensor[], bytes: number, withheld: Pick<WithheldNodes, 'share'>) {
    this.#tensors = tensors;
    this.#withheld = withheld;
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
    const withheldBytes = this.#withheldBytes;
    return this.#idleBytes - withheldBytes + Math.max(0, withheldBytes - this.#mostWithheldBytes);
  }

  get #withheldBytes(): number {
    return this.#tensors.reduce((sum, { withheldBytes }) => sum + withheldBytes, 0);
  }

  get #mostWithheldBytes(): number {
    return this.#withheld.share * this.#bytes;
  }

  get quarantinedBytes(): number {
    return this.#tensors.reduce((sum, { open: { pool } }) => sum + pool.counts().quarantinedPages * pool.pageBytes, 0);
  }

  /** Whether all that is needed can be taken together, if only cached text is evicted for it. Evicts nothing. */
  hasRoom(needs: readonly SideNeed[]): boolean {
    const wanted = bytesOf(needs);
    if (wanted === 0 || this.usedBytes + wanted <= this.#bytes) return true;
    this.#endDropped();
    return this.usedBytes - this.#evictableBytes + wanted <= this.#bytes;
  }

  /**
   * Throws KV_OUT_OF_PAGES unless all that is needed can be taken together: when sequences, leases and the share of
   * withheld text have too much for that. Evicts nothing.
   */
  check(needs: readonly SideNeed[]): void {
    if (this.hasRoom(needs)) return;
    let bytes = this.usedBytes - this.#evictableBytes;
    for (const { tensor: { open: { name, pool } }, pages } of needs) {
      bytes += pages * pool.pageBytes;
      if (bytes <= this.#bytes) continue;
      throw createError('KV_OUT_OF_PAGES', {
        needRows: pages, haveRows: 0, needPages: pages,
        havePages: Math.max(0, pages - Math.ceil((bytes - this.#bytes) / pool.pageBytes)),
        budgetBytes: this.#bytes, pageBytes: pool.pageBytes, slots: [], pagesPerRow: 1, sideTensor: name,
      });
    }
  }

  /** Sees that all that is needed can be taken. Throws as `check`, and what the driver throws. */
  makeRoom(needs: readonly SideNeed[]): void {
    const wanted = bytesOf(needs);
    if (wanted === 0) return;
    this.check(needs);
    this.#evictTo(this.#bytes - wanted);
    this.#trim(needs);
  }

  /**
   * Raises or lowers the bound; what sequences and leases have stays, and the share of withheld text. Throws
   * KV_INVALID_OPTION for more than a driver has; then the bound is as before. Throws what the driver throws when it
   * takes nothing back; then the bound holds, and `keep` goes on.
   */
  set(bytes: number): void {
    // Never lowered: pools bound nothing that this does not, and one of several may refuse.
    for (const { open: { pool } } of this.#tensors) if (bytes > pool.memoryBudgetBytes) pool.setBudget(bytes);
    this.#bytes = bytes;
    this.#isAbove = true;
    this.keep();
  }

  /**
   * Evicts what came to be only cached since the bound was lowered below what is used. Throws what the driver throws.
   */
  keep(): void {
    if (!this.#isAbove) return;
    const isWithin = this.#evictTo(this.#bytes);
    this.#trim([]);
    this.#isAbove = !isWithin;
  }

  /** Evicts until no more than `bytes` are used. False: that cannot be. */
  #evictTo(bytes: number): boolean {
    while (this.usedBytes > bytes && this.#evictOldest('given'));
    if (this.usedBytes <= bytes) return true;
    const leastBytes = Math.max(bytes, this.usedBytes - (this.#withheldBytes - this.#mostWithheldBytes));
    while (this.usedBytes > leastBytes && this.#evictOldest('all'));
    return this.usedBytes <= bytes;
  }

  #evictOldest(text: EvictedText): boolean {
    let oldest: SideTensor | undefined;
    let best: SideVictim | undefined;
    for (const tensor of this.#tensors) {
      const victim = tensor.nextVictim(text);
      if (victim === undefined || (best !== undefined && !goesBefore(victim, best))) continue;
      oldest = tensor;
      best = victim;
    }
    return oldest?.evict(text) ?? false;
  }

  /**
   * Pages that nothing needs any more are free. What the driver refuses stays, and is reported when it is tried again.
   */
  #endDropped(): void {
    for (const tensor of this.#tensors) {
      try {
        tensor.endDropped();
      } catch {
        continue;
      }
    }
  }

  /**
   * Gives free pages back to the system where, with those that are needed in use, there would be more than the bound.
   */
  #trim(needs: readonly SideNeed[]): void {
    const pages =
      this.#tensors.map((tensor) => needs.reduce((sum, need) => sum + (need.tensor === tensor ? need.pages : 0), 0));
    let created = 0;
    this.#tensors.forEach(({ open: { pool } }, index) => {
      const { createdPages, freePages } = pool.counts();
      created += (createdPages + Math.max(0, pages[index]! - freePages)) * pool.pageBytes;
    });
    this.#tensors.forEach(({ open: { pool } }, index) => {
      if (created <= this.#bytes || pages[index]! > 0) return;
      created -= pool.counts().freePages * pool.pageBytes;
      pool.trim();
    });
  }
}

function bytesOf(needs: readonly SideNeed[]): number {
  return needs.reduce((sum, { tensor: { open: { pool } }, pages }) => sum + pages * pool.pageBytes, 0);
}

/**
 * Where two were used at the same time, by requests that carried both tensors: rows that only one of them has are of no
 * use to these.
 */
function goesBefore(one: SideVictim, other: SideVictim): boolean {
  return (one.lastUse - other.lastUse || other.tokens - one.tokens || other.tokenBytes - one.tokenBytes) < 0;
}

/** Bytes and pages of all side tensors, now. */
export interface SideCounts {
  /** What may be used at most. */
  readonly budgetBytes: number;
  /** Mapped, cached or set aside. */
  readonly usedBytes: number;
  /**
   * Of `usedBytes`, those that running sequences and hand-overs have. What is neither held nor in quarantine is evicted
   * when it is needed, unless the eviction policy withholds its text, up to the policy's share of the budget.
   */
  readonly heldBytes: number;
  /** Of `usedBytes`, those that the driver neither unmapped nor put back as they were: lost until the cache closes. */
  readonly quarantinedBytes: number;
  /** Side slots that only leases keep. */
  readonly leasedSlots: number;
  /** Bytes in the CPU's memory that are registered with the device, which copies there by itself. */
  readonly registeredBytes: number;
  /**
   * Bytes that came from the device to memory which it would not register (a limit on locked memory, say), since the
   * cache was opened: the same rows, but each such copy waits.
   */
  readonly pageableBytes: number;
}
