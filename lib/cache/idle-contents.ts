// IdleContents: idle slots that still hold the start of some text, each found by its last group of rows. A request that goes
// on where such a slot ends adopts it: nothing is mapped and nothing copied. Who holds a text's last group holds all of it,
// so one list per group is enough.

import type { SharedRows } from './shared-rows.js';

export class IdleContents {
  readonly #shared: SharedRows;
  /** By number of a group: slot + 1 of the one that was added last; 0: none. */
  #first = new Int32Array(64);
  // By slot.
  readonly #next: Int32Array;
  readonly #previous: Int32Array;
  /** The group it is listed under, or -1. */
  readonly #under: Int32Array;

  constructor(shared: SharedRows, slots: number) {
    this.#shared = shared;
    this.#next = new Int32Array(slots).fill(-1);
    this.#previous = new Int32Array(slots).fill(-1);
    this.#under = new Int32Array(slots).fill(-1);
  }

  /** Lists an idle slot that holds a text's first `groups` groups, which have numbers; not if it holds none. */
  add(slot: number, groups: number): void {
    if (groups === 0) return;
    const id = this.#shared.idsOf(slot)[groups - 1]!;
    if (id >= this.#first.length) {
      const first = new Int32Array(Math.max(id + 1, 2 * this.#first.length));
      first.set(this.#first);
      this.#first = first;
    }
    const next = this.#first[id]! - 1;
    this.#under[slot] = id;
    this.#next[slot] = next;
    this.#previous[slot] = -1;
    if (next >= 0) this.#previous[next] = slot;
    this.#first[id] = slot + 1;
  }

  /** Takes a slot out, if it is listed. */
  remove(slot: number): void {
    const id = this.#under[slot]!;
    if (id < 0) return;
    const next = this.#next[slot]!;
    const previous = this.#previous[slot]!;
    if (next >= 0) this.#previous[next] = previous;
    if (previous >= 0) this.#next[previous] = next;
    else this.#first[id] = next + 1;
    this.#under[slot] = -1;
  }

  /** A slot whose content ends with this group, or -1. */
  endingIn(id: number): number {
    return id < this.#first.length ? this.#first[id]! - 1 : -1;
  }

  has(slot: number): boolean {
    return this.#under[slot]! >= 0;
  }
}
