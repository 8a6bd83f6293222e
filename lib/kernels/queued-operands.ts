// What commands that run later may use: memory that JavaScript can neither detach nor shrink under them. No state.

import { createError } from '../base/errors.js';
import { isShared, typedArrayKind } from '../base/typed-arrays.js';

/** Throws KV_INVALID_OPTION unless a typed array's memory is a SharedArrayBuffer's. */
export function checkShared(owner: string, option: string, array: unknown): void {
  if (isShared(array)) return;
  throw createError('KV_INVALID_OPTION', {
    reason: 'type', owner, option, expected: `a ${typedArrayKind(array)} over a SharedArrayBuffer, or an address`,
    received: 'one over an ArrayBuffer',
    hint: 'The command runs later, when an ArrayBuffer may have been detached. Or use no stream: then it is done when the call returns.',
  });
}
