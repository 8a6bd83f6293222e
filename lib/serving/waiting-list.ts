// WaitingList: requests that have no slot: new, preempted, blocked by what other users of the cache hold, or waiting
// for another request's prompt. A request that cannot start costs a step nothing: it stands in a queue from which only
// what it waits for takes it. Knows no memory and starts nothing.
//
// Invariants: `add` and `drop` do not call the order, so they may be called at any time; all else is for a step. An
// ended request is not counted, and is removed when it comes first or when ended requests are the majority.

import type { Generation } from './generation.js';
import { Heap } from '../base/heap.js';
import { OrderQueue } from './order-queue.js';
import type { RequestOrder, TenantShare } from './request-order.js';

/** Requests that wait until another has computed the start of their prompts. */
interface Followers {
  /** The one that needs least of it first. */
  readonly waiting: Heap<Generation>;
  /** Whether the other has had a slot since: before that, they wait for it to get one. */
  hasBegun: boolean;
}

export class WaitingList {
  readonly #order: RequestOrder;
  readonly #ready: OrderQueue;
  /** The same as in `#ready`: the most urgent, and of these the shortest, first. */
  readonly #byLength = new Heap<Generation>(
    (a, b) => b.urgency - a.urgency || a.textTokens - b.textTokens || a.arrival - b.arrival,
    (generation, index) => { generation.lengthIndex = index; },
  );
  /** Refused while nothing of the scheduler ran, for what others hold. */
  readonly #blocked: OrderQueue;
  /** Those that need more than the budgets are. */
  readonly #unfit = new Set<Generation>();
  /** Added since the last step. */
  readonly #arrived = new Set<Generation>();
  /** By the request that computes the start of their prompts, or is next to do so. */
  readonly #followers = new Map<Generation, Followers>();
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
    this.#makeReady(generation);
  }

  /** Removes a request that has ended. */
  drop(generation: Generation): void {
    this.#count(generation, -1);
    if (!this.#arrived.delete(generation) && !this.#unfit.delete(generation)) this.#ended += 1;
  }

  /** Begins a step: new requests, and those whose wait for another's prompt is over, can be `first`. */
  beginStep(): void {
    for (const generation of this.#arrived) {
      this.#makeReady(generation);
      this.#arrived.delete(generation);
    }
    for (const [leader, followers] of this.#followers) this.#settleFollowers(leader, followers);
    if (this.#ended > 64 && this.#ended > this.#length) this.#forgetEnded();
  }

  /** The first in order, of blocked requests only with `withBlocked`. */
  first(withBlocked: boolean): Generation | undefined {
    const ready = this.#ready.first();
    const blocked = withBlocked ? this.#blocked.first() : undefined;
    if (ready === undefined || blocked === undefined) return ready ?? blocked;
    return this.#order(blocked, ready) < 0 ? blocked : ready;
  }

  /** The most urgent that are ready, and of these the one with the shortest text. */
  shortest(): Generation | undefined {
    for (;;) {
      const { first } = this.#byLength;
      if (first?.hasEnded !== true) return first;
      this.#byLength.shift();
      first.lengthIndex = -1;
    }
  }

  /** Takes out what `first` or `shortest` has returned: it has got a slot, or ends. */
  take(generation: Generation): void {
    this.#remove(generation);
    if (generation.isWaiting) this.#count(generation, -1);
    else this.#ended -= 1;
  }

  /** Blocks what `first` has returned, until `unblock`. */
  block(generation: Generation): void {
    if (generation.isBlocked) return;
    this.#remove(generation);
    generation.isBlocked = true;
    this.#blocked.add(generation);
    this.#letPass(generation);
  }

  /** Whether some wait for larger budgets. */
  get hasUnfit(): boolean {
    return this.#unfit.size > 0;
  }

  /** Has what `first` has returned wait for larger budgets, until `reconsider`. */
  setAside(generation: Generation): void {
    this.#remove(generation);
    if (generation.isWaiting) this.#unfit.add(generation);
    else this.#ended -= 1;
    this.#letPass(generation);
  }

  /** Lets those that were set aside try again. */
  reconsider(): void {
    for (const generation of this.#unfit) {
      generation.shortage = undefined;
      this.#makeReady(generation);
    }
    this.#unfit.clear();
  }

  /** Has what `first` or `shortest` has returned wait for its leader, which runs. */
  follow(generation: Generation): void {
    this.#remove(generation);
    this.#addFollower(generation, true);
  }

  /** Lets blocked requests try again. */
  unblock(): void {
    for (const generation of this.#blocked.clear()) {
      generation.isBlocked = false;
      this.#makeReady(generation);
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
    this.#byLength.clear();
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

  #makeReady(generation: Generation): void {
    generation.forgetCached();
    this.#ready.add(generation);
    this.#byLength.push(generation);
  }

  /** Takes a request out of the queue in which it is: of those that are ready, or blocked. */
  #remove(generation: Generation): void {
    (generation.isBlocked ? this.#blocked : this.#ready).remove(generation);
    generation.isBlocked = false;
    if (generation.lengthIndex < 0) return;
    this.#byLength.remove(generation.lengthIndex);
    generation.lengthIndex = -1;
  }

  #addFollower(generation: Generation, hasBegun: boolean): void {
    const leader = generation.leader!;
    let followers = this.#followers.get(leader);
    if (followers === undefined) {
      followers = { waiting: new Heap<Generation>((a, b) => a.awaitedTokens - b.awaitedTokens), hasBegun };
      this.#followers.set(leader, followers);
    }
    followers.waiting.push(generation);
  }

  /** The request cannot start: those that wait for it need not. */
  #letPass(generation: Generation): void {
    const followers = this.#followers.get(generation);
    if (followers !== undefined) this.#settleFollowers(generation, followers);
  }

  /** Ends the wait of those for which enough is computed; where that ends early, one of the others goes on for all. */
  #settleFollowers(leader: Generation, followers: Followers): void {
    const { sequence } = leader;
    const { waiting } = followers;
    followers.hasBegun ||= sequence !== undefined;
    const isNext = leader.isWaiting && !leader.isBlocked && leader.shortage === undefined;
    if (!followers.hasBegun && isNext) return;
    const computed = sequence === undefined ? leader.reachedTokens : leader.length;
    for (let next = waiting.first; next !== undefined && (next.hasEnded || next.awaitedTokens <= computed);
        next = waiting.first) {
      waiting.shift();
      next.leader = undefined;
      if (next.hasEnded) this.#ended -= 1;
      else this.#makeReady(next);
    }
    if (waiting.length > 0 && sequence !== undefined) return;
    this.#followers.delete(leader);
    this.#succeed(waiting.clear());
  }

  /**
   * Those that have waited for a request which does not run any more: the first in order is next to compute what they
   * have in common with it, and so with each other, and the others wait for that one. No texts are compared.
   */
  #succeed(orphans: readonly Generation[]): void {
    const open = orphans.filter(({ hasEnded }) => !hasEnded);
    this.#ended -= orphans.length - open.length;
    if (open.length === 0) return;
    const next = open.reduce((first, each) => (this.#order(each, first) < 0 ? each : first));
    for (const each of open) {
      each.leader = each !== next && next.sharesWith(each) ? next : undefined;
      each.awaitedTokens = Math.min(each.awaitedTokens, next.awaitedTokens);
      if (each.leader === undefined) this.#makeReady(each);
      else this.#addFollower(each, false);
    }
  }

  #forgetEnded(): void {
    this.#ready.forgetEnded();
    this.#byLength.retain(({ hasEnded }) => !hasEnded);
    this.#blocked.forgetEnded();
    for (const [leader, { waiting }] of this.#followers) {
      waiting.retain(({ hasEnded }) => !hasEnded);
      if (waiting.length === 0) this.#followers.delete(leader);
    }
    this.#ended = 0;
  }
}
