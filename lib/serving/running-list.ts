// RunningList: requests that hold a slot, in the scheduler's order. An ended request stays until no pass uses its slot.

import type { Generation } from './generation.js';
import type { RequestOrder } from './request-order.js';

export class RunningList {
  readonly #order: RequestOrder;
  readonly #generations: Generation[] = [];

  constructor(order: RequestOrder) {
    this.#order = order;
  }

  /** All of them, in order. */
  get all(): readonly Generation[] {
    return this.#generations;
  }

  get length(): number {
    return this.#generations.length;
  }

  get last(): Generation | undefined {
    return this.#generations.at(-1);
  }

  /** Returns how many have not ended. */
  countOpen(): number {
    return this.#generations.reduce(
      (count, { hasEnded, sequence }) => count + (hasEnded || sequence === undefined ? 0 : 1), 0);
  }

  /** Adds a request at the end; call `sort` before the order counts. */
  push(generation: Generation): void {
    this.#generations.push(generation);
  }

  sort(): void {
    this.#generations.sort(this.#order);
  }

  remove(generation: Generation): void {
    this.#generations.splice(this.#generations.indexOf(generation), 1);
  }

  /** Sorts where the order has changed: tenants' shares grow with every step. */
  keepOrder(): void {
    for (let at = 1; at < this.#generations.length; at += 1) {
      if (this.#order(this.#generations[at - 1]!, this.#generations[at]!) < 0) continue;
      this.sort();
      return;
    }
  }

  /**
   * Releases the slots of ended requests and removes requests without a slot. Returns how many slots it has released.
   */
  removeEnded(): number {
    if (this.#generations.every(({ hasEnded, sequence }) => !hasEnded && sequence !== undefined)) return 0; // as a rule
    let kept = 0;
    let released = 0;
    for (const generation of this.#generations) {
      if (generation.hasEnded && generation.sequence !== undefined) {
        generation.release();
        released += 1;
      }
      if (generation.sequence !== undefined) this.#generations[kept++] = generation;
    }
    this.#generations.length = kept;
    return released;
  }
}
