// TenantShares: what was computed for each tenant that has requests in a scheduler, in tokens, for orders that are fair
// between tenants. A tenant without requests is forgotten; one that comes (back) starts at the least of those that are
// there, so that nobody saves up a claim by being idle.

export interface TenantShare {
  /** Tokens computed for it. */
  tokens: number;
  /** Its requests, waiting or running. */
  requests: number;
}

export class TenantShares {
  readonly #byTenant = new Map<string | undefined, TenantShare>();

  /** One more request of a tenant. */
  enter(tenant: string | undefined): TenantShare {
    let share = this.#byTenant.get(tenant);
    if (share === undefined) {
      let tokens = Infinity; // a loop, since they may be too many to be arguments
      for (const other of this.#byTenant.values()) tokens = Math.min(tokens, other.tokens);
      this.#byTenant.set(tenant, share = { tokens: tokens === Infinity ? 0 : tokens, requests: 0 });
    }
    share.requests += 1;
    return share;
  }

  /** One request of a tenant has ended. */
  leave(tenant: string | undefined, share: TenantShare): void {
    share.requests -= 1;
    if (share.requests === 0) this.#byTenant.delete(tenant);
  }
}
