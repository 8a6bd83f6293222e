// FinishedTexts: text that was computed and whose sequence is over, waiting to be stored in tiers. Bounded in tokens:
// first the texts are dropped whose prompts found nothing, which return least (a prompt that found something goes on
// with a text that has returned), those that wait longest first; and counted. Without tiers nothing is kept.

import type { PrefixDomain } from '../prefix/domain.js';
import type { ReleasedRequest } from '../prefix/eviction/eviction-policy.js';
import type { PrefixIndex } from '../prefix/prefix-index.js';
import type { TextScope } from '../prefix/text-scope.js';
import type { KnownTokens } from './sequence-tokens.js';

/** What a sequence has left in the cache. */
export interface FinishedText {
  readonly domain: PrefixDomain;
  readonly text: Int32Array;
  readonly request: ReleasedRequest;
  /** Priority level of the request. */
  readonly level: number;
}

export class FinishedTexts {
  readonly #waiting: FinishedText[] = [];
  #tokens = 0;
  #listener: (() => void) | undefined;
  readonly #mostTokens: number;
  /** Texts that were dropped, so far. Read only. */
  dropped = 0;

  /** @param mostTokens Tokens that wait at most. */
  constructor(mostTokens = 2 ** 22) {
    this.#mostTokens = mostTokens;
  }

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
    const { length, promptTokens = length, sharedTokens } = path;
    const request = {
      promptTokens, newTokens: Math.max(0, promptTokens - sharedTokens),
      answerTokens: Math.max(0, length - promptTokens),
    };
    this.#waiting.push({ domain: index.domainOf(path), text: buffer.slice(0, length), request, level: path.level });
    this.#tokens += path.length;
    while (this.#tokens > this.#mostTokens && this.#waiting.length > 1) this.#dropLeast();
    this.#listener();
  }

  #dropLeast(): void {
    const least = this.#waiting.findIndex(({ request }) => request.newTokens === request.promptTokens);
    const [dropped] = this.#waiting.splice(Math.max(0, least), 1);
    this.#tokens -= dropped!.text.length;
    this.dropped += 1;
  }

  /** Forgets those that are dropped. */
  drop(scope: TextScope): void {
    const kept = this.#waiting.filter(({ domain, text }) => !scope.covers(domain, text));
    this.clear();
    this.#waiting.push(...kept);
    this.#tokens = kept.reduce((sum, { text }) => sum + text.length, 0);
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
