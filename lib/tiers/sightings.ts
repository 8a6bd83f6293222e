// Sightings: how often the text of a block was seen lately, for tiers that admit only what was seen more than once. Bounded: what was seen
// longest ago is forgotten.

export class Sightings {
  readonly #limit: number;
  readonly #counts = new Map<string, number>();

  /** @param limit Blocks that it remembers. */
  constructor(limit: number) {
    this.#limit = limit;
  }

  /** How often the block was seen, as far as it is remembered. */
  of(key: string): number {
    return this.#counts.get(key) ?? 0;
  }

  /** The block was seen. */
  see(key: string): void {
    const count = this.of(key) + 1;
    this.#counts.delete(key);
    this.#counts.set(key, count);
    if (this.#counts.size > this.#limit) {
      const [oldest] = this.#counts.keys();
      this.#counts.delete(oldest!);
    }
  }
}
