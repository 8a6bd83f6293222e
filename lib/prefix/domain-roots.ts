// DomainRoots: where the text of each domain begins in the prefix tree, and which numbers tenants have there.

import type { PrefixDomain } from './domain.js';
import type { PrefixTree } from './prefix-tree.js';

/**
 * The root of each domain that has text, and the number of each tenant that has a domain. Domains and tenants come and
 * go with the requests; one without text leaves nothing behind.
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

  /** The domain of a node's text. */
  domainOf(node: number): PrefixDomain {
    const { parent } = this.#tree.nodes;
    let root = node;
    while (parent[root]! >= 0) root = parent[root]!;
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
