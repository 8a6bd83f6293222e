// DiskStore: records on disk that survive crashes: a read returns exactly the bytes that were stored, or it is a miss. Records lie in
// append-only segment files (docs/store-format.md), written, read and checked by threads of the store's own. It decides nothing: what to
// store, what to remove when it is full and when to collect garbage is the caller's business. For one Node thread.

import { createHash } from 'node:crypto';
import path = require('node:path');
import { getSystemErrorName } from 'node:util';

import { createError, isKvError } from '../base/errors.js';
import { abortSignal, callable, notConstructible, optional, readOptions } from '../base/options.js';
import { nativePutStates, nativeReadStates, type NativeStoreFaults, type NativeStoreStats } from '../device/native-store.js';
import { unclosed } from '../device/weak-users.js';
import { durabilities, readStoreOptions, type CheckedStoreOptions, type DiskStoreOptions } from './disk-store-options.js';
import { readListing } from './record-listing.js';
import { keyField, levelField, readKeys, readReads, readRecord } from './store-arguments.js';
import { StoreCalls, type StoreAnswer } from './store-calls.js';
import type {
  FoundRecord, GcResult, GetResult, NotStoredReason, PutResult, ReadState, RemoveResult, StoreRead, StoreRecord, VerifyProgress, VerifyResult,
} from './store-record.js';
import type { StoreStats } from './store-stats.js';

/** Stripes that lie one behind the other in a payload. @internal */
export class PackedStripes {
  readonly stripes: Float64Array;
  readonly offsets: Float64Array;
  readonly byteCounts: Float64Array;

  constructor(byteCounts: readonly number[]) {
    this.stripes = Float64Array.from(byteCounts, (_, index) => index);
    this.offsets = new Float64Array(byteCounts.length);
    this.byteCounts = Float64Array.from(byteCounts);
  }
}

/** Tokens of several stripes. @internal */
export interface TokenReads {
  readonly stripes: Float64Array;
  /** How many of `tokens` are of each stripe. */
  readonly counts: Float64Array;
  /** Of all stripes in turn; a record's first is 0. */
  readonly tokens: Int32Array;
}

/** What became of them; undefined: all are good. @internal */
export interface TokensRead {
  readonly reason: Exclude<ReadState, 'good'> | undefined;
  readonly readBytes: number;
  readonly chunks: number;
}

/** What became of a `reorder`. */
export type ReorderResult =
  | { readonly stored: true }
  | { readonly stored: false; readonly reason: NotStoredReason | Exclude<ReadState, 'good'> };

/** Makes instances; the constructor refuses everything else. */
const makerKey = Symbol('DiskStore.open');

/** Options of `DiskStore.verify`. */
export interface VerifyOptions {
  /** Called after each record. */
  readonly onProgress?: ((progress: VerifyProgress) => void) | undefined;
  /** Stops it early; what was found by then is the answer. */
  readonly signal?: AbortSignal | undefined;
}

const verifySpec = { onProgress: optional(callable<(progress: VerifyProgress) => void>()), signal: optional(abortSignal) };

/** A store of records on disk. */
export class DiskStore {
  readonly #options: CheckedStoreOptions;
  readonly #calls: StoreCalls;
  readonly #underWay = new Set<Promise<unknown>>();
  #queuedBytes = 0;
  #refusedPuts = 0;
  #closing: Promise<void> | undefined;
  #lastStats: NativeStoreStats | undefined;

  /** @internal */
  constructor(key: symbol, options: CheckedStoreOptions, calls: StoreCalls) {
    if (key !== makerKey) throw notConstructible('DiskStore', 'DiskStore.open');
    this.#options = options;
    this.#calls = calls;
    const { native } = calls;
    unclosed.register(this, { what: 'A DiskStore', giveBack: () => native.stop() }, this);
  }

  /**
   * Opens the store of a namespace, or makes it, and rebuilds its index from its files; `records()` then lists what it has. A segment
   * that a crash left unfinished is finished. Rejects with KV_INVALID_OPTION, KV_UNKNOWN_OPTION, KV_STORE_UNAVAILABLE (the folder
   * cannot be used: a file in its place, no rights, a full disk), KV_STORE_LOCKED (open elsewhere), KV_STORE_FOREIGN (the folder holds
   * something else) or KV_STORE_VERSION (a later format); the files are then as they were.
   */
  static async open(options: DiskStoreOptions): Promise<DiskStore> {
    const checked = readStoreOptions(options);
    return openStore(checked, createHash('sha256').update(checked.namespace).digest());
  }

