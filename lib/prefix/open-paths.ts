// OpenPaths: which nodes running sequences use, and where each sequence ends. A node that a path goes through or ends in is
// pinned: it is not in the pool. It tells the pool when nodes enter and leave.
//
// Invariant: pins[node] = open paths whose end is the node or lies below it; a pinned node's parent is pinned.

import type { NodeTable } from './node-table.js';
import type { PrefixPath } from './prefix-path.js';

/** Where unpinned nodes are. */
export interface PinListener {
  /** The node is no longer used; those below it entered before. */
  enter(node: number): void;
  /** The node is used again. */
  leave(node: number): void;
}

export class OpenPaths {
  readonly #nodes: NodeTable;
  readonly #pool: PinListener;
  /** First of the paths that end in a node. */
  readonly #ending: (PrefixPath | undefined)[] = [];
  #count = 0;
  #announcing = 0;

  constructor(nodes: NodeTable, pool: PinListener) {
    this.#nodes = nodes;
    this.#pool = pool;
  }

  /** Open paths. */
  get count(): number {
    return this.#count;
  }

  /** Open paths that have announced a prompt and not committed all of it. */
  get announcing(): number {
    return this.#announcing;
  }

  /** All open paths. */
  all(): PrefixPath[] {
    const paths: PrefixPath[] = [];
    for (const first of this.#ending) {
      for (let path = first; path !== undefined; path = path.next) paths.push(path);
    }
    return paths;
  }

  /** First of the paths that end in the node; the others follow by `next`. */
  endingIn(node: number): PrefixPath | undefined {
    return this.#ending[node];
  }

  /** Opens a path that ends in `node` after `length` tokens: pins the node and all above it. */
  open(path: PrefixPath, node: number, length: number): void {
    for (let above = node; above >= 0; above = this.#nodes.parent[above]!) this.#pin(above);
    this.#count += 1;
    path.moveTo(length);
    this.#attach(path, node);
  }

  /** The path goes on into a child of its end, of which its text has `length` tokens in all. */
  descend(path: PrefixPath, child: number, length: number): void {
    this.#detach(path);
    this.#pin(child);
    path.moveTo(length);
    this.#attach(path, child);
  }

  /** The same, into a child that has just been made and is not in the pool. */
  start(path: PrefixPath, child: number, length: number): void {
    this.#detach(path);
    this.#nodes.pins[child] = 1;
    path.moveTo(length);
    this.#attach(path, child);
  }

  /** The path ends at the end of its node's parent now. */
  ascend(path: PrefixPath): void {
    const node = path.node;
    this.#detach(path);
    path.moveTo(this.#nodes.from[node]!);
    this.#attach(path, this.#nodes.parent[node]!);
    this.unpin(node);
  }

  /** The path's length changes within its node. */
  move(path: PrefixPath, length: number): void {
    path.moveTo(length);
    this.#countAnnouncement(path);
  }

  /** Closes the path; its nodes stay pinned until `unpin` is called for each, from the end up. */
  close(path: PrefixPath): void {
    this.withdraw(path);
    this.#detach(path);
    this.#count -= 1;
    path.close();
  }

  /** Takes one pin from a node that its path has left. */
  unpin(node: number): void {
    this.#nodes.pins[node]! -= 1;
    if (this.#nodes.pins[node] === 0) this.#pool.enter(node);
  }

  /** `upper` was cut off the front of `lower`: paths that end before the cut move, and no longer pin what is below it. */
  split(upper: number, lower: number): void {
    const at = this.#nodes.to[upper]!;
    let moved = 0;
    for (let path = this.#ending[lower]; path !== undefined;) {
      const next = path.next;
      if (path.length <= at) {
        this.#detach(path);
        this.#attach(path, upper);
        moved += 1;
      }
      path = next;
    }
    if (moved === 0) return;
    this.#nodes.pins[lower]! -= moved;
    if (this.#nodes.pins[lower] === 0) this.#pool.enter(lower);
  }

  /** `tokens` tokens of `text` are the path's prompt; it keeps the array. */
  announce(path: PrefixPath, text: Int32Array, tokens: number): void {
    this.withdraw(path);
    if (tokens <= path.length) return;
    path.announced = text;
    path.announcedTokens = tokens;
    this.#announcing += 1;
  }

  withdraw(path: PrefixPath): void {
    if (path.announced === undefined) return;
    path.announced = undefined;
    this.#announcing -= 1;
  }

  /** Calls `visit` with every announced text and the part [from, to) that is to come. */
  forAnnounced(visit: (tokens: Int32Array, from: number, to: number) => void): void {
    if (this.#announcing === 0) return;
    for (const first of this.#ending) {
      for (let path = first; path !== undefined; path = path.next) {
        if (path.announced !== undefined) visit(path.announced, path.length, path.announcedTokens);
      }
    }
  }

  #pin(node: number): void {
    if (this.#nodes.pins[node] === 0) this.#pool.leave(node);
    this.#nodes.pins[node]! += 1;
  }

  #countAnnouncement(path: PrefixPath): void {
    if (path.announced !== undefined && path.length >= path.announcedTokens) this.withdraw(path);
  }

  #attach(path: PrefixPath, node: number): void {
    const first = this.#ending[node];
    path.node = node;
    path.next = first;
    path.previous = undefined;
    if (first !== undefined) first.previous = path;
    this.#ending[node] = path;
    this.#countAnnouncement(path);
  }

  #detach(path: PrefixPath): void {
    const { next, previous, node } = path;
    if (next !== undefined) next.previous = previous;
    if (previous !== undefined) previous.next = next;
    else this.#ending[node] = next;
    path.next = undefined;
    path.previous = undefined;
  }
}
