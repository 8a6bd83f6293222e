// modelError: the error of a folder that the reference engine cannot run. The message has the file, what is wrong, and what to do. And how
// an error of a worker thread comes to the thread that waits: a copy of one loses its class and its code.

import { createError, isKvError } from '../base/errors.js';

/** KV_MODEL_INVALID with this message. */
export function modelError(problem: string, options: { readonly cause?: unknown } = {}): Error {
  return createError('KV_MODEL_INVALID', { problem }, options);
}

/** An error on its way to another thread: the problem of a KV_MODEL_INVALID, or another one. */
export type SentError = { readonly problem: string; readonly cause: unknown } | { readonly error: unknown };

/** What a worker answers with in place of a result. */
export function sentError(error: unknown): SentError {
  return isKvError(error, 'KV_MODEL_INVALID') ? { problem: error.details.problem, cause: error.cause } : { error };
}

/** The error that a worker sent. */
export function receivedError(sent: SentError): unknown {
  return 'problem' in sent ? modelError(sent.problem, { cause: sent.cause }) : sent.error;
}

/** The error of what a worker had under way when it ended. `doing`: "tokenizes". */
export function endedError(doing: string, exitCode: number, cause: unknown): Error {
  return createError('KV_INTERNAL', { problem: `the thread that ${doing} ended before it had answered`, what: exitCode }, { cause });
}
