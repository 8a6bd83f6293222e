// PrefixDomain: within which requests may share. Texts of different domains never meet, however alike they are. Each
// part has a place of its own in the key, so an adapter named "a" is not a salt named "a", and none is not the empty
// string.

/** Within which requests share: those whose parts are all equal. None is not the empty string. */
export interface PrefixDomainParts {
  /** Whose text it is: tenants are apart, and a tenant has a quota. */
  readonly tenant?: string | undefined;
  /** A further secret or group that must be equal. */
  readonly salt?: string | undefined;
  /** The adapter (LoRA) that computes K and V. */
  readonly adapter?: string | undefined;
  /** Version of the weights, or anything else that makes old entries unreachable when it changes. */
  readonly namespace?: string | undefined;
}

export const domainParts = ['namespace', 'tenant', 'salt', 'adapter'] as const;

export type PrefixDomainPart = (typeof domainParts)[number];

export interface PrefixDomain extends PrefixDomainParts {
  /** Equal exactly when all parts are. */
  readonly key: string;
}

/** A domain to match and acquire in; make it once per tenant or adapter, not per request. */
export function prefixDomain(parts: PrefixDomainParts = {}): PrefixDomain {
  const { namespace, tenant, salt, adapter } = parts;
  const key = JSON.stringify([namespace ?? null, tenant ?? null, salt ?? null, adapter ?? null]);
  return { namespace, tenant, salt, adapter, key };
}

/** The domain of requests that name none. */
export const sharedDomain: PrefixDomain = prefixDomain();
