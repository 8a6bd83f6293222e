// CheckedPolicy: an eviction policy with a guard in front of it that throws when the pool or the policy breaks the contract of
// eviction-policy.ts: nodes come and go once, and a victim is a leaf that nobody uses.

import type { EvictionContext, EvictionPolicy, EvictionPolicyFactory, ReleasedRequest } from '#internal/prefix/index.js';

export function checkedPolicy(factory: EvictionPolicyFactory): EvictionPolicyFactory {
  return (context) => new CheckedPolicy(context, factory(context));
}

class CheckedPolicy implements EvictionPolicy {
  readonly #context: EvictionContext;
  readonly #policy: EvictionPolicy;
  readonly #pooled = new Set<number>();

  constructor(context: EvictionContext, policy: EvictionPolicy) {
    this.#context = context;
    this.#policy = policy;
  }

  add(node: number): void {
    expect(!this.#pooled.has(node), 'a node is added twice');
    this.#pooled.add(node);
    this.#policy.add(node);
  }

  remove(node: number): void {
    this.#pooled.delete(node);
    this.#policy.remove(node);
  }

  split(upper: number, lower: number): void {
    expect(this.#pooled.has(lower) && !this.#pooled.has(upper), 'a node that is in use is split');
    this.#pooled.add(upper);
    this.#policy.split(upper, lower);
  }

  victim(): number {
    const victim = this.#policy.victim();
    expect(victim < 0 || this.#pooled.has(victim), `the victim ${victim} is in use`);
    expect(victim < 0 || this.#context.nodes.firstChild[victim] === -1, `the victim ${victim} has children`);
    return victim;
  }

  victims(leaves: Int32Array): number {
    const first = this.victim();
    if (this.#policy.victims === undefined) {
      leaves[0] = first;
      return first < 0 ? 0 : 1;
    }
    const count = this.#policy.victims(leaves);
    const named = [...leaves.subarray(0, count)];
    expect(first < 0 ? count === 0 : named[0] === first, `the first of ${named.join()} is the victim ${first}`);
    expect(new Set(named).size === count, 'a leaf is named once');
    for (const leaf of named) {
      expect(this.#pooled.has(leaf), `the leaf ${leaf} is in use`);
      expect(this.#context.nodes.firstChild[leaf] === -1, `the leaf ${leaf} has children`);
      expect(!this.withholds(leaf), `the leaf ${leaf} is withheld`);
    }
    return count;
  }

  get isWorthRoom(): EvictionPolicy['isWorthRoom'] {
    return this.#policy.isWorthRoom?.bind(this.#policy);
  }

  lastingLevel(level: number): number {
    return this.#policy.lastingLevel?.(level) ?? 0;
  }

  withholds(node: number): boolean {
    return this.#policy.withholds?.(node) ?? false;
  }

  floorTokens(victim: number): number {
    return this.#policy.floorTokens?.(victim) ?? 0;
  }

  observe(node: number, tokens: number, request: ReleasedRequest): void {
    this.#policy.observe?.(node, tokens, request);
  }
}

function expect(isRight: boolean, problem: string): void {
  if (!isRight) throw new Error(problem);
}
