// StreamWork: what is queued on one stream of the host driver. Keeps the arrays and kernels that its commands use until
// they are done, whatever else is closed or forgotten, and lets callers wait for it or drop it. The addon's thread
// tells when a mark in the stream is reached; each job of JavaScript that queues sets one at its end, so that nothing
// is kept longer than it is used.

import { createError } from '../base/errors.js';
import { native, type NativeDriver } from './native.js';

type OnMark = (error: Error | undefined, command: number) => void;

/** By id, the marks that were not reached. It is what keeps queued work's memory alive. */
const marks = new Map<number, OnMark>();
let lastId = 0;
let isListening = false;

/** Operands that are kept before those that are the same become one. */
const leastKept = 4_096;

export class StreamWork {
  readonly stream: bigint;
  readonly #driver: NativeDriver;
  /**
   * The first `#keptCount`, some of them several times. A list that is used again: a pass keeps hundreds, and makes no
   * garbage of them.
   */
  readonly #kept: unknown[] = [];
  #keptCount = 0;
  /** Then those that are the same become one. */
  #mostKept = leastKept;
  /** Raised by each `keep`. */
  #uses = 0;
  /** `#uses` at the last mark. */
  #markedUses = 0;
  #isMarkDue = false;
  /** A failure that no caller has heard of. */
  #failure: Error | undefined;
  readonly #markRest = (): void => {
    this.#isMarkDue = false;
    if (this.#markedUses === this.#uses) return;
    try {
      this.#mark(false, () => {});
    } catch {
      this.#keepNone(); // the driver was closed, after all kernels, which waited
    }
  };

  constructor(driver: NativeDriver, stream: bigint) {
    this.stream = stream;
    this.#driver = driver;
    if (isListening) return;
    native().setOnStreamMark((id, error, command) => {
      const onMark = marks.get(id);
      marks.delete(id);
      onMark?.(error, command);
    });
    isListening = true;
  }

  /** Before a command is queued that uses it: an array, or kernels. An address keeps nothing. */
  keep(operand: unknown): void {
    if (typeof operand !== 'object') return;
    if (this.#keptCount === this.#mostKept) this.#keepOnce();
    this.#kept[this.#keptCount] = operand;
    this.#keptCount += 1;
    this.#uses += 1;
    if (this.#isMarkDue) return;
    this.#isMarkDue = true;
    queueMicrotask(this.#markRest);
  }

  /** Drops the commands that have not begun. */
  drop(): void {
    this.#driver.cancelStream(this.stream);
  }

  /**
   * Resolves when what is queued so far is done. Aborted, drops the commands that have not begun, and rejects with
   * KV_ABORTED once none runs. Rejects with the failure of a command; those behind it were dropped.
   */
  wait(signal: AbortSignal | undefined): Promise<void> {
    return new Promise((resolve, reject) => {
      const drop = (): void => { this.drop(); };
      if (signal?.aborted) drop();
      this.#mark(true, () => {
        signal?.removeEventListener('abort', drop);
        const failure = this.#failure;
        this.#failure = undefined;
        if (signal?.aborted) reject(
          createError('KV_ABORTED', { operation: 'waiting for a stream' }, { cause: signal.reason }));
        else if (failure !== undefined) reject(failure);
        else resolve();
      });
      signal?.addEventListener('abort', drop, { once: true });
    });
  }

  #keepNone(): void {
    this.#kept.fill(undefined, 0, this.#keptCount);
    this.#keptCount = 0;
  }

  /** Keeps each operand once, however many commands use it: where work is always queued, nothing else ends. */
  #keepOnce(): void {
    const distinct = [...new Set(this.#kept)];
    this.#keepNone();
    for (const operand of distinct) this.#kept[this.#keptCount++] = operand;
    this.#mostKept = Math.max(leastKept, 2 * this.#keptCount);
    if (this.#kept.length > this.#mostKept) this.#kept.length = this.#mostKept;
  }

  #mark(isAwaited: boolean, then: () => void): void {
    const uses = this.#markedUses = this.#uses;
    const id = lastId += 1;
    marks.set(id, (error, command) => {
      if (isAwaited) this.#driver.endAwait();
      if (error !== undefined) this.#failure ??= createError('KV_COMMAND_FAILED', { command }, { cause: error });
      if (this.#uses === uses) this.#keepNone();
      then();
    });
    try {
      this.#driver.markStream(this.stream, id, isAwaited);
    } catch (error) {
      marks.delete(id);
      throw error;
    }
  }
}
