// Request orders: whose turn is next. Pure comparators, as for Array.sort. The first of those that wait is admitted first;
// of those that run, the first gets its prompt computed first, and the last gives way when memory runs out.

/** A request as an order sees it. */
export interface OrderedRequest {
  /** 0 … 255, as the request says. */
  readonly urgency: number;
  /** Number of the request: later ones have larger ones. A preempted request keeps its own. */
  readonly arrival: number;
  /** Undefined: none was named. */
  readonly tenant: string | undefined;
  /** Tokens computed for its tenant since that became active; a newcomer starts at the least of all active tenants. */
  readonly tenantTokens: number;
  /** Tokens of its prompt. */
  readonly promptTokens: number;
  /** Tokens that it has been given so far. */
  readonly generatedTokens: number;
}

/**
 * Negative when `a` goes before `b`. Must end with `arrival`, so that no two are equal. Who waits takes a running one's place only
 * where he is more urgent and the order puts him first.
 */
export type RequestOrder = (a: OrderedRequest, b: OrderedRequest) => number;

/** The more urgent, then the earlier. Nobody is passed by a later request of the same urgency. */
export function byArrival(): RequestOrder {
  return (a, b) => b.urgency - a.urgency || a.arrival - b.arrival;
}

/**
 * The more urgent, then those of the tenant for whom least was computed, then the earlier: one tenant's flood of requests
 * does not delay the others'. (The virtual counters of "Fairness in Serving Large Language Models", 2024.)
 */
export function byTenantShare(): RequestOrder {
  return (a, b) => b.urgency - a.urgency || a.tenantTokens - b.tenantTokens || a.arrival - b.arrival;
}
