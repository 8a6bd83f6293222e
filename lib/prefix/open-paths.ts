// OpenPaths: where each running sequence ends in the tree, and what it has announced. The nodes that its path goes through are pinned
// in the pool, which counts them and takes back those that no path needs.

import type { CachePool } from './cache-pool.js';
import type { NodeTable } from './node-table.js';
import type { PrefixPath } from './prefix-path.js';

export class OpenPaths {
  readonly #nodes: NodeTable;
  readonly #pool: CachePool;
  /** Open paths that have announced a prompt and not committed all of it. Read only. */
  announcing = 0;
  #count = 0;

  constructor(nodes: NodeTable, pool: CachePool) {
    this.#nodes = nodes;
    this.#pool = pool;
  }

  /** Open paths. */
  get count(): number {
    return this.#count;
  }

  /** All open paths. */
  all(): PrefixPath[] {
    const paths: PrefixPath[] = [];
    for (const first of this.#nodes.ending) {
      for (let path = first; path !== undefined; path = path.next) paths.push(path);
    }
    return paths;
  }

  /** Opens a path that ends in `node` after `length` tokens: pins the node and all above it. */
  open(path: PrefixPath, node: number, length: number): void {
    this.#pool.pinPath(node);
    this.#count += 1;
    path.length = length;
    this.#attach(path, node);
  }

  /** The path goes on into a child of its end, of which its text has `length` tokens in all. */
  descend(path: PrefixPath, child: number, length: number): void {
    this.#detach(path);
    this.#pool.pin(child);
    path.length = length;
    this.#attach(path, child);
  }

  /** The same, into a child that has just been made and is not in the pool. */
  start(path: PrefixPath, child: number, length: number): void {
    this.#detach(path);
    this.#nodes.pins[child] = 1;
    path.length = length;
    this.#attach(path, child);
  }

  /** The path ends at the end of its node's parent now. */
  ascend(path: PrefixPath): void {
    const node = path.node;
    this.#detach(path);
    path.length = this.#nodes.from[node]!;
    this.#attach(path, this.#nodes.parent[node]!);
    this.#pool.unpin(node, 1);
  }

  /** The path's length changes within its node. */
  move(path: PrefixPath, length: number): void {
    path.length = length;
    this.#endAnnouncement(path);
  }

  /** Closes the path; its nodes stay pinned until the pool releases them. */
  close(path: PrefixPath): void {
    this.withdraw(path);
    this.#detach(path);
    this.#count -= 1;
    path.isOpen = false;
  }

  /** `upper` was cut off the front of `lower`: paths that end before the cut move, and no longer pin what is below it. */
  split(upper: number, lower: number): void {
    const at = this.#nodes.to[upper]!;
    let moved = 0;
    for (let path = this.#nodes.ending[lower]; path !== undefined;) {
      const next = path.next;
      if (path.length <= at) {
        this.#detach(path);
        this.#attach(path, upper);
        moved += 1;
      }
      path = next;
    }
    if (moved > 0) this.#pool.unpin(lower, moved);
  }

  /** `tokens` tokens of `text` are the path's prompt; it keeps the array. */
  announce(path: PrefixPath, text: Int32Array, tokens: number): void {
    this.withdraw(path);
    if (tokens <= path.length) return;
    path.announced = text;
    path.announcedTokens = tokens;
    this.announcing += 1;
  }

  withdraw(path: PrefixPath): void {
    if (path.announced === undefined) return;
    path.announced = undefined;
    this.announcing -= 1;
  }

  /** Calls `visit` with every announced text and the part [from, to) that is to come. */
  forAnnounced(visit: (tokens: Int32Array, from: number, to: number) => void): void {
    if (this.announcing === 0) return;
    for (const first of this.#nodes.ending) {
      for (let path = first; path !== undefined; path = path.next) {
        if (path.announced !== undefined) visit(path.announced, path.length, path.announcedTokens);
      }
    }
  }

  #endAnnouncement(path: PrefixPath): void {
    if (path.announced !== undefined && path.length >= path.announcedTokens) this.withdraw(path);
  }

  #attach(path: PrefixPath, node: number): void {
    const first = this.#nodes.ending[node];
    path.node = node;
    path.next = first;
    path.previous = undefined;
    if (first !== undefined) first.previous = path;
    this.#nodes.ending[node] = path;
    this.#endAnnouncement(path);
  }

  #detach(path: PrefixPath): void {
    const { next, previous, node } = path;
    if (next !== undefined) next.previous = previous;
    if (previous !== undefined) previous.next = next;
    else this.#nodes.ending[node] = next;
    path.next = undefined;
    path.previous = undefined;
  }
}
