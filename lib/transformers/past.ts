// PastText: one row of a batch, of which the cache holds K and V: its tokens by column, and which columns are padding.
// Past: what stands for the K and V of a batch up to a column. It has no bytes; a past is a value, and stays what it is
// when its texts go on.

import type { Sequence } from '../index.js';

/** One row's text. Columns are only added. */
export class PastText {
  /** Of columns that are no padding. */
  readonly tokens: number[];
  /** [column]: 1, or 0 for padding. */
  readonly isSeen: number[];
  /** Of its first token, in `position_ids`. */
  readonly firstPosition: number;
  /** Holds its tokens in the cache; undefined: it is computed, or found there, when it is needed next. */
  sequence: Sequence | undefined;
  /** A text that begins with the same `forkTokens` tokens, whose sequence it may fork; until it has its own. */
  forkOf: PastText | undefined;
  readonly forkTokens: number;
  /** How many refer to it. */
  pasts = 0;
  /** Whether a call computes it. */
  isBusy = false;

  constructor({
    tokens = [],
    isSeen = [],
    firstPosition = 0,
    forkOf,
  }: {
    readonly tokens?: number[];
    readonly isSeen?: number[];
    readonly firstPosition?: number;
    readonly forkOf?: PastText;
  } = {}) {
    this.tokens = tokens;
    this.isSeen = isSeen;
    this.firstPosition = firstPosition;
    this.forkOf = forkOf;
    this.forkTokens = forkOf === undefined ? 0 : tokens.length;
  }

  /** For the cache: texts whose positions differ are not found for each other. */
  get adapter(): string | undefined {
    return this.firstPosition === 0 ? undefined : `positions from ${this.firstPosition}`;
  }

  get columns(): number {
    return this.isSeen.length;
  }

  /** The token of every column up to `columns`; -1: padding. */
  tokensByColumn(columns: number): number[] {
    let token = 0;
    return Array.from({ length: columns }, (_, column) => (this.isSeen[column] === 1 ? this.tokens[token++]! : -1));
  }
}

/** The K and V of a batch up to a column, as tensors of every layer refer to them. */
export class Past {
  readonly texts: readonly PastText[];
  readonly columns: number;
  readonly #release: (past: Past) => void;
  #tensors: number;

  /** @param tensors How many refer to it. @param release Called once, when the last of them was disposed. */
  constructor(texts: readonly PastText[], columns: number, tensors: number, release: (past: Past) => void) {
    this.texts = texts;
    this.columns = columns;
    this.#tensors = tensors;
    this.#release = release;
  }

  dropTensor(): void {
    this.#tensors -= 1;
    if (this.#tensors === 0) this.#release(this);
  }
}
