// FinishedTexts: text that was computed and whose sequence is over, waiting to be stored in tiers. Bounded in tokens: what waits longest is
// dropped first, and counted. Without tiers nothing is kept.

import type { PrefixDomain } from '../prefix/domain.js';
import type { PrefixIndex } from '../prefix/prefix-index.js';
import type { KnownTokens } from './sequence-tokens.js';

/** What a sequence has left in the cache. */
export interface FinishedText {
  readonly domain: PrefixDomain;
  readonly text: Int32Array;
}

/** Tokens that wait at most. */
const mostTokens = 2 ** 22;

export class FinishedTexts {
  readonly #waiting: FinishedText[] = [];
  #tokens = 0;
  #listener: (() => void) | undefined;
  /** Texts that were dropped, so far. Read only. */
  dropped = 0;

  get count(): number {
    return this.#waiting.length;
  }

  /** `listener` hears when there is a text, and takes it when it likes. Undefined: texts are dropped from now on. */
  listen(listener: (() => void) | undefined): void {
    this.#listener = listener;
    if (listener === undefined) this.clear();
  }

  /** A sequence is over; `known`: what is known of its text. Transfers and what is not to be cached leave none. */
  note(known: KnownTokens | undefined, index: PrefixIndex): void {
    if (this.#listener === undefined || known === undefined) return;
    const { path, buffer } = known;
    if (!path.isStored || path.isTransfer || path.length === 0) return;
    this.#waiting.push({ domain: index.domainOf(path), text: buffer.slice(0, path.length) });
    this.#tokens += path.length;
    while (this.#tokens > mostTokens && this.#waiting.length > 1) {
      this.#tokens -= this.#waiting.shift()!.text.length;
      this.dropped += 1;
    }
    this.#listener();
  }

  /** Forgets all of them. */
  clear(): void {
    this.#waiting.length = 0;
    this.#tokens = 0;
  }

  /** The one that waits longest. */
  take(): FinishedText | undefined {
    const finished = this.#waiting.shift();
    if (finished !== undefined) this.#tokens -= finished.text.length;
    return finished;
  }
}
