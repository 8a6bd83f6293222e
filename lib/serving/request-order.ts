// Request orders: which request is next, and the tenants' shares that a fair order compares. Orders are pure
// comparators, as for Array.sort: the first waiting request is admitted first; the first running one gets its prompt
// computed first, and the last is preempted when memory runs out.
//
// Invariant: a share's `knownTokens` are at most its tokens, which only grow; so the least of the first is at most the
// least of the second, and a share is looked at again only where it has grown.

import { Heap } from '../base/heap.js';

/** A request as an order sees it. */
export interface OrderedRequest {
  /** 0 … 255, as the request says. */
  readonly urgency: number;
  /** Number of the request, in order of submission. A preempted request keeps it. */
  readonly arrival: number;
  /** Undefined: the request names none. */
  readonly tenant: string | undefined;
  /**
   * Tokens computed for its tenant since that has requests here; a new tenant starts at the least of all that have
   * some.
   */
  readonly tenantTokens: number;
  /** Tokens of its prompt. */
  readonly promptTokens: number;
  /** Tokens of its answer so far. */
  readonly generatedTokens: number;
  /**
   * Tokens of its prompt that were cached when it first got a slot; before that, those that are when it is first asked
   * for, or has waited for another's prompt. That look takes time with the length of the prompt.
   */
  readonly cachedTokens: number;
  /** The adapter (LoRA) of its request; undefined: none. */
  readonly adapter: string | undefined;
  /** When it was submitted, in ms of the scheduler's clock: the earlier, the longer it has waited. */
  readonly submittedMs: number;
  /** When its deadline is, in ms of the scheduler's clock; Infinity: it has none. */
  readonly deadlineAtMs: number;
  /** `orderValue` of its request. */
  readonly orderValue: unknown;
}

/**
 * Negative when `a` goes before `b`. Must end with `arrival`, so that no two are equal. Of two that wait it must say
 * the same as long as the tokens of their tenants are the same: by when they were submitted, say, not by the time of
 * day. A waiting request takes a running one's slot only where it is more urgent and the order puts it first.
 */
export type RequestOrder = (a: OrderedRequest, b: OrderedRequest) => number;

/**
 * The more urgent, then the earlier: no request is passed by a later one of the same urgency, but for
 * `shortPromptShare`.
 */
export function byArrival(): RequestOrder {
  return (a, b) => b.urgency - a.urgency || a.arrival - b.arrival;
}

/**
 * The more urgent, then those of the tenant with the fewest computed tokens, then the earlier: many requests of one
 * tenant do not delay other tenants' requests. (The virtual counters of "Fairness in Serving Large Language Models",
 * 2024.)
 */
export function byTenantShare(): RequestOrder {
  return (a, b) => b.urgency - a.urgency || a.tenantTokens - b.tenantTokens || a.arrival - b.arrival;
}

/** What was computed for a tenant that has requests in a scheduler. */
export interface TenantShare {
  /** Tokens computed for the tenant. */
  tokens: number;
  /** Requests of the tenant, waiting or running. */
  requests: number;
  /** Tokens when its place among the shares was found. */
  knownTokens: number;
  /** Its place among the shares. */
  index: number;
}

type Tenant = string | undefined;

/**
 * The shares of all tenants that have requests. A tenant without requests is forgotten; one that comes (back) starts at
 * the least of the others, so that an idle tenant gathers no claim.
 */
export class TenantShares {
  readonly #byTenant = new Map<Tenant, TenantShare>();
  readonly #least =
    new Heap<TenantShare>((a, b) => a.knownTokens - b.knownTokens, (share, index) => { share.index = index; });

  /** Counts one more request of a tenant. Returns the tenant's share. */
  enter(tenant: Tenant): TenantShare {
    let share = this.#byTenant.get(tenant);
    if (share === undefined) {
      const tokens = this.#leastTokens();
      share = { tokens, requests: 0, knownTokens: tokens, index: 0 };
      this.#byTenant.set(tenant, share);
      this.#least.push(share);
    }
    share.requests += 1;
    return share;
  }

  /** Counts one request of a tenant less. */
  leave(tenant: Tenant, share: TenantShare): void {
    share.requests -= 1;
    if (share.requests > 0) return;
    this.#byTenant.delete(tenant);
    this.#least.remove(share.index);
  }

  #leastTokens(): number {
    for (;;) {
      const { first } = this.#least;
      if (first === undefined) return 0;
      if (first.knownTokens === first.tokens) return first.tokens;
      first.knownTokens = first.tokens;
      this.#least.update(0);
    }
  }
}
