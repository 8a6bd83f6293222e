// Waits for a condition that other calls, threads or the device bring about. Where a signal says that something has
// changed, the condition is checked then, and no timer runs. What native threads or the device bring about must be
// polled: once per turn of the event loop, so that timers, I/O and signals go on, and once per millisecond when that
// has not helped at first. Giving up changes no state.

import { createError } from '../base/errors.js';
import { abortSignal, number, optional, readOptions } from '../base/options.js';

/** Options of calls that wait. */
export interface WaitOptions {
  /** Gives up after so many milliseconds with KV_TIMEOUT. Default: never. */
  readonly timeoutMs?: number | undefined;
  /** Gives up with KV_ABORTED. */
  readonly signal?: AbortSignal | undefined;
}

/** How it is noticed that a condition may hold. */
export interface Noticing {
  readonly signals: readonly ChangeSignal[];
  /** Whether the condition must be polled as well, since no signal is given for what is waited for at this moment. */
  readonly mustAsk: () => boolean;
}

/** Turns of the event loop before it yields the processor: most waits are shorter. */
const eagerTurns = 64;
const askAgainMs = 1;
const longestTimerMs = 2 ** 31 - 1;

const spec = { timeoutMs: optional(number(0)), signal: optional(abortSignal) };

/** No signal: the condition is polled. */
export const byAsking: Noticing = { signals: [], mustAsk: () => true };

export function readWaitOptions(owner: string, options: WaitOptions) {
  return readOptions(owner, options, spec);
}

/**
 * Resolves when `isDone` returns true; `hint` is the whole sentence that says what helps when it takes too long. Throws
 * what `isDone` throws, KV_TIMEOUT or KV_ABORTED.
 */
export async function waitUntil(
  waitedFor: string, { timeoutMs, signal }: WaitOptions, isDone: () => boolean, noticing = byAsking,
  hint = 'Raise `timeoutMs`.',
): Promise<void> {
  const start = performance.now();
  for (let turn = 0; !isDone(); turn += 1) {
    if (signal?.aborted) {
      throw createError('KV_ABORTED', { operation: `waiting for ${waitedFor}` }, { cause: signal.reason });
    }
    const leftMs = timeoutMs === undefined ? undefined : timeoutMs - (performance.now() - start);
    if (leftMs !== undefined && leftMs <= 0) {
      throw createError('KV_TIMEOUT', { timeoutMs: timeoutMs!, waitedFor, hint });
    }
    await nextChange(noticing, turn, (wake) => onTimeOrAbort(wake, leftMs, signal));
  }
}

/**
 * Resolves at the next signal, when it is time to ask the `turn`th time, or when what `listen` listens to calls its
 * `wake`.
 */
export async function nextChange(
  { signals, mustAsk }: Noticing, turn: number, listen: (wake: () => void) => () => void,
): Promise<void> {
  let withdraw: (() => void)[] = [];
  try {
    await new Promise<void>((resolve) => {
      withdraw = signals.map((signal) => signal.once(resolve));
      withdraw.push(listen(resolve));
      if (mustAsk()) withdraw.push(turn < eagerTurns ? nextTurn(resolve) : after(resolve, askAgainMs));
    });
  } finally {
    for (const one of withdraw) one();
  }
}

/** Calls `wake` in so many ms. Returns what cancels it. */
export function after(wake: () => void, delayMs: number): () => void {
  const timer = setTimeout(wake, Math.min(Math.max(0, Math.ceil(delayMs)), longestTimerMs));
  return () => {
    clearTimeout(timer);
  };
}

function nextTurn(wake: () => void): () => void {
  const immediate = setImmediate(wake);
  return () => {
    clearImmediate(immediate);
  };
}

function onTimeOrAbort(wake: () => void, leftMs: number | undefined, signal: AbortSignal | undefined): () => void {
  const cancel = leftMs === undefined ? undefined : after(wake, leftMs);
  signal?.addEventListener('abort', wake);
  return () => {
    cancel?.();
    signal?.removeEventListener('abort', wake);
  };
}

/**
 * Wakes waiters when what they wait for may have happened, so that they check again instead of polling. It carries no
 * value and remembers nothing. For one Node thread.
 */
export class ChangeSignal {
  readonly #wakes = new Set<() => void>();

  /** Calls each waiting `wake` once. Call it when the change is complete; a `wake` must only take note of it. */
  raise(): void {
    if (this.#wakes.size === 0) return;
    const wakes = [...this.#wakes];
    this.#wakes.clear();
    for (const wake of wakes) wake();
  }

  /** Calls `wake` at the next change, once. Returns a function that withdraws it. */
  once(wake: () => void): () => void {
    this.#wakes.add(wake);
    return () => {
      this.#wakes.delete(wake);
    };
  }
}

/** Raised when any call finds its device lost. */
export const deviceLost = new ChangeSignal();
