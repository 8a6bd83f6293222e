// AdmissionControl: whether a waiting request may start now. It keeps a watermark of rows free for those that decode, lets a
// request wait for another that is computing the start of its prompt, and leases the slot. It owns no request and no order.

import type { KvCache } from '../cache/kv-cache.js';
import type { Sequence } from '../cache/sequence.js';
import { withRetries } from './driver-retries.js';
import type { Generation } from './generation.js';
import type { OtherUsers } from './other-users.js';
import { checkFits } from './request.js';

export interface AdmissionControlOptions {
  readonly cache: KvCache;
  /** Rows that an admission leaves available, while others run. */
  readonly watermarkRows: number;
  /** Tokens that must be saved by waiting for somebody who computes them; Infinity: nobody waits. */
  readonly minPendingTokens: number;
  readonly stream: bigint | undefined;
}

export class AdmissionControl {
  readonly #cache: KvCache;
  readonly #watermarkPages: number;
  readonly #minPendingTokens: number;
  readonly #stream: bigint | undefined;

  constructor({ cache, watermarkRows, minPendingTokens, stream }: AdmissionControlOptions) {
    this.#cache = cache;
    this.#watermarkPages = watermarkRows * cache.layout.pagesPerRow;
    this.#minPendingTokens = minPendingTokens;
    this.#stream = stream;
  }

  /**
   * Whether it need not wait for a prompt that is being computed; else its `leader` is who computes that. Waiting ends when the
   * common start is there, or the leader is not running any more; so it always ends.
   */
  isReady(generation: Generation, running: readonly Generation[]): boolean {
    this.#findLeader(generation, running);
    return generation.leader === undefined;
  }

  /** Whether its prompt leaves the watermark free. An estimate: `lease` has the last word. */
  hasRoom(generation: Generation): boolean {
    const { layout, pool } = this.#cache;
    const pages = layout.pagesFor(layout.rowsFor(generation.textTokens));
    const spare = pool.obtainablePages() - this.#watermarkPages;
    if (pages <= spare) return true;
    const { cachedTokens } = this.#cache.prefixes.lookup(this.#prompt(generation));
    return pages - layout.pagesFor(Math.floor(cachedTokens / layout.tokensPerRow)) <= spare;
  }

  /** A slot with its text's cached start in it. Throws what `acquire` throws. */
  lease(generation: Generation): Sequence {
    const { caching, priority } = generation.request;
    const options = { ...this.#prompt(generation), caching, priority, stream: this.#stream };
    return withRetries(() => this.#cache.acquire(options));
  }

  /**
   * Why a request that was refused with `error`, while its scheduler held nothing, can never start. Undefined: it fits, but for
   * what others hold, and can wait for them.
   */
  refusalOf({ request }: Generation, error: Error, others: OtherUsers): Error | undefined {
    try {
      checkFits(request, this.#cache.layout, this.#cache.pool);
    } catch (unfit) { // the budget is less than it was
      return unfit as Error;
    }
    return others.holdSomething() ? undefined : error;
  }

  #findLeader(generation: Generation, running: readonly Generation[]): void {
    let leader: Generation | undefined;
    let awaitedTokens = this.#minPendingTokens - 1;
    for (const other of running) {
      if (other.remainingPrefillTokens === 0 || other.text[0] !== generation.text[0]) continue;
      if (!other.sharesWith(generation)) continue;
      const common = commonTokens(generation, other);
      if (common <= awaitedTokens || common <= other.length) continue;
      leader = other;
      awaitedTokens = common;
    }
    if (leader === undefined) return;
    const { cachedTokens, pendingTokens } = this.#cache.prefixes.lookup(this.#prompt(generation));
    awaitedTokens = Math.min(awaitedTokens, pendingTokens); // less where items differ, or the cache does not store it
    if (awaitedTokens - cachedTokens < this.#minPendingTokens) return;
    generation.leader = leader;
    generation.awaitedTokens = awaitedTokens;
  }

  #prompt({ text, textTokens, request }: Generation) {
    const { items, tenant, salt, adapter } = request;
    return { tokens: text.subarray(0, textTokens), items, tenant, salt, adapter };
  }
}

/** Tokens from the start that both texts have. */
function commonTokens(generation: Generation, other: Generation): number {
  const end = Math.min(generation.textTokens, other.textTokens);
  let at = 0;
  while (at < end && generation.text[at] === other.text[at]) at += 1;
  return at;
}
