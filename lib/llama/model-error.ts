// modelError: the error of a folder that the reference engine cannot run. The message has the file, what is wrong, and what to do.

import { createError } from '../base/errors.js';

/** KV_MODEL_INVALID with this message. */
export function modelError(problem: string, options: { readonly cause?: unknown } = {}): Error {
  return createError('KV_MODEL_INVALID', { problem }, options);
}
