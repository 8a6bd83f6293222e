// PrefixPath: one sequence's place in the prefix index: the text it has committed, and its table of rows. A handle made by
// `open` or `fork` and ended by `release`. While it is open, no row of its text is evicted. Owned by the index: read it,
// and write only into `rows`.

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
}

export class PrefixPath {
  readonly rows: Int32Array;
  readonly isStored: boolean;
  readonly level: number;
  readonly isTransfer: boolean;
  readonly promptTokens: number | undefined;
  /** Tokens matched and committed. */
  length = 0;
  /** False after release. */
  isOpen = true;
  /** Tokens that it found cached when it was opened: not its own to take back. @internal */
  sharedTokens = 0;
  /** Deepest node of the text. @internal */
  node = -1;
  /** Other paths that end in the same node. @internal */
  next: PrefixPath | undefined = undefined;
  /** @internal */
  previous: PrefixPath | undefined = undefined;
  /** Its prompt, of which tokens from `length` to `announcedTokens` are being computed. @internal */
  announced: Int32Array | undefined = undefined;
  /** @internal */
  announcedTokens = 0;

  /** @internal */
  constructor({ rows, isStored, level, isTransfer = false, promptTokens }: PathOptions) {
    this.rows = rows;
    this.isStored = isStored;
    this.level = level;
    this.isTransfer = isTransfer;
    this.promptTokens = promptTokens;
  }
}
