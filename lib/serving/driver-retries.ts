// withRetries: calls something again when the driver says that this may help, so that one failure of a call does not end requests.

import { isKvError } from '../base/errors.js';

const driverRetries = 2;

/** Throws what `work` throws, at the latest the third time. */
export function withRetries<T>(work: () => T): T {
  for (let tries = 0; ; tries += 1) {
    try {
      return work();
    } catch (error) {
      if (!isKvError(error) || error.recovery !== 'retry' || tries === driverRetries) throw error;
    }
  }
}
