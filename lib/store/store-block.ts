// What a disk store is given and what it answers: blocks and results. Types only. The store knows nothing of KV caches:
// a block is a key, a parent key, the token ids it stands for, opaque notes, and a payload: of each stripe in turn a
// row of bytes for each token.

/** A block to be stored. Its arrays must stay as they are until `put` resolves. */
export interface StoreBlock {
  /**
   * 64 hexadecimal digits that name it in this store: a chained hash of the tokens and of all that decides their bytes.
   */
  readonly key: string;
  /** The key of what comes before it. */
  readonly parent: string;
  /** Position of its first token in the text. */
  readonly position: number;
  /** Its token ids, as 32-bit patterns. */
  readonly tokens: Int32Array;
  /** What the caller wants to find again. */
  readonly notes: Uint8Array;
  /** CRC-32C of each stripe. */
  readonly sums: Uint32Array;
  /** How much it matters, 0 to 255: a hint that the store keeps and makes nothing of. Default 0. */
  readonly level?: number | undefined;
}

/** A block that the store has, as the header of its file says. */
export interface FoundBlock extends StoreBlock {
  /** Bytes of a row of each stripe. */
  readonly rowBytes: Uint32Array;
  /** Bytes of its payload. */
  readonly bytes: number;
  readonly level: number;
  /** Bytes that have a sum of their own. */
  readonly chunkBytes: number;
  /** Whether its rows are stored in another order than that of the text. Reads give the order of the text. */
  readonly isReordered: boolean;
}

/** What a store tells while it is open. */
export interface StoreEvents {
  /** It has this block from before; while it is opened, what was written first before what was written later. */
  readonly found?: ((block: FoundBlock) => void) | undefined;
  /** It no longer has these: a sync of their files was refused. */
  readonly lost?: ((keys: readonly string[]) => void) | undefined;
}

/**
 * Why a block was not stored: `exists` (one with this key is stored or on its way; `remove` it first to replace it),
 * `full` (the store's `bytes`; remove others), `no-space` (the file system has none; later puts try again), `busy`
 * (`queueBytes` wait already), `too-large` (beyond the store's `bytes`, or what a header can say), `failed` (the disk
 * refused; `stats().lastError` says what), `closed`.
 */
export type NotStoredReason = 'exists' | 'full' | 'no-space' | 'busy' | 'too-large' | 'failed' | 'closed';

/** What became of a `put`. With durability `sync` a stored block survives a loss of power. */
export type PutResult = { readonly stored: true } | { readonly stored: false; readonly reason: NotStoredReason };

/**
 * Why there are no bytes: no such block or not of these tokens, not what was stored, the disk refused to read, or
 * closed.
 */
export type ReadMiss = 'absent' | 'corrupt' | 'io' | 'closed';

/** What became of a `get`. */
export type GetResult =
  | {
    readonly isFound: true;
    /** The sums that the block was put with. */
    readonly sums: Uint32Array;
  }
  | { readonly isFound: false; readonly reason: ReadMiss };

/** Tokens of several stripes. */
export interface TokenReads {
  readonly stripes: Float64Array;
  /** How many of `tokens` are of each stripe. */
  readonly counts: Float64Array;
  /** Of all stripes in turn; a block's first is 0. */
  readonly tokens: Int32Array;
}

/** What became of a `getTokens`; no reason: all are good. */
export interface TokensRead {
  readonly reason: ReadMiss | undefined;
  readonly readBytes: number;
  readonly chunks: number;
}

/** What became of a `reorder`. */
export type ReorderResult =
  | { readonly stored: true }
  | { readonly stored: false; readonly reason: NotStoredReason | ReadMiss };

/** The answer of a `remove`. */
export interface RemoveResult {
  /** How many of the keys were there. */
  readonly removed: number;
  /**
   * Whether the files are gone, those of removals before too (with durability `sync`: also after a loss of power).
   * False where the disk refused: the blocks are gone for this process, the store tries again with later changes, and
   * until then they may be back after a restart. Also false while there are files that it refused to read when the
   * store was opened: they may be of any block.
   */
  readonly isRecorded: boolean;
}

/** How far a `verify` is. */
export interface VerifyProgress {
  readonly blocks: number;
  readonly totalBlocks: number;
  readonly bytes: number;
}

/** What a `verify` found. */
export interface VerifyResult {
  /** Blocks that were read whole. */
  readonly blocks: number;
  /** Bytes of their files. */
  readonly bytes: number;
  /** Keys of blocks with bytes that are not what was stored. They stay until they are removed. */
  readonly corrupt: readonly string[];
  /** Keys of blocks that the disk refused to read. */
  readonly unreadable: readonly string[];
  /** Whether the signal stopped it before the end. */
  readonly isInterrupted: boolean;
}
