// The addon's disk store as TypeScript sees it. Everything here trusts its arguments; lib/store validates before it
// calls.

/** Numbers of a put's and a reorder's answer: `PutState` of native/store/block_writer.h. */
export const nativePutStates = ['stored', 'no-space', 'failed'] as const;
/** Numbers of a read's answer: `ReadState` of native/store/block_reader.h. */
export const nativeReadStates = ['good', 'absent', 'corrupt', 'io'] as const;

export interface NativeStoreOptions {
  readonly directory: string;
  /** 32 bytes. */
  readonly namespace: Uint8Array;
  /** Of blocks that are put. */
  readonly chunkBytes: number;
  readonly threads: number;
  /** 0: none, 1: interval, 2: sync. */
  readonly durability: number;
  readonly direct: boolean;
}

export interface NativeStoreStats {
  readonly foreignFiles: number;
  readonly damagedFiles: number;
  readonly openFiles: number;
  readonly puts: number;
  readonly putBytes: number;
  readonly gets: number;
  readonly getBytes: number;
  readonly corruptReads: number;
  readonly failedReads: number;
  readonly failedWrites: number;
  readonly failedSyncs: number;
  readonly syncs: number;
  readonly readCalls: number;
  readonly readBytes: number;
  readonly isDirect: boolean;
  readonly checksum: string;
  readonly lastCall: string;
  readonly lastErrno: number;
}

/**
 * Called once for each call with an id, in any order: with an error, or with numbers and bytes as the call says. Id 0
 * is no call's: `bytes` are keys of blocks whose sync was refused.
 */
export type NativeStoreAnswer = (id: number, error: Error | undefined, numbers: Float64Array, bytes: Uint8Array) => void;

/** A store. Its calls return at once; the answer follows. They throw KV_CLOSED once `stop` was called. */
export interface NativeStore {
  /** numbers: blocks that have a file; bytes of the folder, and of each unfinished file that could not be deleted; bytes: their keys. */
  open(id: number): void;
  /**
   * Blocks from the `first` on. bytes: block-header.ts reads them; behind them, keys of blocks whose files cannot be
   * read or deleted; numbers: the bytes of each of these files.
   */
  scan(id: number, first: number, count: number): void;
  /** numbers: the index of a put state; what is left of a failure: 0 nothing, 1 the new file, 2 the block's. */
  put(
    id: number, key: Uint8Array, parent: Uint8Array, position: number, tokens: Int32Array, rowBytes: Float64Array,
    sums: Float64Array, notes: Uint8Array, level: number, payload: Uint8Array,
  ): void;
  /** numbers: the index of a read state; bytes: the sums of the stripes. */
  get(id: number, key: Uint8Array, headerBytes: number, payload: Uint8Array): void;
  /**
   * Rows of tokens, packed into `target`: `counts` says how many of `tokens` are of each stripe. numbers: the index of
   * a read state, bytes read from files, chunks.
   */
  getTokens(
    id: number, key: Uint8Array, stripes: Float64Array, counts: Float64Array, tokens: Int32Array, target: Uint8Array,
  ): void;
  /**
   * numbers: the index of the read state of what was there and of a put state, bytes of the header and the file, what
   * is left as of a put.
   */
  reorder(id: number, key: Uint8Array, storedToLogical: Int32Array, level: number): void;
  /** Reads all of a block. numbers: the index of a read state, and the file's bytes. */
  check(id: number, key: Uint8Array): void;
  /**
   * `names` of files, a slash between them. numbers: 1 where that is as durable as it should be; bytes: 1 for each that
   * is still there.
   */
  remove(id: number, names: string): void;
  sync(id: number): void;
  /** Only when all other calls were answered. */
  close(id: number): void;
  /** Undefined once stopped. */
  stats(): NativeStoreStats | undefined;
  /** Ends the threads; what was not answered never is. Idempotent. */
  stop(): void;
}

/** One change of a file, or a sync; testing.ts says what the fields are. */
export interface NativeFileChange {
  readonly call: string;
  readonly path: string;
  readonly other: string;
  readonly offset: number;
  readonly bytes: Uint8Array;
}

export interface NativeStoreFaults {
  /** `call` '' is any; `errno` 0 lets the call happen; −1 leaves bytes and bits alone. */
  add(call: string, nth: number, times: number, errno: number, mostBytes: number, flippedBit: number, kills: boolean, holds: boolean): void;
  killAt(point: string, nth: number): void;
  clear(): void;
  held(): number;
  counts(): Readonly<Record<string, number>>;
  points(): Readonly<Record<string, number>>;
  startJournal(): void;
  journalLength(): number;
  takeJournal(): NativeFileChange[];
}
