// Heap: a binary heap: the first item of an order, and changes in logarithmic time. `moved` is told the index of each
// item that moves, so that an item that is not the first can be updated or removed. An order that throws leaves all
// items in it, out of order.

export class Heap<T> {
  readonly #order: (a: T, b: T) => number;
  readonly #moved: (item: T, index: number) => void;
  #items: T[] = [];

  constructor(order: (a: T, b: T) => number, moved: (item: T, index: number) => void = () => {}) {
    this.#order = order;
    this.#moved = moved;
  }

  get length(): number {
    return this.#items.length;
  }

  get first(): T | undefined {
    return this.#items[0];
  }

  push(item: T): void {
    this.#items.push(item);
    this.#moved(item, this.#items.length - 1);
    this.#up(this.#items.length - 1);
  }

  /** Removes and returns the first. */
  shift(): T | undefined {
    const first = this.#items[0];
    if (first !== undefined) this.remove(0);
    return first;
  }

  /** Removes the item at `index`, as `moved` was told last. */
  remove(index: number): void {
    const last = this.#items.pop()!;
    if (index === this.#items.length) return;
    this.#items[index] = last;
    this.#moved(last, index);
    this.update(index);
  }

  /** Moves the item at `index`, whose place in the order has changed. */
  update(index: number): void {
    if (!this.#up(index)) this.#down(index);
  }

  /** Removes the items for which `isKept` returns false, in linear time. */
  retain(isKept: (item: T) => boolean): void {
    this.#items = this.#items.filter(isKept);
    this.#items.forEach((item, index) => { this.#moved(item, index); });
    for (let index = (this.#items.length >> 1) - 1; index >= 0; index -= 1) this.#down(index);
  }

  /** Removes and returns all items, in no order. */
  clear(): T[] {
    const items = this.#items;
    this.#items = [];
    return items;
  }

  #up(from: number): boolean {
    let index = from;
    while (index > 0) {
      const parent = (index - 1) >> 1;
      if (this.#order(this.#items[index]!, this.#items[parent]!) >= 0) break;
      this.#swap(index, parent);
      index = parent;
    }
    return index !== from;
  }

  #down(from: number): void {
    const { length } = this.#items;
    let index = from;
    for (let child = 2 * index + 1; child < length; child = 2 * index + 1) {
      if (child + 1 < length && this.#order(this.#items[child + 1]!, this.#items[child]!) < 0) child += 1;
      if (this.#order(this.#items[index]!, this.#items[child]!) <= 0) break;
      this.#swap(index, child);
      index = child;
    }
  }

  #swap(a: number, b: number): void {
    const item = this.#items[a]!;
    this.#items[a] = this.#items[b]!;
    this.#items[b] = item;
    this.#moved(this.#items[a]!, a);
    this.#moved(item, b);
  }
}
