// PoolMember: what a page pool asks of the caches that share it.

/** A cache that can give pages back. */
export interface PageUser {
  /** Pages that `reclaim` could free now. */
  reclaimablePages(): number;
  /** Pages that it keeps though nothing that runs needs them: cached text that its eviction policy withholds, and slots in quarantine. */
  withheldPages(): number;
  /** Frees at least `pages` pages, or all that are reclaimable; returns how many it freed. */
  reclaim(pages: number): number;
  /** Unmaps at least `pages` pages of idle slots, or all, whether that frees them or not; returns how many it unmapped. */
  unmapIdle(pages: number): number;
  /** Stops taking pages in the background until its next request. */
  quiesce(): void;
}

/** A cache of the pool. */
export interface PoolMember {
  readonly supply: PageUser;
  readonly leases: {
    /** Asks whether queued work is over; true when some is, and memory was kept for it. */
    hearFences(): boolean;
  };
}
