// GenerationOutcome: how one of many requests ended, as Promise.allSettled would say it; and the collector that turns a
// generation's calls into outcomes, in the order in which they come.

import { ChangeSignal } from '../device/change-signal.js';
import { nextChange } from '../cache/wait.js';
import type { GenerationListener, GenerationResult } from './generation.js';

/** How a request of a list ended. */
export type GenerationOutcome = PromiseSettledResult<GenerationResult> & {
  /** Of the request in the list. */
  readonly index: number;
};

export class OutcomeCollector {
  readonly #outcomes: GenerationOutcome[] = [];
  readonly #came = new ChangeSignal();

  /** Tells of the request at `index`. */
  listener(index: number): GenerationListener {
    return {
      done: (value) => {
        this.#outcomes.push({ index, status: 'fulfilled', value });
        this.#came.raise();
      },
      failed: (reason) => {
        this.#outcomes.push({ index, status: 'rejected', reason });
        this.#came.raise();
      },
    };
  }

  /** Those that have come since the last call. */
  take(): GenerationOutcome[] {
    return this.#outcomes.splice(0);
  }

  /** Yields those that come until `work` is done, or `isDone` says that no more will. Throws what `work` rejects with. */
  async *during(work: Promise<unknown>, isDone: () => boolean): AsyncGenerator<GenerationOutcome, void, undefined> {
    let isOver = false;
    let failure: { readonly error: unknown } | undefined;
    const over = (): void => {
      isOver = true;
      this.#came.raise();
    };
    work.then(over, (error: unknown) => {
      failure = { error };
      over();
    });
    for (;;) {
      yield* this.take();
      if (isOver || isDone()) break;
      await nextChange({ signals: [this.#came], mustAsk: () => false }, 0, () => () => {});
    }
    yield* this.take();
    if (failure !== undefined) throw failure.error;
  }
}
