// Readiness: whether the server answers what it is sent: its engine's passes end, and its queue has room. After a pass
// that failed, whoever asks has the engine compute one token, at most once at a time: so an engine that works again is
// found without a client's request.

import type { ReadServerOptions } from './server-options.js';

/** Ms that a trial of the engine may take, its waiting for a slot included. */
const trialMs = 1_000;

export class Readiness {
  readonly #options: Pick<ReadServerOptions, 'scheduler' | 'deadlineMs'>;
  readonly #isClosing: () => boolean;
  #trial: Promise<void> | undefined;

  constructor(options: Pick<ReadServerOptions, 'scheduler' | 'deadlineMs'>, isClosing: () => boolean) {
    this.#options = options;
    this.#isClosing = isClosing;
  }

  /** Why nothing new should be sent; undefined: it is answered. */
  async problem(): Promise<string | undefined> {
    const { scheduler } = this.#options;
    if (this.#isClosing() || scheduler.isClosed || scheduler.cache.isClosed) return 'it is ending';
    if (scheduler.waitingRequests >= scheduler.maxWaiting) return 'the queue is full';
    return this.engineProblem();
  }

  /** Why the engine answers nothing; undefined: its passes end. */
  async engineProblem(): Promise<string | undefined> {
    const { scheduler, deadlineMs } = this.#options;
    const { runningMs, isStalled, hasFailed } = scheduler.engineState;
    if (isStalled) return 'a pass of the engine was given up, and is not over';
    if (runningMs > deadlineMs) return 'a pass of the engine takes longer than a whole answer may';
    if (!hasFailed) return undefined;
    await this.#try();
    return scheduler.engineState.hasFailed ? 'passes of the engine fail' : undefined;
  }

  /** Has the engine compute a token. */
  #try(): Promise<void> {
    this.#trial ??= this.#tryNow().finally(() => { this.#trial = undefined; });
    return this.#trial;
  }

  async #tryNow(): Promise<void> {
    const { scheduler } = this.#options;
    try {
      await scheduler.submit({ tokens: [0], maxNewTokens: 1, caching: 'off', deadlineMs: trialMs }).result;
    } catch { /* the engine's state says it */ }
  }
}
