// PrefixDomain: within which requests may share. Texts of different domains never meet, however alike they are. Each part
// has a place of its own in the key, so an adapter named "a" is not a salt named "a", and none is not the empty string.

import type { PrefixTree } from './prefix-tree.js';

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

/**
 * The root of each domain that has text, and the number of each tenant that has a domain. Domains and tenants come and go with the
 * requests; one without text leaves nothing behind.
 */
export class DomainRoots {
  readonly #tree: PrefixTree;
  readonly #roots = new Map<string, number>();
  readonly #domains = new Map<number, PrefixDomain>();
  readonly #tenants = new Map<string | undefined, { readonly number: number; domains: number }>();
  readonly #freeTenants: number[] = [];

  constructor(tree: PrefixTree) {
    this.#tree = tree;
  }

  /** The root of a domain, or -1 when it has no text. */
  find(domain: PrefixDomain): number {
    return this.#roots.get(domain.key) ?? -1;
  }

  /** The root of a domain, made when there is none. */
  open(domain: PrefixDomain): number {
    const found = this.#roots.get(domain.key);
    if (found !== undefined) return found;
    const root = this.#tree.makeRoot(this.#joinTenant(domain.tenant));
    this.#roots.set(domain.key, root);
    this.#domains.set(root, domain);
    return root;
  }

  /** Removes a root that nothing hangs on. */
  closeIfEmpty(root: number): void {
    const domain = this.#domains.get(root);
    if (domain === undefined || !this.#tree.isLeaf(root) || this.#tree.nodes.pins[root] !== 0) return;
    this.#roots.delete(domain.key);
    this.#domains.delete(root);
    this.#tree.remove(root);
    this.#leaveTenant(domain.tenant);
  }

  /** The domain of a root. */
  domainOf(root: number): PrefixDomain {
    return this.#domains.get(root)!;
  }

  /** All domains that have text, with their roots. */
  entries(): IterableIterator<[number, PrefixDomain]> {
    return this.#domains.entries();
  }

  #joinTenant(name: string | undefined): number {
    let tenant = this.#tenants.get(name);
    if (tenant === undefined) {
      tenant = { number: this.#freeTenants.pop() ?? this.#tenants.size, domains: 0 };
      this.#tenants.set(name, tenant);
    }
    tenant.domains += 1;
    return tenant.number;
  }

  #leaveTenant(name: string | undefined): void {
    const tenant = this.#tenants.get(name)!;
    tenant.domains -= 1;
    if (tenant.domains > 0) return;
    this.#tenants.delete(name);
    this.#freeTenants.push(tenant.number);
  }
}
