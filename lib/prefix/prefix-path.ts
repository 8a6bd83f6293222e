// PrefixPath: one sequence's place in the prefix index: the text it has committed, and its table of rows. A handle made
// by `open` or `fork` and ended by `release`. While it is open, no row of its text is evicted. Owned by the index: read
// it, and write only into `rows`.

export interface PathOptions {
  /**
   * Row ids by their number on the path. The index fills in those it shares; the owner all the rest, before it commits
   * tokens in them. May be longer than needed, and is read until release.
   */
  readonly rows: Int32Array;
  /** Whether what it commits is cached (`write` of the request). */
  readonly isStored: boolean;
  /** Priority level of its request, 0 … 255. */
  readonly level: number;
  /** Whether the owner only moves K and V: no use of the text. Default false. */
  readonly isTransfer?: boolean | undefined;
  /** Tokens of its prompt, for eviction policies. Default: all that it has when it is released. */
  readonly promptTokens?: number | undefined;
  /**
   * The text that it is going to commit: a match says that it is pending (`PrefixHit.pendingTokens`) until then. Kept,
   * and must not change until then. Only of a path that is stored. Default: nothing is announced.
   */
  readonly announced?: Int32Array | undefined;
}

export class PrefixPath {
  readonly rows: Int32Array;
  /** As asked for, until the index stops storing it. Written by the index. */
  isStored: boolean;
  readonly level: number;
  readonly isTransfer: boolean;
  readonly promptTokens: number | undefined;
  /** Tokens matched and committed. */
  length: number;
  /** False after release. */
  isOpen = true;
  /** Tokens that it found cached when it was opened: not its own to take back. @internal */
  readonly sharedTokens: number;
  /** Deepest node of the text. @internal */
  node = -1;
  /** Other paths that end in the same node. @internal */
  next: PrefixPath | undefined = undefined;
  /** @internal */
  previous: PrefixPath | undefined = undefined;
  /** What is being computed of its prompt: tokens from `length` on; undefined: nothing. @internal */
  announced: Int32Array | undefined;

  /** @internal */
  constructor({ rows, isStored, level, isTransfer = false, promptTokens, announced }: PathOptions, tokens: number) {
    this.rows = rows;
    this.isStored = isStored;
    this.level = level;
    this.isTransfer = isTransfer;
    this.promptTokens = promptTokens;
    this.length = tokens;
    this.sharedTokens = tokens;
    this.announced = isStored && announced !== undefined && announced.length > tokens ? announced : undefined;
  }
}
