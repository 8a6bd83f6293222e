// WaitingList: requests that have no slot: new, preempted, blocked by what other users of the cache hold, or waiting for another
// request's prompt. A request that cannot start costs a step nothing: it stands in a queue from which only what it waits for takes
// it. Knows no memory and starts nothing.
//
// Invariants: `add` and `drop` do not call the order, so they may be called at any time; all else is for a step. An ended request
// is not counted, and is removed when it comes first or when ended requests are the majority.

import type { Generation } from './generation.js';
import { Heap } from './heap.js';
import { OrderQueue } from './order-queue.js';
import type { RequestOrder, TenantShare } from './request-order.js';

export class WaitingList {
  readonly #order: RequestOrder;
  readonly #ready: OrderQueue;
  /** Refused while nothing of the scheduler ran, for what others hold. */
  readonly #blocked: OrderQueue;
  /** Those that need more than the budgets are. */
  readonly #unfit = new Set<Generation>();
  /** Added since the last step. */
  readonly #arrived = new Set<Generation>();
  /** By the request that computes the start of their prompts; the one that needs least of it first. */
  readonly #followers = new Map<Generation, Heap<Generation>>();
  readonly #byUrgency = new Int32Array(256);
  /** At least the largest urgency among them. */
  #mostUrgent = -1;
  #length = 0;
  /** Ended requests that are still in a queue. */
  #ended = 0;

  constructor(order: RequestOrder) {
    this.#order = order;
    this.#ready = new OrderQueue(order);
    this.#blocked = new OrderQueue(order);
  }

  get length(): number {
    return this.#length;
  }

  /** Whether requests were added since the step began. */
  get hasArrivals(): boolean {
    return this.#arrived.size > 0;
  }

  /** The largest urgency in the list; -1: it is empty. */
  get urgency(): number {
    while (this.#mostUrgent >= 0 && this.#byUrgency[this.#mostUrgent] === 0) this.#mostUrgent -= 1;
    return this.#mostUrgent;
  }

  /** Adds a new request, which can be `first` from the next step on. */
  add(generation: Generation): void {
    this.#count(generation, 1);
    this.#arrived.add(generation);
  }

  /** Adds a preempted request. */
  addBack(generation: Generation): void {
    this.#count(generation, 1);
    this.#ready.add(generation);
  }

  /** Removes a request that has ended. */
  drop(generation: Generation): void {
    this.#count(generation, -1);
    if (!this.#arrived.delete(generation) && !this.#unfit.delete(generation)) this.#ended += 1;
  }

  /** Begins a step: new requests, and those whose wait for another's prompt is over, can be `first`. */
  beginStep(): void {
    for (const generation of this.#arrived) {
      this.#ready.add(generation);
      this.#arrived.delete(generation);
    }
    for (const [leader, followers] of this.#followers) this.#readyFollowers(leader, followers);
    if (this.#ended > 64 && this.#ended > this.#length) this.#forgetEnded();
  }

  /** The first in order, of blocked requests only with `withBlocked`. */
  first(withBlocked: boolean): Generation | undefined {
    const ready = this.#ready.first();
    const blocked = withBlocked ? this.#blocked.first() : undefined;
    if (ready === undefined || blocked === undefined) return ready ?? blocked;
    return this.#order(blocked, ready) < 0 ? blocked : ready;
  }

  /** Takes out what `first` has returned: it has got a slot, or ends. */
  take(generation: Generation): void {
    this.#queueOf(generation).shift();
    generation.isBlocked = false;
    if (generation.isWaiting) this.#count(generation, -1);
    else this.#ended -= 1;
  }

  /** Blocks what `first` has returned, until `unblock`. */
  block(generation: Generation): void {
    if (generation.isBlocked) return;
    this.#ready.shift();
    generation.isBlocked = true;
    this.#blocked.add(generation);
  }

  /** Whether some wait for larger budgets. */
  get hasUnfit(): boolean {
    return this.#unfit.size > 0;
  }

  /** Has what `first` has returned wait for larger budgets, until `reconsider`. */
  setAside(generation: Generation): void {
    this.#queueOf(generation).shift();
    generation.isBlocked = false;
    if (generation.isWaiting) this.#unfit.add(generation);
    else this.#ended -= 1;
  }

  /** Lets those that were set aside try again. */
  reconsider(): void {
    for (const generation of this.#unfit) {
      generation.shortage = undefined;
      this.#ready.add(generation);
    }
    this.#unfit.clear();
  }

  /** Has what `first` has returned wait for its leader. */
  follow(generation: Generation): void {
    this.#queueOf(generation).shift();
    const leader = generation.leader!;
    let followers = this.#followers.get(leader);
    if (followers === undefined) this.#followers.set(leader, followers = new Heap<Generation>((a, b) => a.awaitedTokens - b.awaitedTokens));
    followers.push(generation);
  }

  /** Lets blocked requests try again. */
  unblock(): void {
    for (const generation of this.#blocked.clear()) {
      generation.isBlocked = false;
      this.#ready.add(generation);
    }
  }

  /** Moves the requests of a tenant whose share has grown. */
  reorder(share: TenantShare): void {
    this.#ready.reorder(share);
    this.#blocked.reorder(share);
  }

  /** Removes all, which have ended. Also after the order threw in the middle of a change. */
  clear(): void {
    this.#arrived.clear();
    this.#unfit.clear();
    this.#ready.clear();
    this.#blocked.clear();
    this.#followers.clear();
    this.#byUrgency.fill(0);
    this.#length = 0;
    this.#ended = 0;
  }

  #count(generation: Generation, by: 1 | -1): void {
    generation.isWaiting = by === 1;
    this.#length += by;
    this.#byUrgency[generation.urgency]! += by;
    this.#mostUrgent = Math.max(this.#mostUrgent, generation.urgency);
  }

  #queueOf({ isBlocked }: Generation): OrderQueue {
    return isBlocked ? this.#blocked : this.#ready;
  }

  #readyFollowers(leader: Generation, followers: Heap<Generation>): void {
    const { sequence, length } = leader;
    for (let next = followers.first; next !== undefined; next = followers.first) {
      if (!next.hasEnded && sequence !== undefined && length < next.awaitedTokens) return;
      followers.shift();
      next.leader = undefined;
      if (next.hasEnded) this.#ended -= 1;
      else this.#queueOf(next).add(next);
    }
    this.#followers.delete(leader);
  }

  #forgetEnded(): void {
    this.#ready.forgetEnded();
    this.#blocked.forgetEnded();
    for (const [leader, followers] of this.#followers) {
      followers.retain(({ hasEnded }) => !hasEnded);
      if (followers.length === 0) this.#followers.delete(leader);
    }
    this.#ended = 0;
  }
}
