// What may come of a hostile call: an error that says by its code what was wrong, the caller's own error, or success. Anything else is
// a finding: an error of the language from inside the package, or one that calls itself a bug.

import { isKvError } from 'virtual-kv';

import { OnPurpose } from './values.js';

/** Undefined when the error is one that a caller may get. */
export function findingOf(error: unknown): string | undefined {
  for (let cause = error, depth = 0; cause instanceof Error && depth < 4; cause = cause.cause, depth += 1) {
    if (cause instanceof OnPurpose) return undefined;
  }
  if (isKvError(error)) return error.code === 'KV_INTERNAL' ? error.message : undefined;
  return error instanceof Error ? error.stack ?? error.message : `threw ${String(error)}`;
}

/** Waits for what a call answers: promises, streams of tokens, generators of outcomes. */
export async function settle(answer: unknown): Promise<void> {
  const awaited: unknown = await answer;
  if (typeof awaited !== 'object' || awaited === null) return;
  if ('result' in awaited) await awaited.result;
  if (!(Symbol.asyncIterator in awaited)) return;
  for await (const outcome of awaited as AsyncIterable<unknown>) {
    const error: unknown = typeof outcome === 'object' && outcome !== null && 'error' in outcome ? outcome.error : undefined;
    if (error !== undefined) throw error; // eslint-disable-line @typescript-eslint/only-throw-error -- as it came
  }
}
