// OrderQueue: waiting requests by the scheduler's order. Of what an order compares, only the tokens of the tenant
// change while a request waits: so each tenant's requests are a heap, and the tenants are a heap by their first
// requests. A step touches the tenants for which tokens were computed, and no request. The order is called only within
// steps, since it may be the user's function, and throw.
//
// Requests that have ended stay until they come first, or `forgetEnded`.

import type { Generation } from './generation.js';
import { Heap } from '../base/heap.js';
import type { RequestOrder, TenantShare } from './request-order.js';

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

  add(generation: Generation): void {
    const share = generation.share!;
    const queue = this.#byShare.get(share);
    if (queue !== undefined) {
      queue.requests.push(generation);
      if (queue.requests.first === generation) this.#tenants.update(queue.index);
      return;
    }
    const requests = new Heap<Generation>(this.#order, (each, index) => { each.queueIndex = index; });
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

  remove(generation: Generation): void {
    const queue = this.#byShare.get(generation.share!)!;
    queue.requests.remove(generation.queueIndex);
    this.#update(queue);
  }

  /**
   * Moves a tenant whose share has grown. Call it before another share grows, so that one is out of place at a time.
   */
  reorder(share: TenantShare): void {
    if (this.#tenants.length < 2) return; // nothing to be out of place with
    const queue = this.#byShare.get(share);
    if (queue !== undefined) this.#tenants.update(queue.index);
  }

  /** Forgets those that have ended, in linear time. */
  forgetEnded(): void {
    const left = this.clear();
    for (const generation of left) if (!generation.hasEnded) this.add(generation);
  }

  /** Takes out all of them, in no order. Does not call the order. */
  clear(): Generation[] {
    const all = this.#tenants.clear().flatMap(({ requests }) => requests.clear());
    this.#byShare.clear();
    return all;
  }

  #takeFirst(queue: TenantQueue): void {
    queue.requests.shift();
    this.#update(queue);
  }

  #update(queue: TenantQueue): void {
    if (queue.requests.length > 0) {
      this.#tenants.update(queue.index);
      return;
    }
    this.#tenants.remove(queue.index);
    this.#byShare.delete(queue.share);
  }
}
