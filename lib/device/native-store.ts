// The addon's disk store as TypeScript sees it. Everything here trusts its arguments; lib/store validates before it calls.

/** Numbers of `NativeStore.put` and of its answer: `PutState` of native/store/disk_store.h. */
export const nativePutStates = ['stored', 'exists', 'full', 'no-space', 'failed', 'too-large'] as const;
/** Numbers of a get's answer: `ReadState` of native/store/record_reader.h. */
export const nativeReadStates = ['good', 'absent', 'corrupt', 'io'] as const;

/** An address, or memory that lives until the answer. */
export type NativeStoreMemory = bigint | Uint8Array;

export interface NativeStoreOptions {
  readonly directory: string;
  /** 32 bytes. */
  readonly namespace: Uint8Array;
  readonly bytes: number;
  readonly segmentBytes: number;
  /** Of records that are put. */
  readonly chunkBytes: number;
  readonly threads: number;
  /** 0: none, 1: interval, 2: sync. */
  readonly durability: number;
  readonly direct: boolean;
}

export interface NativeStoreStats {
  readonly records: number;
  readonly liveBytes: number;
  readonly deadBytes: number;
  readonly fileBytes: number;
  readonly segments: number;
  readonly failedSegments: number;
  readonly tombstones: number;
  readonly unrecordedRemovals: number;
  readonly foreignFiles: number;
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
  readonly canAllocate: boolean;
  readonly checksum: string;
  readonly lastCall: string;
  readonly lastErrno: number;
}

/** Called once for each call with an id, in any order: with an error, or with numbers and bytes as the call says. */
export type NativeStoreAnswer = (id: number, error: Error | undefined, numbers: Float64Array, bytes: Uint8Array) => void;

/** A store. Its calls return at once; the answer follows. They throw KV_CLOSED once `stop` was called. */
export interface NativeStore {
  open(id: number): void;
  /** The index of a put state: 0 when it has begun, and numbers[0] of its answer is the state it ends with; there is no answer else. */
  put(
    id: number, key: Uint8Array, parent: Uint8Array, position: number, tokens: Int32Array, extra: Uint8Array, stripes: Float64Array,
    byteCounts: Float64Array, sources: readonly NativeStoreMemory[], level: number,
  ): number;
  /**
   * `targets`: one for each read, or memory where they lie one behind the other. bytes: an index of read states for each read. Without `checks`
   * what was read is not compared with the store's sums.
   */
  get(
    id: number, key: Uint8Array, stripes: Float64Array, offsets: Float64Array, byteCounts: Float64Array,
    targets: readonly NativeStoreMemory[] | Uint8Array, checks: boolean,
  ): void;
  /**
   * Rows of tokens, packed into `target`: `counts` says how many of `tokens` are of each stripe. bytes: an index of read states for each
   * stripe; numbers: bytes read from files, chunks.
   */
  getTokens(id: number, key: Uint8Array, stripes: Float64Array, counts: Float64Array, tokens: Int32Array, target: Uint8Array): void;
  /** Writes a record in another order of its tokens. numbers: the index of a put state, and of the read state of what was there. */
  reorder(id: number, key: Uint8Array, storedToLogical: Int32Array): void;
  /** Reads all of a record. numbers: the index of the worst read state, and the record's bytes. */
  check(id: number, key: Uint8Array): void;
  /** `keys` one behind the other. numbers: how many were there; 1 where the removal is written down. */
  remove(id: number, keys: Uint8Array): void;
  /** The live records of the first segment of at least this number. numbers: where to go on, or −1; bytes: record-listing.ts reads them. */
  list(id: number, segment: number): void;
  sync(id: number): void;
  /** numbers: dropped segments, freed bytes, copied bytes. */
  collect(id: number): void;
  /** Only when all other calls were answered. */
  close(id: number): void;
  has(key: Uint8Array): boolean;
  /** The level of a record from now on; nothing where there is none, or once stopped. */
  setLevel(key: Uint8Array, level: number): void;
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
