// InstantCalls: calls of one tier that it answers at once: its statistics, memory that it lends, levels of its blocks.
// What a tier of the user's own throws is reported, and the call counts as not answered.

import { readStatistics } from './tier-answers.js';
import type { TierCounts } from './tier-counts.js';
import type { Tier, TierStatistics } from './tier.js';

export class InstantCalls {
  readonly #tier: Tier;
  readonly #counts: TierCounts;
  readonly #report: (error: unknown) => void;
  /** Whether it gave its statistics when it was last asked. */
  #hasStatistics = true;

  constructor(tier: Tier, counts: TierCounts, report: (error: unknown) => void) {
    this.#tier = tier;
    this.#counts = counts;
    this.#report = report;
  }

  /**
   * The tier's own numbers; undefined: it gave none. That is counted, and the first of several failures is reported.
   */
  statistics(): TierStatistics | undefined {
    try {
      const statistics = readStatistics(this.#tier.statistics(), this.#tier.name);
      this.#hasStatistics = true;
      return statistics;
    } catch (error) {
      this.#counts.failedStatistics += 1;
      if (this.#hasStatistics) this.#report(error);
      this.#hasStatistics = false;
      return undefined;
    }
  }

  /** Memory of the tier in which a payload can be made; undefined: it lends none now. */
  lend(bytes: number): Uint8Array | undefined {
    return this.#try(() => this.#tier.lend?.(bytes));
  }

  /** Gives back memory that was lent and not put. */
  giveBack(payload: Uint8Array): void {
    this.#try(() => this.#tier.giveBack?.(payload));
  }

  /** Tells it the level of a block that it has. */
  setLevel(key: string, level: number): void {
    this.#try(() => this.#tier.setLevel?.(key, level));
  }

  #try<T>(call: () => T): T | undefined {
    try {
      const answer = call();
      if (answer instanceof Promise) answer.catch(this.#report); // of an async method: the cache uses no answer of it
      return answer;
    } catch (error) {
      this.#report(error);
      return undefined;
    }
  }
}
