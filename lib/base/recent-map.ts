// RecentMap: values by key, of the latest keys only: what was set longest ago is forgotten.

export class RecentMap<Value> {
  readonly #limit: number;
  readonly #values = new Map<string, Value>();

  /** @param limit Keys that it remembers. */
  constructor(limit: number) {
    this.#limit = limit;
  }

  /** The value of the key, as far as it is remembered. */
  get(key: string): Value | undefined {
    return this.#values.get(key);
  }

  /** The key is the latest from now on. */
  set(key: string, value: Value): void {
    this.#values.delete(key);
    this.#values.set(key, value);
    if (this.#values.size <= this.#limit) return;
    const [oldest] = this.#values.keys();
    this.#values.delete(oldest!);
  }

  delete(key: string): void {
    this.#values.delete(key);
  }

  clear(): void {
    this.#values.clear();
  }
}
