// KnownTexts: which texts a cache and its tiers can have, by the name of their domain: K and V ('') and rows of each side tensor, because some
// sequence committed them, and nobody has dropped them since.

export class KnownTexts {
  /** By domain: by the hash of each prefix, that of the prefix before (0: none). */
  readonly #before = new Map<string, Map<number, number>>();
  /** By domain and tensor: hashes of the prefixes that have its rows. */
  readonly #covered = new Map<string, Map<string, Set<number>>>();
  /** What was dropped: domain, tensor, hashes in order. */
  #dropped: (readonly [name: string, tensor: string, hash: number, before: number])[] = [];

  /** Prefixes with these hashes, from the first token on, may be found with all their rows of a tensor. */
  note(name: string, tensor: string, hashes: readonly number[]): void {
    hashes.forEach((hash, at) => { this.#add(name, tensor, hash, at === 0 ? 0 : hashes[at - 1]!); });
  }

  /** How many tokens of a text can be found, for who needs these tensors. */
  tokens(name: string, hashes: readonly number[], needs: readonly string[]): number {
    const covered = this.#covered.get(name);
    const missing = hashes.findIndex((hash) => !['', ...needs].every((tensor) => covered?.get(tensor)?.has(hash) === true));
    return missing < 0 ? hashes.length : missing;
  }

  /** All text that begins with that which has these hashes goes; the start of it that other texts have may stay. */
  drop(name: string, hashes: readonly number[]): void {
    const before = this.#before.get(name);
    if (before === undefined) return;
    const going = new Set<number>([hashes.at(-1)!]);
    for (const hash of before.keys()) {
      const path: number[] = [];
      for (let at = hash; at !== 0 && !going.has(at); at = before.get(at) ?? 0) path.push(at);
      const last = path.at(-1);
      if (last !== undefined && going.has(before.get(last)!)) for (const one of path) going.add(one);
    }
    this.#forget(name, (hash) => going.has(hash));
  }

  /** All text of these domains goes. */
  forget(isOf: (name: string) => boolean): void {
    for (const name of this.#before.keys()) if (isOf(name)) this.#forget(name, () => true);
  }

  /** What was dropped may be found again. */
  remember(): void {
    for (const one of this.#dropped.splice(0)) this.#add(...one);
  }

  #add(name: string, tensor: string, hash: number, before: number): void {
    if (!this.#before.has(name)) {
      this.#before.set(name, new Map());
      this.#covered.set(name, new Map());
    }
    this.#before.get(name)!.set(hash, before);
    const covered = this.#covered.get(name)!;
    const hashes = covered.get(tensor);
    if (hashes === undefined) covered.set(tensor, new Set([hash]));
    else hashes.add(hash);
  }

  #forget(name: string, isGoing: (hash: number) => boolean): void {
    const before = this.#before.get(name)!;
    for (const [tensor, hashes] of this.#covered.get(name)!) {
      for (const hash of hashes) {
        if (!isGoing(hash)) continue;
        hashes.delete(hash);
        this.#dropped.push([name, tensor, hash, before.get(hash)!]);
      }
    }
    for (const hash of before.keys()) if (isGoing(hash)) before.delete(hash);
  }
}
