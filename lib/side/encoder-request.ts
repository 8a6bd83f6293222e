// EncoderRequest: one call of `EncoderCache.acquire` until it is answered, by a hold or an error, once. It listens to
// the caller's signal and sets the caller's time limit, and removes both with the answer.

import { createError } from '../base/errors.js';
import { after } from '../device/wait.js';
import type { EncoderHold } from './encoder-hold.js';
import type { EncoderItem } from './encoder-item.js';
import type { ReadAcquireOptions } from './encoder-options.js';
import type { RoomTicket } from './room-queue.js';

export class EncoderRequest {
  readonly given: ReadAcquireOptions;
  /** How many requests came before. */
  readonly number: number;
  readonly answer: Promise<EncoderHold>;
  /** The item that it waits for. */
  item: EncoderItem | undefined;
  /** Its own place in the queue, where it waits for no item yet. */
  ticket: RoomTicket | undefined;
  #resolve!: (hold: EncoderHold) => void;
  #reject!: (error: unknown) => void;
  #withdraw: () => void = () => {};

  constructor(given: ReadAcquireOptions, number: number) {
    this.given = given;
    this.number = number;
    this.answer = new Promise((resolve, reject) => {
      this.#resolve = resolve;
      this.#reject = reject;
    });
  }

  /**
   * Calls `giveUp` with the error when the caller's signal aborts or the time is over, unless it was answered before.
   */
  watch(giveUp: (error: Error) => void): void {
    const { signal, timeoutMs } = this.given;
    const abort = (): void => {
      giveUp(createError('KV_ABORTED', { operation: 'waiting for an encoder item' }, { cause: signal!.reason }));
    };
    signal?.addEventListener('abort', abort);
    const cancel = timeoutMs === undefined ? undefined : afterAll(timeoutMs, () => giveUp(this.#timeout(timeoutMs)));
    this.#withdraw = () => {
      signal?.removeEventListener('abort', abort);
      cancel?.();
    };
  }

  resolve(hold: EncoderHold): void {
    this.#withdraw();
    this.#resolve(hold);
  }

  reject(error: unknown): void {
    this.#withdraw();
    this.#reject(error);
  }

  #timeout(timeoutMs: number): Error {
    if (this.item?.state === 'computing') return createError('KV_TIMEOUT', { timeoutMs, waitedFor: 'the encoder' });
    return createError('KV_TIMEOUT', {
      timeoutMs, waitedFor: 'room in the encoder cache',
      hint: 'Release holds, raise `budgetBytes`, or raise `timeoutMs`.',
    });
  }
}

/** As `after`, also for times that no timer can be set to. */
function afterAll(delayMs: number, wake: () => void): () => void {
  const end = performance.now() + delayMs;
  let cancel: () => void;
  const set = (): void => {
    cancel = after(() => {
      if (performance.now() < end - 1) set();
      else wake();
    }, end - performance.now());
  };
  set();
  return () => { cancel(); };
}
