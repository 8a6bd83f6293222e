// GenerationOutcome: how one of many requests ended, as Promise.allSettled would say it; and the collector that turns a
// generation's calls into outcomes, in the order in which they come.

import type { GenerationListener, GenerationResult } from './generation.js';

export type GenerationOutcome = PromiseSettledResult<GenerationResult> & {
  /** Of the request in the list. */
  readonly index: number;
};

export class OutcomeCollector {
  readonly #outcomes: GenerationOutcome[] = [];

  /** Tells of the request at `index`. */
  listener(index: number): GenerationListener {
    return {
      done: (value) => {
        this.#outcomes.push({ index, status: 'fulfilled', value });
      },
      failed: (reason) => {
        this.#outcomes.push({ index, status: 'rejected', reason });
      },
    };
  }

  /** Those that have come since the last call. */
  take(): GenerationOutcome[] {
    return this.#outcomes.splice(0);
  }
}
