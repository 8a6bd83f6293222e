// ReplayLoop: takes requests from a trace as they arrive, steps the scheduler until all are done, and records the
// memory of every step. It keeps the replay's clock, and gives the event loop a turn every few milliseconds, so that a
// signal, a progress bar and the reading of the trace go on. It owns nothing that must be closed.

import { setImmediate } from 'node:timers/promises';

import { MemoryTimeline, NO_MEMORY, type MemorySample } from './memory-timeline.js';
import type { ReplayScheduler } from './replay-scheduler.js';
import type { RequestFeed } from './request-feed.js';
import type { TraceRequest } from './trace-request.js';

export const arrivalModes = ['saturate', 'trace'] as const;
/**
 * `saturate`: a request arrives as soon as there is room for it. `trace`: at its time, on a clock of `stepMs` a step.
 */
export type ArrivalMode = (typeof arrivalModes)[number];

export interface ReplayProgress {
  /** How much of the trace is done, 0 to 1; undefined where its end is not known. */
  readonly fraction: number | undefined;
  readonly completedRequests: number;
  readonly runningRequests: number;
  readonly steps: number;
  /** The last step's memory. */
  readonly memory: MemorySample;
}

/** `too-long`: for a slot. `too-large`: for the whole memory budget. */
export type Refusal = 'too-long' | 'too-large';

export interface ReplayLoopOptions {
  readonly feed: RequestFeed;
  readonly scheduler: ReplayScheduler;
  readonly arrivals: ArrivalMode;
  /** Length of a step on the replay's clock, in ms. */
  readonly stepMs: number;
  /** Why a request can never be served, and is counted and left out; undefined: it can. */
  readonly refusalOf: (request: TraceRequest) => Refusal | undefined;
  /** Returns the memory that is held now. */
  readonly measure: () => MemorySample;
  readonly signal?: AbortSignal | undefined;
  readonly onProgress?: ((progress: ReplayProgress) => void) | undefined;
}

const TURN_MS = 20;
const PROGRESS_MS = 100;

export class ReplayLoop {
  /** By step, or by ms of the replay's clock with `arrivals: 'trace'`. */
  readonly timeline: MemoryTimeline;
  readonly #options: ReplayLoopOptions;
  #memory = NO_MEMORY;
  #clockMs = 0;
  readonly #refusals: Record<Refusal, number> = { 'too-long': 0, 'too-large': 0 };
  /** The share that was reported last. */
  #fraction: number | undefined;

  constructor(options: ReplayLoopOptions) {
    this.#options = options;
    this.timeline = new MemoryTimeline(options.arrivals === 'trace' ? options.stepMs : 1);
  }

  /** Requests that were left out, by reason. */
  get refusals(): Readonly<Record<Refusal, number>> {
    return this.#refusals;
  }

  get refusedRequests(): number {
    return this.#refusals['too-long'] + this.#refusals['too-large'];
  }

  /**
   * Runs to the end of the trace, or to the signal. Returns whether it was interrupted; then sequences are left
   * running.
   */
  async run(): Promise<boolean> {
    const { feed, scheduler, arrivals, stepMs, measure, signal, onProgress } = this.#options;
    const record = (): void => {
      this.#memory = measure();
      this.timeline.record(arrivals === 'trace' ? this.#clockMs : scheduler.totals.steps, this.#memory);
    };
    let turnMs = performance.now();
    let progressMs = turnMs;
    while (!signal?.aborted) {
      if (feed.isLow) await feed.fill();
      this.#enqueueArrived();
      if (scheduler.isIdle) {
        const next = feed.peek();
        if (next === undefined && !feed.isLow) break;
        if (next !== undefined) this.#clockMs = Math.max(this.#clockMs, next.arrivalMs); // nothing to do until then
        continue;
      }
      this.#clockMs += stepMs;
      await scheduler.step(record, arrivals === 'trace' ? this.#clockMs : scheduler.totals.steps);
      const nowMs = performance.now();
      if (nowMs - turnMs < TURN_MS) continue;
      if (onProgress !== undefined && nowMs - progressMs >= PROGRESS_MS) {
        onProgress(this.#progress());
        progressMs = nowMs;
      }
      await setImmediate();
      turnMs = performance.now();
    }
    onProgress?.(this.#progress());
    return signal?.aborted ?? false;
  }

  /** Queues requests that have arrived, at most as many as can start in one step: the feed keeps the rest. */
  #enqueueArrived(): void {
    const { feed, scheduler, arrivals, refusalOf } = this.#options;
    while (scheduler.waitingRequests < scheduler.maxBatch) {
      const next = feed.peek();
      if (next === undefined || (arrivals === 'trace' && next.arrivalMs > this.#clockMs)) return;
      feed.take();
      const refusal = refusalOf(next);
      if (refusal === undefined) scheduler.enqueue(next);
      else this.#refusals[refusal] += 1;
    }
  }

  #progress(): ReplayProgress {
    const { feed, scheduler } = this.#options;
    const { completedRequests, steps } = scheduler.totals;
    const doneRequests = completedRequests + this.refusedRequests;
    const doneShare = doneRequests / Math.max(1, feed.takenRequests);
    // Never backwards: the trace's length may be an estimate, and products of shares round either way.
    if (feed.fraction !== undefined) this.#fraction = Math.max(this.#fraction ?? 0, feed.fraction * doneShare);
    return {
      fraction: this.#fraction, completedRequests, runningRequests: scheduler.runningRequests, steps,
      memory: this.#memory,
    };
  }
}
