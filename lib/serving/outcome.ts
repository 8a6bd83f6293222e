// GenerationOutcome: how one of many requests ended, as Promise.allSettled would say it; and the collector that steps a
// batching loop and yields the outcomes of its requests in the order in which they come.

import { createError } from '../base/errors.js';
import { ChangeSignal, nextChange } from '../device/wait.js';
import type { ContinuousBatching } from './continuous-batching.js';
import type { GenerationListener, GenerationResult } from './generation-result.js';

/** How a request of a list ended. */
export type GenerationOutcome = PromiseSettledResult<GenerationResult> & {
  /** Place of the request in the list, from 0. */
  readonly index: number;
};

export class OutcomeCollector {
  readonly #outcomes: GenerationOutcome[] = [];
  readonly #came = new ChangeSignal();

  /** Collects the outcome of the request at `index`. */
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

  /**
   * Steps until all requests of `batching` have ended, also while a pass of theirs goes on; before each step, `feed`
   * enqueues those that may start. Yields the outcomes as they come. Throws what a step throws; ends all requests when
   * it is left early.
   */
  async *of(
    batching: ContinuousBatching, feed: () => void = () => {},
  ): AsyncGenerator<GenerationOutcome, void, undefined> {
    const { requests } = batching;
    const step = async (): Promise<void> => {
      feed();
      await batching.step();
      await batching.turn();
    };
    try {
      while (requests.count > 0) yield* this.#during(step(), () => requests.count === 0);
      yield* this.#take();
    } finally {
      batching.failAll(createError('KV_ABORTED', { operation: 'generating' }));
      // the caller has left the run
      for (const outcome of this.#take()) if (outcome.status === 'fulfilled') outcome.value.side?.close();
    }
  }

  /** One by one: when the caller leaves, the others stay. */
  *#take(): Generator<GenerationOutcome, void, undefined> {
    for (let next = this.#outcomes.shift(); next !== undefined; next = this.#outcomes.shift()) yield next;
  }

  /**
   * Yields the outcomes that come until `work` is over, or `isDone` says that no more will. Throws what `work` rejects
   * with.
   */
  async *#during(work: Promise<unknown>, isDone: () => boolean): AsyncGenerator<GenerationOutcome, void, undefined> {
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
      yield* this.#take();
      if (isOver || isDone()) break;
      await nextChange({ signals: [this.#came], mustAsk: () => false }, 0, () => () => {});
    }
    yield* this.#take();
    if (failure !== undefined) throw failure.error;
  }
}
