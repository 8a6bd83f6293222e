// BackgroundErrors: failures that no call could report, because the call they belong to was over (a fence asked for
// after a commit, rows taken back after a release) or there was none (the mapper). Each is counted and published on the
// diagnostics channel `virtual-kv:late-error` as { cache, error, lateErrors }, once the running JavaScript has finished
// (in a microtask), so that a subscriber may use the cache; what failed is tried again when there is reason to.

import diagnostics = require('node:diagnostics_channel');

import type { NativeMapperState } from './native.js';

const channel = diagnostics.channel('virtual-kv:late-error');

export class BackgroundErrors {
  readonly #cache: object;
  #ofMappers = 0;
  #own = 0;

  constructor(cache: object) {
    this.#cache = cache;
  }

  /** All so far, as far as this thread has heard from the mapper. */
  get count(): number {
    return this.#own + this.#ofMappers;
  }

  /** Does what follows a call that is done already: a failure of it is late. */
  attempt(work: () => void): void {
    try {
      work();
    } catch (error) {
      this.report(error);
    }
  }

  /** A failure that the call in which it was found does not share. */
  report(error: unknown): void {
    this.#own += 1;
    this.#publish(error);
  }

  /** A mapper has failed since it had met `before` failures; of several the last one is published. */
  addOfMapper({ lateErrors, lastError }: NativeMapperState, before: number): void {
    this.#ofMappers += lateErrors - before;
    this.#publish(lastError);
  }

  #publish(error: unknown): void {
    if (!channel.hasSubscribers) return;
    const message = { cache: this.#cache, error, lateErrors: this.count };
    queueMicrotask(() => {
      channel.publish(message);
    });
  }
}
