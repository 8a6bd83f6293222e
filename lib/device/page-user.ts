// PageUser: what a page pool asks of the caches that share it.

/** A cache that can give pages back. */
export interface PageUser {
  /** Pages that `reclaim` could free now. */
  reclaimablePages(): number;
  /** Frees at least `pages` pages if it has so many to give; returns how many it freed. */
  reclaim(pages: number): number;
  /** Unmaps at least `pages` pages of idle slots if it can, freeing them or not; returns how many. */
  unmapIdle(pages: number): number;
  /** Stops taking pages in the background until it is asked to again. */
  quiesce(): void;
}
