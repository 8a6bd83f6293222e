// Waiting for a condition that native threads or the device bring about, and that can only be asked for. It asks once per
// turn of the event loop, so that timers, I/O and signals go on, and once per millisecond when that has not helped at first;
// state is untouched when it gives up.

import { setImmediate, setTimeout } from 'node:timers/promises';

import { createError } from '../errors/index.js';
import { abortSignal, number, optional, readOptions } from '../options.js';

export interface WaitOptions {
  /** Gives up after so many milliseconds with KV_TIMEOUT. Default: never. */
  readonly timeoutMs?: number | undefined;
  /** Gives up with KV_ABORTED. */
  readonly signal?: AbortSignal | undefined;
}

/** Turns of the event loop before it leaves the processor to others: most waits are shorter. */
const eagerTurns = 64;

const spec = { timeoutMs: optional(number(0)), signal: optional(abortSignal) };

export function readWaitOptions(owner: string, options: WaitOptions) {
  return readOptions(owner, options, spec);
}

/** Resolves when `isDone` returns true; `hint` is the whole sentence that says what helps when it takes too long. Throws what `isDone` throws, KV_TIMEOUT or KV_ABORTED. */
export async function waitUntil(
  waitedFor: string, { timeoutMs, signal }: WaitOptions, isDone: () => boolean, hint = 'Raise `timeoutMs`.',
): Promise<void> {
  const start = performance.now();
  for (let turn = 0; !isDone(); turn += 1) {
    if (signal?.aborted) throw createError('KV_ABORTED', { operation: `waiting for ${waitedFor}` }, { cause: signal.reason });
    if (timeoutMs !== undefined && performance.now() - start >= timeoutMs) {
      throw createError('KV_TIMEOUT', { timeoutMs, waitedFor, hint });
    }
    await (turn < eagerTurns ? setImmediate() : setTimeout(1));
  }
}
