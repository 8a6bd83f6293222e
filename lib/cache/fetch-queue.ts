// FetchQueue: blocks on their way from tiers, in their order, some ahead of those that are loaded. What has arrived
// belongs to the caller, which releases it; `releaseAll` gives back the rest.

import type { Fetched, Missed } from '../tiers/open-tier.js';
import { readsAtATime } from '../tiers/load-estimate.js';
import type { StoredBlock } from '../tiers/stored-texts.js';

/** A block's payload, or why there is none. */
export type FetchEnd = Fetched | Missed;

export class FetchQueue {
  readonly #blocks: readonly StoredBlock[];
  readonly #fetch: (block: StoredBlock) => Promise<FetchEnd>;
  /** By block: on its way; undefined: not yet, or taken. */
  readonly #pending: (Promise<FetchEnd> | undefined)[] = [];
  readonly #arrived: (FetchEnd | undefined)[] = [];
  #isOver = false;

  constructor(blocks: readonly StoredBlock[], fetch: (block: StoredBlock) => Promise<FetchEnd>) {
    this.#blocks = blocks;
    this.#fetch = fetch;
  }

  /**
   * What has arrived from block `at` on without a gap, one at least, which it waits for, and half as many as are read
   * at a time at most. They are the caller's.
   */
  async next(at: number): Promise<FetchEnd[]> {
    for (let ahead = at; ahead < Math.min(at + readsAtATime, this.#blocks.length); ahead += 1) this.#begin(ahead);
    await this.#pending[at];
    const arrived: FetchEnd[] = [];
    for (let index = at; index < at + readsAtATime / 2 && this.#arrived[index] !== undefined; index += 1) {
      arrived.push(this.#arrived[index]!);
      this.#arrived[index] = undefined;
      this.#pending[index] = undefined;
    }
    return arrived;
  }

  /** The reads that are under way; with `releaseAll` what they bring goes back. */
  get underWay(): readonly Promise<FetchEnd>[] {
    return this.#pending.filter((pending) => pending !== undefined);
  }

  /** Nothing more is wanted: what has arrived and what still comes goes back. */
  releaseAll(): void {
    this.#isOver = true;
    for (const arrived of this.#arrived) if (arrived !== undefined && !('reason' in arrived)) arrived.release();
  }

  #begin(index: number): void {
    if (this.#pending[index] !== undefined) return;
    const pending = this.#pending[index] = this.#fetch(this.#blocks[index]!).then((end) => {
      if (this.#isOver && !('reason' in end)) end.release();
      else this.#arrived[index] = end;
      return end;
    });
    pending.catch(() => { /* `next` rejects with it, once it waits for it */ });
  }
}
