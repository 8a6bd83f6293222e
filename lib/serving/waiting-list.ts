// WaitingList: requests that have no slot: those that came, those that gave way, those that others leave no room for, and those
// that wait for another one's prompt. One that cannot start now costs a step nothing: each stands where only what it waits for
// brings it back. It knows no memory and starts nothing.
//
// Invariants: `add` and `drop` ask the order nothing, so they may be called at any time; all else is for a step. Whoever has
// ended is counted nowhere, and forgotten when it comes first or when such are the most.

import type { RequestOrder } from './request-order.js';
import type { Generation } from './generation.js';
import { Heap } from './heap.js';
import { OrderQueue } from './order-queue.js';
import type { TenantShare } from './tenant-shares.js';

export class WaitingList {
  readonly #order: RequestOrder;
  readonly #ready: OrderQueue;
  /** Refused while nothing of the scheduler ran, for what others hold. */
  readonly #heldUp: OrderQueue;
  /** Since the last step. */
  readonly #arrived = new Set<Generation>();
  /** By who computes the start of their prompts: the one first that needs least of it. */
  readonly #followers = new Map<Generation, Heap<Generation>>();
  readonly #byUrgency = new Int32Array(256);
  /** At least the largest urgency among them. */
  #mostUrgent = -1;
  #length = 0;
  /** That have ended and are still somewhere. */
  #ended = 0;

  constructor(order: RequestOrder) {
    this.#order = order;
    this.#ready = new OrderQueue(order);
    this.#heldUp = new OrderQueue(order);
  }

  get length(): number {
    return this.#length;
  }

  /** Whether some came since the step began. */
  get hasArrivals(): boolean {
    return this.#arrived.size > 0;
  }

  /** The largest urgency among them; -1: there are none. */
  get urgency(): number {
    while (this.#mostUrgent >= 0 && this.#byUrgency[this.#mostUrgent] === 0) this.#mostUrgent -= 1;
    return this.#mostUrgent;
  }

  /** One that came: it is looked at from the next step on. */
  add(generation: Generation): void {
    this.#count(generation, 1);
    this.#arrived.add(generation);
  }

  /** One that gave way. */
  addBack(generation: Generation): void {
    this.#count(generation, 1);
    this.#ready.add(generation);
  }

  /** It has ended. */
  drop(generation: Generation): void {
    this.#count(generation, -1);
    if (!this.#arrived.delete(generation)) this.#ended += 1;
  }

  /** A step begins: those that came, and those whose wait for another's prompt is over, can be next. */
  settle(): void {
    for (const generation of this.#arrived) {
      this.#ready.add(generation);
      this.#arrived.delete(generation);
    }
    for (const [leader, followers] of this.#followers) this.#settleFollowers(leader, followers);
    if (this.#ended > 64 && this.#ended > this.#length) this.#forgetEnded();
  }

  /** The first in order; of those that were held up only where `withHeldUp` says so. */
  first(withHeldUp: boolean): Generation | undefined {
    const ready = this.#ready.first();
    const heldUp = withHeldUp ? this.#heldUp.first() : undefined;
    if (ready === undefined || heldUp === undefined) return ready ?? heldUp;
    return this.#order(heldUp, ready) < 0 ? heldUp : ready;
  }

  /** What `first` has answered has got a slot, or ends. */
  take(generation: Generation): void {
    this.#queueOf(generation).shift();
    generation.isHeldUp = false;
    if (generation.isWaiting) this.#count(generation, -1);
    else this.#ended -= 1;
  }

  /** What `first` has answered waits until there is more than others leave now. */
  holdUp(generation: Generation): void {
    if (generation.isHeldUp) return;
    this.#ready.shift();
    generation.isHeldUp = true;
    this.#heldUp.add(generation);
  }

  /** What `first` has answered waits for its leader. */
  follow(generation: Generation): void {
    this.#queueOf(generation).shift();
    const leader = generation.leader!;
    let followers = this.#followers.get(leader);
    if (followers === undefined) this.#followers.set(leader, followers = new Heap<Generation>((a, b) => a.awaitedTokens - b.awaitedTokens));
    followers.push(generation);
  }

  /** There is more: those that were held up may try again. */
  letTryAgain(): void {
    for (const generation of this.#heldUp.clear()) {
      generation.isHeldUp = false;
      this.#ready.add(generation);
    }
  }

  /** More was computed for a tenant. */
  hasGrown(share: TenantShare): void {
    this.#ready.hasGrown(share);
    this.#heldUp.hasGrown(share);
  }

  /** Forgets all; those in it have ended. Also after the order threw in the middle of a change. */
  clear(): void {
    this.#arrived.clear();
    this.#ready.clear();
    this.#heldUp.clear();
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

  #queueOf({ isHeldUp }: Generation): OrderQueue {
    return isHeldUp ? this.#heldUp : this.#ready;
  }

  #settleFollowers(leader: Generation, followers: Heap<Generation>): void {
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
    this.#heldUp.forgetEnded();
    for (const [leader, followers] of this.#followers) {
      followers.retain(({ hasEnded }) => !hasEnded);
      if (followers.length === 0) this.#followers.delete(leader);
    }
    this.#ended = 0;
  }
}
