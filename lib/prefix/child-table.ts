// ChildTable: finds the child of a node that starts with a token. Open addressing over node numbers; the key is the pair
// (parent, first token), which is compared on every probe, so a collision of hashes costs a step and never a wrong child. The
// hash has a key of the cache's own: clients choose the tokens, and one table serves all tenants.

import { KeyedHash } from './keyed-hash.js';
import type { NodeTable } from './node-table.js';

export class ChildTable {
  readonly #nodes: NodeTable;
  readonly #hash: KeyedHash;
  readonly #hashMask: number;
  /** Node + 1; 0 is an empty place. At most half are taken. */
  #places = new Int32Array(64);
  #count = 0;

  /**
   * @param hashSeed Chooses the hash.
   * @param hashBits Bits of the hash that count, 1 … 32: tests truncate it to force collisions.
   */
  constructor(nodes: NodeTable, hashSeed: number, hashBits = 32) {
    this.#nodes = nodes;
    this.#hash = new KeyedHash(hashSeed);
    this.#hashMask = hashBits === 32 ? -1 : 2 ** hashBits - 1;
  }

  /** The child, or -1. */
  find(parent: number, token: number): number {
    const places = this.#places;
    const mask = places.length - 1;
    const { parent: parents, firstToken } = this.#nodes;
    for (let place = this.#home(parent, token); ; place = (place + 1) & mask) {
      const node = places[place]! - 1;
      if (node < 0) return -1;
      if (parents[node] === parent && firstToken[node] === token) return node;
    }
  }

  /** Adds a node under its `parent` and `firstToken`; there is none with the same yet. */
  add(node: number): void {
    if (2 * (this.#count + 1) > this.#places.length) this.#grow();
    this.#count += 1;
    this.#put(node);
  }

  /** Takes out a node whose `parent` and `firstToken` are still what they were. */
  remove(node: number): void {
    const places = this.#places;
    const mask = places.length - 1;
    let hole = this.#homeOf(node);
    while (places[hole] !== node + 1) hole = (hole + 1) & mask;
    this.#count -= 1;
    // Moves later ones of the same cluster up, so that no search ends early at the hole.
    for (let place = (hole + 1) & mask; places[place] !== 0; place = (place + 1) & mask) {
      const home = this.#homeOf(places[place]! - 1);
      if (((place - home) & mask) < ((place - hole) & mask)) continue;
      places[hole] = places[place]!;
      hole = place;
    }
    places[hole] = 0;
  }

  #put(node: number): void {
    const mask = this.#places.length - 1;
    let place = this.#homeOf(node);
    while (this.#places[place] !== 0) place = (place + 1) & mask;
    this.#places[place] = node + 1;
  }

  #grow(): void {
    const before = this.#places;
    this.#places = new Int32Array(2 * before.length);
    for (const place of before) if (place !== 0) this.#put(place - 1);
  }

  #homeOf(node: number): number {
    return this.#home(this.#nodes.parent[node]!, this.#nodes.firstToken[node]!);
  }

  #home(parent: number, token: number): number {
    return this.#hash.of(token, parent) & this.#hashMask & (this.#places.length - 1);
  }
}