  /** Whether `close` was called. */
  get isClosed(): boolean {
    return this.#closing !== undefined;
  }

  /** Whether a record of this key is stored and not removed. Says nothing about its bytes. False once closed. Throws KV_INVALID_OPTION. */
  has(key: Uint8Array): boolean {
    return this.#calls.native.has(keyField(key, { owner: 'DiskStore.has', option: 'key' }));
  }

  /**
   * Stores a record. Resolves when it is stored (and with durability `sync` on disk for good), or with the reason why not; the sources
   * of its stripes are the caller's again then. Rejects only with KV_INVALID_OPTION and KV_UNKNOWN_OPTION.
   */
  async put(record: StoreRecord): Promise<PutResult> {
    const { key, parent, position, tokens, extra, level, stripes, byteCounts, sources, bytes } = readRecord(record);
    if (this.isClosed) return { stored: false, reason: 'closed' };
    if (this.#queuedBytes > 0 && this.#queuedBytes + bytes > this.#options.queueBytes) return this.#refuse('busy');
    let state = 0;
    const asked = this.#calls.ask(sources, (id) => {
      state = this.#calls.native.put(id, key, parent, position, tokens, extra, stripes, byteCounts, sources, level);
      return state === 0;
    });
    if (asked !== undefined) {
      this.#queuedBytes += bytes;
      const { numbers } = await this.#track(asked);
      this.#queuedBytes -= bytes;
      state = numbers[0]!;
    }
    const reason = nativePutStates[state]!;
    return reason === 'stored' ? { stored: true } : this.#refuse(reason);
  }

  #refuse(reason: 'busy' | Exclude<(typeof nativePutStates)[number], 'stored'>): PutResult {
    this.#refusedPuts += 1;
    return { stored: false, reason };
  }

  /**
   * Reads ranges of a record's stripes into the targets, in parallel, and checks every byte against the sums that were stored. Targets must
   * not overlap. Resolves, never with wrong bytes called good; rejects only with KV_INVALID_OPTION and KV_UNKNOWN_OPTION.
   */
  async get(key: Uint8Array, reads: readonly StoreRead[]): Promise<GetResult> {
    const name = keyField(key, { owner: 'DiskStore.get', option: 'key' });
    const { stripes, offsets, byteCounts, targets } = readReads(reads);
    if (this.isClosed) return resultOf(Array.from(targets, () => 'closed'));
    const { bytes } = await this.#ask(targets, (id) => this.#calls.native.get(id, name, stripes, offsets, byteCounts, targets, true));
    return resultOf(Array.from(bytes, (state) => nativeReadStates[state]!));
  }

  /**
   * Whole stripes, numbered from 0 on, into one payload. What was read is not compared with the store's sums: the caller has sums of the stripes, and
   * compares them where it uses the bytes. Trusts its arguments. @internal
   */
  async getPacked(key: Uint8Array, { stripes, offsets, byteCounts }: PackedStripes, payload: Uint8Array): Promise<Exclude<ReadState, 'good'> | undefined> {
    if (this.isClosed) return 'closed';
    const { bytes } = await this.#ask(payload, (id) => this.#calls.native.get(id, key, stripes, offsets, byteCounts, payload, false));
    const worst = bytes.find((state) => state !== 0);
    return worst === undefined ? undefined : nativeReadStates[worst] as Exclude<ReadState, 'good'>;
  }

  /**
   * Reads the bytes that stripes have for single tokens, packed one behind the other into `target`, and only the chunks that hold them. A
   * stripe has as many bytes for each token of its record. Trusts its arguments but for the tokens. @internal
   */
  async getTokens(key: Uint8Array, { stripes, counts, tokens }: TokenReads, target: Uint8Array): Promise<TokensRead> {
    if (this.isClosed) return { reason: 'closed', readBytes: 0, chunks: 0 };
    const { bytes, numbers } = await this.#ask(target, (id) => this.#calls.native.getTokens(id, key, stripes, counts, tokens, target));
    const worst = bytes.find((state) => state !== 0);
    const reason = worst === undefined ? undefined : nativeReadStates[worst] as Exclude<ReadState, 'good'>;
    return { reason, readBytes: numbers[0]!, chunks: numbers[1]! };
  }

  /**
   * Writes a record again with its tokens in another order: the row that comes first is that of token `storedToLogical[0]`, and so on. What reads
   * give stays the same; reads that have begun go on in the old copy. The new one counts once it is on disk for good, whatever the
   * durability; its chunks are those of the option `chunkBytes`. `absent`: no record of so many tokens, or tokens do not divide its
   * stripes. Trusts its arguments but for the order.
   */
  async reorder(key: Uint8Array, storedToLogical: Int32Array): Promise<ReorderResult> {
    if (this.isClosed) return { stored: false, reason: 'closed' };
    const { numbers } = await this.#ask(undefined, (id) => this.#calls.native.reorder(id, key, storedToLogical));
    const read = nativeReadStates[numbers[1]!]!;
    if (read !== 'good') return { stored: false, reason: read };
    const put = nativePutStates[numbers[0]!]!;
    return put === 'stored' ? { stored: true } : { stored: false, reason: put };
  }

  /**
   * The level of a record is this one from now on: `records` gives it, and the record's next copy, by `gc` or `reorder`, is written with it. Until
   * then a store that is opened again has the one from before. Nothing where there is no such record. Throws KV_INVALID_OPTION.
   */
  setLevel(key: Uint8Array, level: number): void {
    const owner = 'DiskStore.setLevel';
    this.#calls.native.setLevel(keyField(key, { owner, option: 'key' }), levelField(level, { owner, option: 'level' }));
  }

  /**
   * Removes records: from here on they are misses, also one whose `put` has not resolved yet. Files without a live record are deleted
   * before it resolves; `gc` gives back the rest. Rejects only with KV_INVALID_OPTION and KV_CLOSED.
   */
  async remove(keys: readonly Uint8Array[]): Promise<RemoveResult> {
    const joined = readKeys(keys);
    this.#checkOpen('remove records');
    const { numbers } = await this.#ask(undefined, (id) => this.#calls.native.remove(id, joined));
    return { removed: numbers[0]!, isRecorded: numbers[1] === 1 };
  }

  /**
   * All that can be read, in no promised order, as it is when each segment is listed; removals meanwhile may or may not show. Rejects with
   * KV_CLOSED, or KV_STORE_FAILED where a segment's list cannot be read.
   */
  async *records(): AsyncIterableIterator<FoundRecord> {
    for (let segment = 0; segment >= 0;) {
      this.#checkOpen('list records');
      const from = segment;
      const { numbers, bytes } = await this.#ask(undefined, (id) => this.#calls.native.list(id, from));
      segment = numbers[0]!;
      yield* readListing(bytes);
    }
  }

  /** Has everything that was stored before on disk for good, whatever the durability. Rejects with KV_STORE_FAILED or KV_CLOSED. */
  async sync(): Promise<void> {
    this.#checkOpen('sync');
    await this.#ask(undefined, (id) => this.#calls.native.sync(id));
  }

  /**
   * Copies the live records of segments that are less than half alive, and deletes those files; reads that use them go on. Resolves when no
   * such segment is left, or the disk has no room for copies. Rejects with KV_CLOSED.
   */
  async gc(): Promise<GcResult> {
    this.#checkOpen('collect garbage');
    const { numbers } = await this.#ask(undefined, (id) => this.#calls.native.collect(id));
    return { droppedSegments: numbers[0]!, freedBytes: numbers[1]!, copiedBytes: numbers[2]! };
  }

  /** Counted anew from the segments at each call. Once closed, as it was then. */
  stats(): StoreStats {
    const stats = this.#calls.native.stats() ?? this.#lastStats!;
    const { isDirect, canAllocate, lastCall, lastErrno, ...counts } = stats;
    const { direct, durability, bytes } = this.#options;
    return {
      ...counts,
      limitBytes: bytes,
      queuedBytes: this.#queuedBytes,
      refusedPuts: this.#refusedPuts,
      durability,
      direct: !direct ? 'off' : isDirect ? 'on' : 'unsupported',
      preallocation: canAllocate ? 'on' : 'unsupported',
      lastError: lastErrno === 0 ? undefined : `${lastCall}: ${getSystemErrorName(-lastErrno)}`,
    };
  }

  /** Reads every record whole and checks it. Rejects with KV_CLOSED, KV_STORE_FAILED, KV_INVALID_OPTION, or what `onProgress` throws. */
  async verify(options: VerifyOptions = {}): Promise<VerifyResult> {
    const { onProgress, signal } = readOptions('DiskStore.verify', options, verifySpec);
    const corrupt: Uint8Array[] = [];
    const unreadable: Uint8Array[] = [];
    const { records: totalRecords } = this.stats();
    let records = 0;
    let bytes = 0;
    for await (const { key } of this.records()) {
      if (signal?.aborted) return { records, bytes, corrupt, unreadable, isInterrupted: true };
      this.#checkOpen('verify');
      const { numbers } = await this.#ask(undefined, (id) => this.#calls.native.check(id, key));
      const state = nativeReadStates[numbers[0]!]!;
      if (state === 'absent') continue; // removed meanwhile
      if (state === 'corrupt') corrupt.push(key);
      if (state === 'io') unreadable.push(key);
      records += 1;
      bytes += numbers[1]!;
      onProgress?.({ records, totalRecords, bytes });
    }
    return { records, bytes, corrupt, unreadable, isInterrupted: false };
  }

  /**
   * Lets calls that were made end, syncs (but with durability `none`), finishes the segment that is being written, and gives the
   * directory free. Later calls are answered `closed` or reject with KV_CLOSED. Idempotent: the same promise.
   */
  close(): Promise<void> {
    if (this.#closing !== undefined) return this.#closing;
    const closing = this.#closing = this.#close();
    const { place } = this.#calls;
    closings.set(place, closing);
    const over = (): void => {
      closes += 1;
      if (closings.get(place) === closing) closings.delete(place);
    };
    closing.then(over, over);
    return closing;
  }

  async #close(): Promise<void> {
    await Promise.allSettled(this.#underWay);
    await this.#calls.ask(this, (id) => { this.#calls.native.close(id); return true; });
    this.#lastStats = this.#calls.native.stats();
    this.#calls.native.stop();
    unclosed.unregister(this);
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.close();
  }

  #checkOpen(operation: string): void {
    if (this.isClosed) throw createError('KV_CLOSED', { operation, owner: 'DiskStore' });
  }

  #ask(holds: unknown, begin: (id: number) => void): Promise<StoreAnswer> {
    return this.#track(this.#calls.ask(holds, (id) => { begin(id); return true; })!);
  }

  /** `close` waits for it, and the store is not collected before it is settled. */
  async #track(answer: Promise<StoreAnswer>): Promise<StoreAnswer> {
    this.#underWay.add(answer);
    try {
      return await answer;
    } finally {
      this.#underWay.delete(answer);
    }
  }
}

