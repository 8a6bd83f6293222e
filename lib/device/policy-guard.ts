// PolicyGuard: refuses calls to the caches of a page pool while a policy decides, because a cache is then in the middle
// of a call and half changed. One per page pool, since caches of a pool take rows from each other.

import { createError } from '../base/errors.js';

/** The option that the policy is the value of. */
export type PolicyName = 'growth' | 'placement' | 'reclaim' | 'prefixCache.policy' | 'prefixCache.now';

type Callable = (...parameters: never[]) => unknown;

export class PolicyGuard {
  /** The policy that decides at this moment. Read only. */
  deciding: PolicyName | undefined;

  /** Throws KV_POLICY_REENTRY while a policy decides. `operation` follows "Cannot". */
  check(operation: string): void {
    if (this.deciding !== undefined) throw createError('KV_POLICY_REENTRY', { operation, policy: this.deciding });
  }

  /** Marks the policy as deciding until `leave`, which takes the returned value. */
  enter(policy: PolicyName): PolicyName | undefined {
    const outer = this.deciding;
    this.deciding = policy;
    return outer;
  }

  leave(outer: PolicyName | undefined): void {
    this.deciding = outer;
  }

  /** Calls `work` with the policy marked as deciding; returns its result. */
  during<T>(policy: PolicyName, work: () => T): T {
    const outer = this.enter(policy);
    try {
      return work();
    } finally {
      this.leave(outer);
    }
  }

  /** Returns the policy, wrapped so that `check` throws while it decides. */
  wrap<P extends Callable>(name: PolicyName, policy: P): P {
    return ((...parameters: Parameters<P>) => this.during(name, () => policy(...parameters))) as P;
  }
}
