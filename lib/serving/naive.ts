// NaiveScheduler: one request at a time, in the order given: the batching loop with a batch of one. What the other
// schedulers are compared with, and enough for a command line. The prefix cache helps it as it helps them.

import { ContinuousBatching } from './continuous-batching.js';
import { Generation } from './generation.js';
import { noTotals, type ServingTotals } from './open-requests.js';
import { OutcomeCollector, type GenerationOutcome } from './outcome.js';
import { budgetsOf, checkRequests, readRequest, type GenerationRequest } from './request.js';
import { readSchedulerOptions, type ReadSchedulerOptions, type SchedulerOptions } from './scheduler-options.js';

/** Serves requests one after the other: the simplest schedule, and a reference for the other schedulers. */
export class NaiveScheduler {
  readonly #options: ReadSchedulerOptions;
  readonly #totals = noTotals();

  /** Throws KV_UNKNOWN_OPTION and KV_INVALID_OPTION. */
  constructor(options: SchedulerOptions) {
    this.#options = { ...readSchedulerOptions('NaiveScheduler', options), maxBatch: 1 };
  }

  /** Sums since it was made. */
  get totals(): Readonly<ServingTotals> {
    return this.#totals;
  }

  /**
   * Runs the requests one after the other; yields how each ended. Rejects when the cache cannot go on (lost driver,
   * closed), and for wrong options of a request, whose index the error names, when its turn comes. Leaving the loop
   * early leaves the requests behind it undone.
   */
  async *run(requests: Iterable<GenerationRequest>): AsyncGenerator<GenerationOutcome, void, undefined> {
    const { cache, clock } = this.#options;
    const owner = 'NaiveScheduler.run';
    const outcomes = new OutcomeCollector();
    const budgets = budgetsOf(cache); // less for a while, later, is no reason to end a request
    let index = 0;
    for (const options of checkRequests(owner, requests)) {
      const request = readRequest(owner, options, this.#options, index);
      // a pass that was given up goes on in the last one
      const batching = new ContinuousBatching(this.#options, { totals: this.#totals });
      const generation = new Generation({
        cache, request, arrival: index, nowMs: clock.now(), listener: outcomes.listener(index),
      });
      batching.requests.expect(generation);
      batching.enqueueFitting(generation, budgets);
      yield* outcomes.of(batching);
      index += 1;
    }
  }
}