function resultOf(reads: readonly ReadState[]): GetResult {
  const reason = reads.find((state): state is Exclude<ReadState, 'good'> => state !== 'good');
  return reason === undefined ? { isHit: true, reads } : { isHit: false, reason, reads };
}

/** Stores of this process that are closing, by their place: one that is opened there meanwhile waits for that. */
const closings = new Map<string, Promise<void>>();
/** How many have closed. */
let closes = 0;

/** Opens the store of a namespace's digest, with a test's faults in its system calls. @internal */
export async function openStore(options: CheckedStoreOptions, digest: Uint8Array, faults?: NativeStoreFaults): Promise<DiskStore> {
  const { directory, bytes, segmentBytes, chunkBytes, threads, durability, direct } = options;
  const calls = new StoreCalls({
    directory: path.resolve(directory), namespace: digest, bytes, segmentBytes, chunkBytes, threads, durability: durabilities.indexOf(durability), direct,
  }, faults);
  const before = closes;
  try {
    await calls.ask(undefined, (id) => { calls.native.open(id); return true; });
  } catch (error) {
    calls.native.stop();
    const closing = closings.get(calls.place);
    if (!isKvError(error, 'KV_STORE_LOCKED') || (closing === undefined && closes === before)) throw error;
    await closing?.catch(() => { /* its closer hears of it */ });
    return openStore(options, digest, faults);
  }
  return new DiskStore(makerKey, options, calls);
}
