// TenantShares: what was computed for each tenant that has requests in a scheduler, in tokens, for orders that are fair
// between tenants. A tenant without requests is forgotten; one that comes (back) starts at the least of those that are
// there, so that nobody saves up a claim by being idle.
//
// Invariant: a share's `knownTokens` are at most its tokens, which only grow; so the least of the first is at most the least of
// the second, and a share is looked at again only where it has grown.

import { Heap } from './heap.js';

export interface TenantShare {
  /** Tokens computed for it. */
  tokens: number;
  /** Its requests, waiting or running. */
  requests: number;
  /** Tokens when its place among the shares was found. */
  knownTokens: number;
  /** Its place there. */
  index: number;
}

type Tenant = string | undefined;

export class TenantShares {
  readonly #byTenant = new Map<Tenant, TenantShare>();
  readonly #least = new Heap<TenantShare>((a, b) => a.knownTokens - b.knownTokens, (share, index) => { share.index = index; });

  /** One more request of a tenant. */
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

  /** One request of a tenant has ended. */
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
