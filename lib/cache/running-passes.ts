// RunningPasses: how many passes of engines compute on a cache's memory at this moment. The device may write there until they are
// over, so the cache is not closed before. Schedulers say when a pass begins and ends.

import { createError } from '../base/errors.js';

export class RunningPasses {
  #count = 0;

  /** A pass begins. Returns what ends it. */
  enter(): () => void {
    this.#count += 1;
    return () => {
      this.#count -= 1;
    };
  }

  /** Throws KV_DRIVER_IN_USE while there are any. */
  checkNone(): void {
    if (this.#count > 0) throw createError('KV_DRIVER_IN_USE', { owner: 'KvCache', users: this.#count });
  }
}
