// RequestFeed: the next requests of a trace, read ahead, so that the loop of a replay takes them without waiting. It
// holds a bounded number of them; ends early at a limit or a signal; and closes what it reads from.

import type { TraceRequest } from './trace-request.js';

/** What can be replayed: a TraceReader, a Workload, or any list or stream of requests in order of arrival. */
export type ReplayTrace = (AsyncIterable<TraceRequest> | Iterable<TraceRequest>) & {
  /** The name to print: a path, `stdin`, `generated`. */
  readonly name?: string;
  readonly format?: string | undefined;
  /** Requests in all, where that is known before the end. */
  readonly totalRequests?: number | undefined;
  /** Share of the file that has been read, 0 to 1. */
  readonly readFraction?: number | undefined;
  readonly skippedLines?: number;
  close?(): void;
};

export interface RequestFeedOptions {
  readonly trace: ReplayTrace;
  /** Requests that may be taken without waiting, 1 or more; four times as many are read at a time. */
  readonly ahead: number;
  /** Requests to take in all; the rest of the trace is not read. Default: all. */
  readonly limit?: number | undefined;
  /** Whether requests ask for no answer, whatever the trace says. Default false. */
  readonly promptOnly?: boolean;
  readonly signal?: AbortSignal | undefined;
}

export class RequestFeed {
  readonly #trace: ReplayTrace;
  readonly #iterator: AsyncIterator<TraceRequest> | Iterator<TraceRequest>;
  readonly #ahead: number;
  readonly #limit: number;
  readonly #promptOnly: boolean;
  readonly #signal: AbortSignal | undefined;
  readonly #requests: TraceRequest[] = [];
  #takenRequests = 0;
  #isEnded = false;
  readonly #stop = (): void => this.close();

  constructor({ trace, ahead, limit = Infinity, promptOnly = false, signal }: RequestFeedOptions) {
    this.#trace = trace;
    this.#iterator = Symbol.asyncIterator in trace ? trace[Symbol.asyncIterator]() : trace[Symbol.iterator]();
    this.#ahead = ahead;
    this.#limit = limit;
    this.#promptOnly = promptOnly;
    this.#signal = signal;
    signal?.addEventListener('abort', this.#stop, { once: true });
    if (signal?.aborted) this.close();
  }

  /** Requests taken so far. */
  get takenRequests(): number {
    return this.#takenRequests;
  }

  /** How much of the trace has been taken, 0 to 1; undefined where that is not known. */
  get fraction(): number | undefined {
    const { totalRequests, readFraction } = this.#trace;
    const total = Math.min(totalRequests ?? Infinity, this.#limit);
    if (Number.isFinite(total)) return total === 0 ? 1 : this.#takenRequests / total;
    const readRequests = this.#takenRequests + this.#requests.length;
    if (readFraction === undefined || readRequests === 0) return readFraction;
    return (readFraction * this.#takenRequests) / readRequests;
  }

  /** Whether fewer than `ahead` requests are at hand although more may come: time to `fill`. */
  get isLow(): boolean {
    return this.#requests.length < this.#ahead && !this.#isEnded;
  }

  /** The next request; undefined when there is none (or, before `fill`, none yet). */
  peek(): TraceRequest | undefined {
    return this.#requests[0];
  }

  take(): TraceRequest | undefined {
    const request = this.#requests.shift();
    if (request !== undefined) this.#takenRequests += 1;
    return request;
  }

  /** Reads ahead. An error of the trace is thrown here, except after the signal: then the trace has just ended. */
  async fill(): Promise<void> {
    while (!this.#isEnded && this.#requests.length < 4 * this.#ahead) {
      if (this.#takenRequests + this.#requests.length >= this.#limit) return this.close();
      try {
        const { done, value } = await this.#iterator.next();
        if (done) return this.close();
        this.#requests.push(this.#promptOnly ? { ...value, outputTokens: 0 } : value);
      } catch (error) {
        this.close();
        if (!this.#signal?.aborted) throw error;
      }
    }
  }

  /** Reads no more: closes the file or stream. What was read ahead can still be taken. Idempotent. */
  close(): void {
    if (this.#isEnded) return;
    this.#isEnded = true;
    this.#signal?.removeEventListener('abort', this.#stop);
    this.#trace.close?.();
  }
}
