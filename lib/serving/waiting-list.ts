// WaitingList: requests that have no slot, those that came and those that gave way. The order among them is the scheduler's
// and may change with every step, so the next one is looked for when it is needed: the list is bounded, and short.

import type { RequestOrder } from '../policy/request-order.js';
import type { Generation } from './generation.js';

export class WaitingList {
  readonly #generations: Generation[] = [];

  get length(): number {
    return this.#generations.length;
  }

  add(generation: Generation): void {
    this.#generations.push(generation);
  }

  remove(generation: Generation): void {
    const at = this.#generations.indexOf(generation);
    if (at >= 0) this.#generations.splice(at, 1);
  }

  /** The first in `order` of those that `isReady` accepts. */
  first(order: RequestOrder, isReady: (generation: Generation) => boolean): Generation | undefined {
    let first: Generation | undefined;
    for (const generation of this.#generations) {
      if ((first === undefined || order(generation, first) < 0) && isReady(generation)) first = generation;
    }
    return first;
  }

  /** Takes out those that `isOver` accepts, and calls it once for each. */
  removeIf(isOver: (generation: Generation) => boolean): void {
    let kept = 0;
    for (const generation of this.#generations) {
      if (!isOver(generation)) this.#generations[kept++] = generation;
    }
    this.#generations.length = kept;
  }
}
