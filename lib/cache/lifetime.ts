// Lifetime: whether a cache can be called. It closes in two stages, so that a close that the driver refuses can be called again; and
// not while an engine's pass computes on its memory, since the device may write there until that is over.

import { createError } from '../base/errors.js';
import { checkStack } from '../base/stack.js';
import type { PolicyGuard } from '../device/policy-guard.js';

export class Lifetime {
  readonly #guard: PolicyGuard;
  #state: 'open' | 'closing' | 'closed' = 'open';
  #passes = 0;

  constructor(guard: PolicyGuard) {
    this.#guard = guard;
  }

  get isClosed(): boolean {
    return this.#state === 'closed';
  }

  /** Throws KV_CLOSED once it closes, and KV_POLICY_REENTRY while one of its policies decides. `operation` follows "Cannot". */
  check(operation: string): void {
    if (this.#state !== 'open') throw createError('KV_CLOSED', { operation, owner: 'KvCache' });
    if (this.#guard.deciding !== undefined) this.#guard.check(operation);
  }

  /** The same before a call that changes how slots, rows and text belong together. Throws the RangeError of a full stack, too. */
  enter(operation: string): void {
    checkStack();
    this.check(operation);
  }

  /** A pass of a scheduler's engine begins. Returns what ends it. */
  enterPass(): () => void {
    this.#passes += 1;
    return () => {
      this.#passes -= 1;
    };
  }

  /** The cache begins to close, or goes on; true the first time. Throws KV_POLICY_REENTRY, and KV_DRIVER_IN_USE while a pass runs. */
  beginClose(): boolean {
    this.#guard.check('close the cache');
    if (this.#passes > 0) throw createError('KV_DRIVER_IN_USE', { owner: 'KvCache', users: this.#passes });
    const isFirst = this.#state === 'open';
    this.#state = 'closing';
    return isFirst;
  }

  endClose(): void {
    this.#state = 'closed';
  }
}
