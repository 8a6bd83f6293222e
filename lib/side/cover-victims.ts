// CoverVictims: which covered text loses its end next: the one used longest ago that can. It goes on where it was, so
// that texts in use, and those that the eviction policy withholds, are passed over once and not for each page that
// goes.

import type { CoverOrder } from './cover-order.js';

/** What the eviction policy of K and V keeps: its side rows are kept too. */
export interface WithheldNodes {
  /** Whether it may keep some text. */
  readonly isAny: boolean;
  /** Whether it keeps a node's text now. That may end by itself. */
  has(node: number): boolean;
  /** Calls `visit` for every node whose text it keeps now. */
  forNodes(visit: (node: number) => void): void;
}

/** The end of a cached text, which a tensor may lose. */
export interface SideVictim {
  readonly lastUse: number;
  /** Tokens of the text, from its start, that the tensor has. */
  readonly tokens: number;
  readonly tokenBytes: number;
}

export class CoverVictims {
  readonly #order: CoverOrder;
  readonly #withheld: WithheldNodes;
  /** What comes before can lose nothing. Undefined: it starts again. */
  #rest: Iterator<number> | undefined;
  #victim = -1;
  #spareEpoch = -1;
  /** Nodes that were passed over since they are withheld. */
  readonly #passed: number[] = [];

  constructor(order: CoverOrder, withheld: WithheldNodes) {
    this.#order = order;
    this.#withheld = withheld;
  }

  /** Starts again: what comes before may be able to lose something. */
  restart(): void {
    this.#rest = undefined;
  }

  /** The node goes last now. */
  used(node: number): void {
    if (node === this.#victim) this.#victim = -1;
  }

  /**
   * The next one that `canLose` affirms, or -1. `spareEpoch` is another number once what could lose nothing may be able
   * to.
   */
  next(canLose: (node: number) => boolean, spareEpoch: number): number {
    if (this.#rest === undefined || spareEpoch !== this.#spareEpoch
      || this.#passed.some((node) => !this.#withheld.has(node))) {
      this.#rest = this.#order[Symbol.iterator]();
      this.#spareEpoch = spareEpoch;
      this.#passed.length = 0;
    } else if (this.#victim >= 0 && this.#order.has(this.#victim) && this.#mayGo(this.#victim, canLose)) {
      return this.#victim;
    }
    this.#victim = -1;
    for (let next = this.#rest.next(); next.done !== true; next = this.#rest.next()) {
      if (this.#mayGo(next.value, canLose)) return this.#victim = next.value;
    }
    return -1;
  }

  #mayGo(node: number, canLose: (node: number) => boolean): boolean {
    if (!canLose(node)) return false;
    if (!this.#withheld.isAny || !this.#withheld.has(node)) return true;
    this.#passed.push(node);
    return false;
  }
}
