// What a disk store is given and what it answers: records, stripes, reads and results. Types only. The store knows nothing of KV
// caches: a record is a key, a parent key, the token ids it stands for, opaque extra bytes, and stripes of bytes.

/** Bytes of the caller's: a view, or an address in this process's own memory and how many bytes lie there. */
export type StoreMemory = ArrayBufferView | {
  /** Address of the first byte. It must stay readable (for a read: writable) until the promise of the call is settled. */
  readonly address: bigint;
  /** Bytes there. */
  readonly bytes: number;
};

/** One named range of a record's bytes: a tensor of a layer, a side tensor, probe keys. */
export interface StoreStripe {
  /** The caller's name for it, unique within the record: an integer from 0 to 2³² − 1. */
  readonly id: number;
  /**
   * Its bytes, none allowed. The store reads them on its own threads until the promise of `put` is settled: do not change, transfer or
   * free them before. A view must not be of a resizable or growable buffer.
   */
  readonly source: StoreMemory;
}

/** A record to be stored. The arrays are copied before `put` returns; the sources of its stripes are not. */
export interface StoreRecord {
  /** 32 bytes that name it in this store: a chained hash of the tokens and of all that decides their bytes. */
  readonly key: Uint8Array;
  /** The key of what comes before it, 32 bytes; left out for a beginning (the store keeps zeros). */
  readonly parent?: Uint8Array | undefined;
  /** Position of its first token in the text. Default 0. */
  readonly position?: number | undefined;
  /** Its token ids, as 32-bit patterns. */
  readonly tokens: Int32Array | Uint32Array;
  /** What the caller wants to find in the header again: geometry, layer set, mapping list. At most 256 KiB. Default none. */
  readonly extra?: Uint8Array | undefined;
  /** How much it matters, 0 to 255: a hint that the store keeps and makes nothing of. Default 0. */
  readonly level?: number | undefined;
  /** In the order in which they are stored; at most 16,384. */
  readonly stripes: readonly StoreStripe[];
}

/** A record that the store has, as its header says. */
export interface FoundRecord {
  readonly key: Uint8Array;
  /** 32 bytes; all zero for a beginning. */
  readonly parent: Uint8Array;
  readonly position: number;
  readonly tokens: Int32Array;
  readonly extra: Uint8Array;
  readonly stripes: readonly { readonly id: number; readonly bytes: number }[];
  /** What it occupies of the store, header and padding included. */
  readonly storedBytes: number;
  /** Bytes that have a sum of their own. */
  readonly chunkBytes: number;
  /** Whether its tokens are stored in another order than that of the text. Reads give the order of the text. */
  readonly isReordered: boolean;
  /** As it was put, or set since; 0 of a record that was written before records had levels. */
  readonly level: number;
}

/**
 * Why a record was not stored: `exists` (one with this key is stored or on its way; `remove` it first to replace it), `full` (the
 * store's `bytes`; remove others and `gc`), `no-space` (the file system has none; later puts try again), `busy` (`queueBytes` wait
 * already), `too-large` (more than a segment holds), `failed` (the disk refused; `stats().lastError` says what), `closed`.
 */
export type NotStoredReason = 'exists' | 'full' | 'no-space' | 'busy' | 'too-large' | 'failed' | 'closed';

/** What became of a `put`. With durability `sync` a stored record survives a loss of power. */
export type PutResult = { readonly stored: true } | { readonly stored: false; readonly reason: NotStoredReason };

/** One range of one stripe, and where its bytes go. */
export interface StoreRead {
  /** The stripe's id. */
  readonly stripe: number;
  /** First byte within the stripe. Default 0. */
  readonly offset?: number | undefined;
  /**
   * Where the bytes go: as many as it has are read. The store writes there on its own threads until the promise of `get` is settled,
   * also what turns out to be wrong: use only what the answer calls good.
   */
  readonly target: StoreMemory;
}

/**
 * Of one read: `good` (exactly the bytes that were stored), `absent` (no such record or stripe, or the range ends behind it), `corrupt`
 * (what is on disk is not what was stored), `io` (the disk refused to read it), `closed`.
 */
export type ReadState = 'good' | 'absent' | 'corrupt' | 'io' | 'closed';

/** The answer of a `get`. */
export interface GetResult {
  /** Whether every read is good. */
  readonly isHit: boolean;
  /** Of the first read that is not good; absent for a hit. */
  readonly reason?: Exclude<ReadState, 'good'> | undefined;
  /** One for each read, in their order. */
  readonly reads: readonly ReadState[];
}

/** The answer of a `remove`. */
export interface RemoveResult {
  /** How many of the keys were there. */
  readonly removed: number;
  /**
   * Whether the removal is written down (with durability `sync`: will survive a loss of power). False where the disk refused: the
   * records are gone for this process, the store tries again with later writes, and until then they may be back after a restart.
   */
  readonly isRecorded: boolean;
}

/** What a `gc` did. */
export interface GcResult {
  /** Segments that are gone. */
  readonly droppedSegments: number;
  /** Bytes of files given back, those of copies taken off. */
  readonly freedBytes: number;
  /** Bytes of live records that were copied. */
  readonly copiedBytes: number;
}

/** How far a `verify` is. */
export interface VerifyProgress {
  readonly records: number;
  readonly totalRecords: number;
  readonly bytes: number;
}

/** What a `verify` found. */
export interface VerifyResult {
  /** Records that were read whole. */
  readonly records: number;
  /** Bytes of them. */
  readonly bytes: number;
  /** Keys of records with bytes that are not what was stored. They stay until they are removed; what of them is good can be read. */
  readonly corrupt: readonly Uint8Array[];
  /** Keys of records that the disk refused to read. */
  readonly unreadable: readonly Uint8Array[];
  /** Whether the signal stopped it before the end. */
  readonly isInterrupted: boolean;
}
