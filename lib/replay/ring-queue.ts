// RingQueue: a first-in first-out queue that also takes things back at its front. O(1) at both ends; the array below only
// ever grows, and a steady queue allocates nothing.

export class RingQueue<T> {
  #items: (T | undefined)[] = new Array<T | undefined>(16).fill(undefined);
  #head = 0;
  #length = 0;

  get length(): number {
    return this.#length;
  }

  /** The next one out; undefined when empty. */
  peek(): T | undefined {
    return this.#items[this.#head];
  }

  push(item: T): void {
    if (this.#length === this.#items.length) this.#grow();
    this.#items[(this.#head + this.#length) & (this.#items.length - 1)] = item;
    this.#length += 1;
  }

  /** Puts `item` before all others. */
  pushFront(item: T): void {
    if (this.#length === this.#items.length) this.#grow();
    this.#head = (this.#head - 1) & (this.#items.length - 1);
    this.#items[this.#head] = item;
    this.#length += 1;
  }

  /** Takes the next one out; undefined when empty. */
  shift(): T | undefined {
    if (this.#length === 0) return undefined;
    const item = this.#items[this.#head];
    this.#items[this.#head] = undefined;
    this.#head = (this.#head + 1) & (this.#items.length - 1);
    this.#length -= 1;
    return item;
  }

  #grow(): void {
    const { length } = this.#items; // a power of two
    const items = new Array<T | undefined>(2 * length).fill(undefined);
    for (let at = 0; at < this.#length; ++at) items[at] = this.#items[(this.#head + at) & (length - 1)];
    this.#items = items;
    this.#head = 0;
  }
}
