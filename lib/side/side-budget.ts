// SideBudget: the bound on all side tensors of a cache together, whatever their pages' sizes. Sequences and leases keep what they have;
// cached rows are evicted for new ones, of the text that was used longest ago first and its end before its start: a text that misses its
// end costs a short computation, one that misses its start all of it.

import { createError } from '../base/errors.js';
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
    return this.#tensors.reduce((sum, { usedBytes, idleBytes }) => sum + usedBytes - idleBytes, 0);
  }

  get quarantinedBytes(): number {
    return this.#tensors.reduce((sum, { open: { pool } }) => sum + pool.counts().quarantinedPages * pool.pageBytes, 0);
  }

  /** Sees that `pages` more pages can be taken. Throws KV_OUT_OF_PAGES when sequences and leases have too much for that; then nothing is evicted. */
  makeRoom(tensor: SideTensor, pages: number): void {
    if (pages <= 0) return;
    const { pool } = tensor.open;
    const bytes = pages * pool.pageBytes;
    const needed = this.unevictableBytes + bytes;
    if (needed > this.#bytes || !this.#evictTo(this.#bytes - bytes)) {
      throw createError('KV_OUT_OF_PAGES', {
        needRows: pages, haveRows: 0, needPages: pages, havePages: Math.max(0, pages - Math.ceil((needed - this.#bytes) / pool.pageBytes)),
        budgetBytes: this.#bytes, pageBytes: pool.pageBytes, slots: [], pagesPerRow: 1, sideTensor: tensor.open.name,
      });
    }
    this.#trim(Math.max(0, pages - pool.counts().freePages) * pool.pageBytes, tensor);
  }

  /** Raises or lowers the bound; what sequences and leases have stays. Throws what the driver throws. */
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
    let use = Infinity;
    for (const tensor of this.#tensors) {
      const { oldestUse } = tensor;
      const isWider = oldestUse === use && oldest !== undefined && tensor.open.tokenBytes > oldest.open.tokenBytes;
      if (oldestUse >= use && !isWider) continue;
      oldest = tensor;
      use = oldestUse;
    }
    return oldest?.evict() ?? false;
  }

  /** Gives free pages back to the system where, with `more` bytes created, there would be more than the bound. */
  #trim(more: number, keeper: SideTensor | undefined): void {
    let created = more;
    for (const { open: { pool } } of this.#tensors) created += pool.counts().createdPages * pool.pageBytes;
    for (const tensor of this.#tensors) {
      if (created <= this.#bytes) return;
      const { pool } = tensor.open;
      if (tensor === keeper) continue;
      created -= pool.counts().freePages * pool.pageBytes;
      pool.trim();
    }
  }
}
