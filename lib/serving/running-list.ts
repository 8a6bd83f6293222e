// RunningList: requests that have a slot, in the scheduler's order. One that has ended stays until no pass uses its slot any more.

import type { RequestOrder } from './request-order.js';
import type { Generation } from './generation.js';

export class RunningList {
  readonly #order: RequestOrder;
  readonly #generations: Generation[] = [];

  constructor(order: RequestOrder) {
    this.#order = order;
  }

  /** All of them, in order; not to be changed. */
  get all(): readonly Generation[] {
    return this.#generations;
  }

  get length(): number {
    return this.#generations.length;
  }

  get last(): Generation | undefined {
    return this.#generations.at(-1);
  }

  /** Those that have not ended. */
  countOpen(): number {
    return this.#generations.reduce((count, { hasEnded, sequence }) => count + (hasEnded || sequence === undefined ? 0 : 1), 0);
  }

  /** At the end, until `sort`. */
  push(generation: Generation): void {
    this.#generations.push(generation);
  }

  sort(): void {
    this.#generations.sort(this.#order);
  }

  remove(generation: Generation): void {
    this.#generations.splice(this.#generations.indexOf(generation), 1);
  }

  /** Tenants' shares grow with every step, and with them the order may change. */
  keepOrder(): void {
    for (let at = 1; at < this.#generations.length; at += 1) {
      if (this.#order(this.#generations[at - 1]!, this.#generations[at]!) < 0) continue;
      this.sort();
      return;
    }
  }

  /** Those that have ended give their slots back, and those without a slot run no more. Returns how many gave one back. */
  removeEnded(): number {
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
