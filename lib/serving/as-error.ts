// What a user's function throws, as an error that can be handed on: `throw undefined` would read as "no error".

import { createError } from '../base/errors.js';
import { describe } from '../base/phrases.js';

/** What was thrown, unless that is undefined or null. `by` is the option whose function threw it. */
export function asError(thrown: unknown, by: 'sampler' | 'order'): Error {
  if (thrown !== undefined && thrown !== null) return thrown as Error;
  return createError('KV_INVALID_OPTION', {
    reason: 'type', owner: by === 'sampler' ? 'GenerationRequest' : 'SchedulerOptions', option: by,
    expected: 'a function that throws nothing but errors', received: describe(thrown),
  });
}
