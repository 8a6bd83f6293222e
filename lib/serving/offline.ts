// OfflineScheduler: continuous batching for a known list of requests, where the time of all counts and not that of
// each. Requests with a common prefix follow each other, so that the later ones find its rows while they are cached.
// For the cache's thread; the caller's loop drives it.

import { oneOf, readOptions, withDefault } from '../base/options.js';
import { ContinuousBatching } from './continuous-batching.js';
import { Generation } from './generation.js';
import { noTotals, type ServingTotals } from './open-requests.js';
import { OutcomeCollector, type GenerationOutcome } from './outcome.js';
import { budgetsOf, checkRequests, readRequest, type GenerationRequest, type ReadRequest } from './request.js';
import {
  completeOptions, schedulerSpec, type ReadSchedulerOptions, type SchedulerOptions,
} from './scheduler-options.js';

/** Options of `OfflineScheduler`. */
export interface OfflineSchedulerOptions extends SchedulerOptions {
  /**
   * `prefix`: requests whose prompts have a common prefix follow each other. `given`: in the order of the list. `order`
   * decides among the next of them. Default `prefix`.
   */
  readonly arrangement?: 'prefix' | 'given' | undefined;
}

const spec = { ...schedulerSpec, arrangement: withDefault(oneOf(['prefix', 'given']), 'prefix') };

interface Entry {
  readonly index: number;
  readonly request: ReadRequest;
  /** Of its tokens. */
  readonly bytes: Buffer;
}

/** Serves a list of requests with continuous batching, as fast as it can. */
export class OfflineScheduler {
  readonly #options: ReadSchedulerOptions;
  readonly #arrangement: 'prefix' | 'given';
  readonly #totals = noTotals();

  /** Throws KV_UNKNOWN_OPTION and KV_INVALID_OPTION. */
  constructor(options: OfflineSchedulerOptions) {
    const { arrangement, ...read } = readOptions('OfflineScheduler', options, spec);
    this.#options = completeOptions(read, false);
    this.#arrangement = arrangement;
  }

  /** Sums since it was made. */
  get totals(): Readonly<ServingTotals> {
    return this.#totals;
  }

  /**
   * Runs all requests; yields how each ended, as they end. Rejects at once for wrong options of any request, whose
   * index the error names; later only when the cache cannot go on (lost driver, closed). Leaving the loop early ends
   * the open requests. It is over when all requests have ended, also while the engine still computes a pass that was
   * given up.
   */
  async *run(requests: Iterable<GenerationRequest>): AsyncGenerator<GenerationOutcome, void, undefined> {
    const { cache, clock, maxBatch } = this.#options;
    const owner = 'OfflineScheduler.run';
    const entries: Entry[] = [];
    for (const request of checkRequests(owner, requests)) {
      const read = readRequest(owner, request, this.#options, entries.length);
      const { buffer, byteOffset, byteLength } = read.tokens;
      entries.push({ index: entries.length, request: read, bytes: Buffer.from(buffer, byteOffset, byteLength) });
    }
    if (this.#arrangement === 'prefix') entries.sort(byBytes);
    const batching = new ContinuousBatching(this.#options, { totals: this.#totals });
    const outcomes = new OutcomeCollector();
    const nowMs = clock.now();
    const generations = entries.map(({ index, request }, arrival) =>
      new Generation({ cache, request, arrival, nowMs, listener: outcomes.listener(index) }));
    const budgets = budgetsOf(cache); // less for a while, later, is no reason to end a request
    let fed = 0;
    for (const generation of generations) batching.requests.expect(generation);
    yield* outcomes.of(batching, () => {
      // More than a batch waits, so that a request that waits for another's prompt is passed by others.
      while (fed < generations.length && batching.waitingRequests < 2 * maxBatch) {
        batching.enqueueFitting(generations[fed++]!, budgets);
      }
    });
  }
}

/** Texts with a common start follow each other. Native code compares: prompts may have much in common. */
function byBytes({ bytes: a }: Entry, { bytes: b }: Entry): number {
  return Buffer.compare(a, b);
}
