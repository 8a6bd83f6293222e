// CheckedPolicy: an eviction policy that cannot harm the index. It knows which nodes the policy was told of, so that it
// can tell a victim from nonsense; a policy that throws, or names what is no victim, is replaced by `lru` for good, and
// reported once.

import { createError } from '../../base/errors.js';
import { enlarged } from '../../base/typed-arrays.js';
import type { EvictionPolicy, NodeView, OfferedText, ReleasedRequest } from './eviction-policy.js';
import { LeastRecentlyUsed } from './lru.js';

export class CheckedPolicy implements EvictionPolicy {
  readonly #nodes: NodeView;
  readonly #onFailure: (error: unknown) => void;
  #policy: EvictionPolicy;
  /** Whether the policy may withhold text. Read only. */
  canWithhold: boolean;
  /** By node: 1 when it is in the pool. */
  #isListed = new Uint8Array(64);

  /** `onFailure` hears of the failure that ended the policy. */
  constructor(policy: EvictionPolicy, nodes: NodeView, onFailure: (error: unknown) => void) {
    this.#policy = policy;
    this.canWithhold = policy.withholds !== undefined;
    this.#nodes = nodes;
    this.#onFailure = onFailure;
  }

  add(node: number): void {
    this.#list(node);
    try {
      this.#policy.add(node);
    } catch (error) {
      this.#replace(error);
    }
  }

  remove(node: number): void {
    this.#isListed[node] = 0;
    try {
      this.#policy.remove(node);
    } catch (error) {
      this.#replace(error);
    }
  }

  split(upper: number, lower: number): void {
    this.#list(upper);
    try {
      this.#policy.split(upper, lower);
    } catch (error) {
      this.#replace(error);
    }
  }

  victim(): number {
    try {
      return this.#checked(this.#policy.victim());
    } catch (error) {
      this.#replace(error);
      return this.#policy.victim();
    }
  }

  victims(leaves: Int32Array): number {
    try {
      if (this.#policy.victims !== undefined) return this.#checkedVictims(this.#policy.victims(leaves), leaves);
    } catch (error) {
      this.#replace(error);
    }
    leaves[0] = this.victim();
    return leaves[0] < 0 ? 0 : 1;
  }

  withholds(node: number): boolean {
    try {
      const isWithheld: unknown = this.#policy.withholds?.(node) ?? false;
      if (typeof isWithheld === 'boolean') return isWithheld;
      throw refused('`withholds` returns true or false', isWithheld);
    } catch (error) {
      this.#replace(error);
      return false;
    }
  }

  withholdsForGood(node: number): boolean {
    try {
      const isForGood: unknown = this.#policy.withholdsForGood?.(node) ?? false;
      if (typeof isForGood === 'boolean') return isForGood;
      throw refused('`withholdsForGood` returns true or false', isForGood);
    } catch (error) {
      this.#replace(error);
      return false;
    }
  }

  get withheldShare(): number {
    try {
      const share: unknown = this.#policy.withheldShare ?? 1;
      if (typeof share === 'number' && share >= 0 && share <= 1) return share;
      throw refused('`withheldShare` is a number, 0 … 1', share);
    } catch (error) {
      this.#replace(error);
      return 1;
    }
  }

  floorTokens(victim: number): number {
    try {
      const tokens: unknown = this.#policy.floorTokens?.(victim) ?? 0;
      if (typeof tokens === 'number' && tokens >= 0) return tokens;
      throw refused('`floorTokens` returns a number of tokens', tokens);
    } catch (error) {
      this.#replace(error);
      return 0;
    }
  }

  lastingLevel(level: number): number {
    try {
      const lasting: unknown = this.#policy.lastingLevel?.(level) ?? 0;
      if (Number.isInteger(lasting) && lasting as number >= 0 && lasting as number <= 255) return lasting as number;
      throw refused('`lastingLevel` returns 0 … 255', lasting);
    } catch (error) {
      this.#replace(error);
      return 0;
    }
  }

  /** Whether `isWorthRoom` may say so of some text. */
  get canOffer(): boolean {
    return this.#policy.isWorthRoom !== undefined;
  }

  isWorthRoom(text: OfferedText): boolean {
    try {
      const isWorth: unknown = this.#policy.isWorthRoom === undefined ? false : this.#policy.isWorthRoom(text);
      if (typeof isWorth === 'boolean') return isWorth;
      throw refused('`isWorthRoom` returns true or false', isWorth);
    } catch (error) {
      this.#replace(error);
      return false;
    }
  }

  observe(node: number, tokens: number, request: ReleasedRequest): void {
    try {
      this.#policy.observe?.(node, tokens, request);
    } catch (error) {
      this.#replace(error);
    }
  }

  #checked(victim: unknown): number {
    if (typeof victim === 'number' && victim < 0) return -1;
    if (typeof victim === 'number' && this.#isListed[victim] === 1 && this.#nodes.firstChild[victim] === -1) {
      return victim;
    }
    throw refused('`victim` returns a leaf that was added and not removed since, or -1', victim);
  }

  #checkedVictims(count: number, leaves: Int32Array): number {
    if (!Number.isInteger(count) || count < 0 || count > leaves.length) {
      throw refused('`victims` returns how many leaves it has written', count);
    }
    for (let at = 0; at < count; at += 1) {
      if (this.#checked(leaves[at]) < 0) throw refused('`victims` writes leaves', leaves[at]);
    }
    return count;
  }

  #list(node: number): void {
    if (node >= this.#isListed.length) {
      this.#isListed = enlarged(this.#isListed, Math.max(node + 1, 2 * this.#isListed.length));
    }
    this.#isListed[node] = 1;
  }

  /** Goes on with `lru` over the same nodes: by last use, and of one text the end first. */
  #replace(error: unknown): void {
    const { lastUse, to } = this.#nodes;
    const listed: number[] = [];
    this.#isListed.forEach((isListed, node) => { if (isListed === 1) listed.push(node); });
    listed.sort((a, b) => lastUse[a]! - lastUse[b]! || to[b]! - to[a]!);
    this.#policy = new LeastRecentlyUsed(this.#nodes);
    this.canWithhold = false;
    for (const node of listed) this.#policy.add(node);
    this.#onFailure(error);
  }
}

function refused(expected: string, received: unknown): Error {
  return createError('KV_INVALID_OPTION', {
    reason: 'range', owner: 'KvCache', option: 'prefixCache.policy', expected: `a policy whose ${expected}`, received,
    isReturned: true,
  });
}
