// OrderQueue: waiting requests by the scheduler's order. What an order sees of a waiting request stays as it is, but the tokens
// computed for its tenant: so each tenant's requests are a heap, and the tenants are one by their first requests. A step touches
// the tenants that have computed something, and no request. It looks at requests only in the scheduler's steps, since orders
// may be the user's functions, and throw.
//
// Requests that have ended stay until they come first, or are the most: nobody looks for them.

import type { RequestOrder } from './request-order.js';
import type { Generation } from './generation.js';
import { Heap } from './heap.js';
import type { TenantShare } from './tenant-shares.js';

interface TenantQueue {
  readonly share: TenantShare;
  readonly requests: Heap<Generation>;
  /** Its place among the tenants. */
  index: number;
}

export class OrderQueue {
  readonly #order: RequestOrder;
  readonly #byShare = new Map<TenantShare, TenantQueue>();
  readonly #tenants: Heap<TenantQueue>;

  constructor(order: RequestOrder) {
    this.#order = order;
    const byFirst = (a: TenantQueue, b: TenantQueue): number => order(a.requests.first!, b.requests.first!);
    this.#tenants = new Heap<TenantQueue>(byFirst, (queue, index) => { queue.index = index; });
  }

  /** Whether there is none, not even one that has ended. */
  get isEmpty(): boolean {
    return this.#tenants.length === 0;
  }

  add(generation: Generation): void {
    const share = generation.share!;
    const queue = this.#byShare.get(share);
    if (queue !== undefined) {
      queue.requests.push(generation);
      if (queue.requests.first === generation) this.#tenants.update(queue.index);
      return;
    }
    const requests = new Heap<Generation>(this.#order);
    requests.push(generation);
    const added = { share, requests, index: 0 };
    this.#byShare.set(share, added);
    this.#tenants.push(added);
  }

  /** The first in order of those that have not ended. */
  first(): Generation | undefined {
    for (let queue = this.#tenants.first; queue !== undefined; queue = this.#tenants.first) {
      const generation = queue.requests.first!;
      if (!generation.hasEnded) return generation;
      this.#takeFirst(queue);
    }
    return undefined;
  }

  /** Takes out what `first` has answered. */
  shift(): void {
    const queue = this.#tenants.first;
    if (queue !== undefined) this.#takeFirst(queue);
  }

  /** More was computed for this tenant; to be said before more is computed for another, so that one is out of place at a time. */
  hasGrown(share: TenantShare): void {
    const queue = this.#byShare.get(share);
    if (queue !== undefined) this.#tenants.update(queue.index);
  }

  /** Forgets those that have ended, in linear time. */
  forgetEnded(): void {
    const left = this.clear();
    for (const generation of left) if (!generation.hasEnded) this.add(generation);
  }

  /** All of them, in no order; it is empty then. Asks the order nothing. */
  clear(): Generation[] {
    const all = this.#tenants.clear().flatMap(({ requests }) => requests.clear());
    this.#byShare.clear();
    return all;
  }

  #takeFirst(queue: TenantQueue): void {
    queue.requests.shift();
    if (queue.requests.length > 0) {
      this.#tenants.update(queue.index);
      return;
    }
    this.#tenants.remove(queue.index);
    this.#byShare.delete(queue.share);
  }
}
