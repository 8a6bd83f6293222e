// Work of a scheduler that the driver refuses is tried again where that may help, three times in all.

import test from 'ava';

import { createError } from '#internal/base/errors.js';
import { withRetries } from '#internal/serving/admission.js';

/** How often work is tried that fails so often with this error. */
function triesOf(failures: number, error: Error): { readonly tries: number; readonly thrown: unknown } {
  let tries = 0;
  try {
    withRetries(() => {
      tries += 1;
      if (tries <= failures) throw error;
    });
  } catch (thrown) {
    return { tries, thrown };
  }
  return { tries, thrown: undefined };
}

test('work that the driver refuses is tried three times, and what cannot help is not tried again', (t) => {
  const refused = createError('KV_DRIVER_CALL_FAILED', { call: 'cuMemMap', status: 999, statusName: 'CUDA_ERROR_UNKNOWN', address: 0, bytes: 0 });
  t.is(refused.recovery, 'retry');
  t.deepEqual(triesOf(2, refused), { tries: 3, thrown: undefined });
  t.deepEqual(triesOf(3, refused), { tries: 3, thrown: refused });
  const closed = createError('KV_CLOSED', { operation: 'acquire', owner: 'KvCache' });
  t.deepEqual(triesOf(1, closed), { tries: 1, thrown: closed });
});
