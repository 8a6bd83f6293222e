// DiskStore: blocks on disk that survive crashes, a file each (docs/store-format.md), written, read and checked by
// threads of the store's own. It keeps the list of blocks and counts their files, and sees to it that one thing at a
// time is done to a block's file. It decides nothing: what to store and what to remove when it is full is the caller's
// business. Trusts its arguments but for the options. For one Node thread.

import { createHash } from 'node:crypto';
import path = require('node:path');
import { getSystemErrorName } from 'node:util';

import { createError, isKvError } from '../base/errors.js';
import { abortSignal, callable, notConstructible, optional, readOptions } from '../base/options.js';
import {
  nativePutStates, nativeReadStates, type NativeStore, type NativeStoreFaults, type NativeStoreStats,
} from '../device/native-store.js';
import { unclosed } from '../device/weak-users.js';
import { mostHeaderBytes, readScan, usedHeaderBytes, wholePages, type ScannedBlock } from './block-header.js';
import { durabilities, readStoreOptions, type CheckedStoreOptions, type DiskStoreOptions } from './disk-store-options.js';
import type {
  GetResult, NotStoredReason, PutResult, ReadMiss, RemoveResult, ReorderResult, StoreBlock, StoreEvents, TokenReads,
  TokensRead, VerifyProgress, VerifyResult,
} from './store-block.js';
import { StoreCalls, type StoreAnswer } from './store-calls.js';
import type { StoreStats } from './store-stats.js';

/** What is known of a block: the rest is in its file. */
interface Block {
  readonly tokens: number;
  readonly bytes: number;
  headerBytes: number;
  /** Of its file, while there is one. */
  fileBytes: number;
  level: number;
  isReordered: boolean;
  /** Its sync was refused before its put was answered. */
  isLost?: boolean;
}

type Five = [number, number, number, number, number];

/** Makes instances; the constructor refuses everything else. */
const makerKey = Symbol('DiskStore.open');

/** Options of `DiskStore.verify`. */
export interface VerifyOptions {
  /** Called after each block. */
  readonly onProgress?: ((progress: VerifyProgress) => void) | undefined;
  /** Stops it early; what was found by then is the answer. */
  readonly signal?: AbortSignal | undefined;
}

const verifySpec = { onProgress: optional(callable<(progress: VerifyProgress) => void>()), signal: optional(abortSignal) };

/** Headers that are read at a time when a store is opened. */
const scannedAtATime = 64;
const keyBytes = 32;
/** What a folder takes for the name of a file, at most and about. */
export const nameBytes = 256;
/** Of a store without blocks: its folder, identity and lock. */
const emptyBytes = 3 * 4096;

/** A store of blocks on disk. */
export class DiskStore {
  readonly #options: CheckedStoreOptions;
  readonly #calls: StoreCalls;
  readonly #events: StoreEvents;
  readonly #blocks = new Map<string, Block>();
  /** Being written, and not removed since. */
  readonly #coming = new Map<string, Block>();
  /** By key: what is done to its file last. */
  readonly #changes = new Map<string, Promise<unknown>>();
  /** By name: bytes of files that the disk refused to delete, or to read when the store was opened. */
  readonly #left = new Map<string, number>();
  /** Of these, the latter: they stay, as they may be readable another time. */
  readonly #unread = new Set<string>();
  readonly #underWay = new Set<Promise<unknown>>();
  readonly #ownBytes: number;
  /** Of the files of blocks, those that are being written, deleted or left included; and how many there are. */
  #fileBytes = 0;
  #files = 0;
  #bytes = 0;
  #queuedBytes = 0;
  #refusedPuts = 0;
  #closing: Promise<void> | undefined;
  #lastStats: NativeStoreStats | undefined;

  /** @internal */
  constructor(key: symbol, options: CheckedStoreOptions, calls: StoreCalls, ownBytes: number, events: StoreEvents) {
    if (key !== makerKey) throw notConstructible('DiskStore', 'DiskStore.open');
    this.#options = options;
    this.#calls = calls;
    this.#ownBytes = ownBytes;
    this.#events = events;
    const { native } = calls;
    unclosed.register(this, { what: 'A DiskStore', giveBack: () => native.stop() }, this);
  }

  /**
   * Opens the store of a namespace, or makes it, and tells what it has. What a crash left unfinished is deleted.
   * Rejects with KV_INVALID_OPTION, KV_UNKNOWN_OPTION, KV_STORE_UNAVAILABLE (the folder cannot be used: a file in its
   * place, no rights, a full disk), KV_STORE_LOCKED (open elsewhere), KV_STORE_FOREIGN (the folder holds something
   * else) or KV_STORE_VERSION (another format); the folder is then as it was.
   */
  static async open(options: DiskStoreOptions, events: StoreEvents = {}): Promise<DiskStore> {
    const checked = readStoreOptions(options);
    return openStore(checked, createHash('sha256').update(checked.namespace).digest(), events);
  }

  get #native(): NativeStore {
    return this.#calls.native;
  }

  /** Whether `close` was called. */
  get isClosed(): boolean {
    return this.#closing !== undefined;
  }

  /** Whether a block of this key is stored and not removed. Says nothing about its bytes. False once closed. */
  has(key: string): boolean {
    return !this.isClosed && this.#blocks.has(key);
  }

  /**
   * Stores a block of stripes with rows of so many bytes. Resolves when it is stored (and with durability `sync` on
   * disk for good), or with the reason why not; does not reject.
   */
  async put(block: StoreBlock, rowBytes: readonly number[], payload: Uint8Array): Promise<PutResult> {
    const { key, tokens, notes, level = 0 } = block;
    if (this.isClosed) return { stored: false, reason: 'closed' };
    if (this.#blocks.has(key) || this.#coming.has(key)) return this.#refuse('exists');
    const { bytes: limitBytes, queueBytes, chunkBytes } = this.#options;
    const used = usedHeaderBytes({ tokens: tokens.length, notesBytes: notes.length, rowBytes, chunkBytes });
    const headerBytes = wholePages(used);
    const fileBytes = headerBytes + wholePages(payload.length);
    if (used > mostHeaderBytes || emptyBytes + nameBytes + fileBytes > limitBytes) return this.#refuse('too-large');
    if (this.#queuedBytes > 0 && this.#queuedBytes + payload.length > queueBytes) return this.#refuse('busy');
    if (!this.#hasRoomFor(fileBytes)) return this.#refuse('full');
    const coming = { tokens: tokens.length, bytes: payload.length, headerBytes, fileBytes, level, isReordered: false };
    this.#coming.set(key, coming);
    this.#take(fileBytes);
    this.#queuedBytes += payload.length;
    void this.#deleteLeft();
    return this.#after([key], () => this.#write(block, coming, rowBytes, payload));
  }

  async #write(block: StoreBlock, coming: Block, rowBytes: readonly number[], payload: Uint8Array): Promise<PutResult> {
    const { key, parent, position, tokens, notes, sums, level = 0 } = block;
    const { numbers } = await this.#calls.ask([block, payload], (id) => {
      this.#native.put(
        id, bytesOf(key), bytesOf(parent), position, tokens, Float64Array.from(rowBytes), Float64Array.from(sums),
        notes, level, payload,
      );
    });
    this.#queuedBytes -= payload.length;
    const [state, left] = numbers as unknown as [number, number];
    const isWanted = this.#coming.get(key) === coming;
    if (isWanted) this.#coming.delete(key);
    if (state !== 0) {
      if (left === 0) this.#give(coming.fileBytes);
      else this.#leave(nameOf(key, left === 1 ? 'new' : 'block'), coming.fileBytes);
      coming.fileBytes = 0;
      return this.#refuse(nativePutStates[state] as NotStoredReason);
    }
    this.#gone(nameOf(key, 'new')); // the new file took its place
    this.#gone(nameOf(key, 'block'));
    if (isWanted && coming.isLost === true) {
      await this.#delete([[nameOf(key, 'block'), coming]]);
      return this.#refuse('failed');
    }
    if (isWanted) this.#add(key, coming);
    return { stored: true };
  }

  #refuse(reason: NotStoredReason): PutResult {
    this.#refusedPuts += 1;
    return { stored: false, reason };
  }

  /**
   * Fills `payload`, of the block's bytes. What was read is not compared with the sums: the caller does that where it
   * uses the bytes. After a miss they are anything. Does not reject.
   */
  async get(key: string, payload: Uint8Array): Promise<GetResult> {
    if (this.isClosed) return { isFound: false, reason: 'closed' };
    const block = this.#blocks.get(key);
    if (block?.bytes !== payload.length) return { isFound: false, reason: 'absent' };
    const { numbers, bytes } = await this.#ask(payload, (id) => {
      this.#native.get(id, bytesOf(key), block.headerBytes, payload);
    });
    if (numbers[0] !== 0) return { isFound: false, reason: this.#missOf(numbers[0]!, key, block) };
    return { isFound: true, sums: new Uint32Array(bytes.buffer, bytes.byteOffset, bytes.length / 4) };
  }

  /**
   * Reads the rows of single tokens, packed one behind the other into `target`, and only the chunks that hold them,
   * which are checked. Does not reject.
   */
  async getTokens(key: string, { stripes, counts, tokens }: TokenReads, target: Uint8Array): Promise<TokensRead> {
    const block = this.#blocks.get(key);
    if (this.isClosed) return { reason: 'closed', readBytes: 0, chunks: 0 };
    if (block === undefined) return { reason: 'absent', readBytes: 0, chunks: 0 };
    const { numbers } = await this.#ask(target, (id) => {
      this.#native.getTokens(id, bytesOf(key), stripes, counts, tokens, target);
    });
    const [state, readBytes, chunks] = numbers as unknown as [number, number, number];
    // Tokens that the block does not have are absent too: its file is looked for by who reads it whole.
    return { reason: state === 0 ? undefined : nativeReadStates[state] as ReadMiss, readBytes, chunks };
  }

  /** A file that is not there any more was taken by another program. */
  #missOf(state: number, key: string, block: Block): ReadMiss {
    const reason = nativeReadStates[state] as ReadMiss;
    if (reason !== 'absent' || this.#blocks.get(key) !== block) return reason;
    this.#drop(key, block);
    this.#give(block.fileBytes);
    return reason;
  }

  /**
   * Writes a block again with its tokens in another order: the row that comes first is that of token
   * `storedToLogical[0]`, and so on. What reads give stays the same. The new file takes the place of the old one once
   * it is on disk for good, whatever the durability; its chunks are those of the option `chunkBytes`. `absent`: no
   * block of so many tokens. Does not reject.
   */
  async reorder(key: string, storedToLogical: Int32Array): Promise<ReorderResult> {
    if (this.isClosed) return { stored: false, reason: 'closed' };
    return this.#after([key], async () => {
      const block = this.#blocks.get(key);
      if (block === undefined) return { stored: false, reason: 'absent' };
      const moreNumbers = storedToLogical.length + block.bytes / this.#options.chunkBytes; // at most
      const needed = block.fileBytes + wholePages(4 * moreNumbers);
      if (!this.#hasRoomFor(needed)) return { stored: false, reason: 'full' };
      this.#take(needed);
      const { numbers } = await this.#calls.ask(undefined, (id) => {
        this.#native.reorder(id, bytesOf(key), storedToLogical, block.level);
      });
      const [read, state, headerBytes, fileBytes, left] = numbers as unknown as Five;
      if (left === 0) this.#give(needed);
      else this.#leave(nameOf(key, 'new'), needed);
      if (read !== 0) return { stored: false, reason: nativeReadStates[read] as ReadMiss };
      if (state !== 0) return { stored: false, reason: nativePutStates[state] as NotStoredReason };
      this.#gone(nameOf(key, 'new'));
      this.#fileBytes += fileBytes - block.fileBytes;
      const isReordered = storedToLogical.some((token, row) => token !== row);
      Object.assign(block, { headerBytes, fileBytes, isReordered });
      return { stored: true };
    });
  }

  /**
   * The level of a block is this one from now on, in memory; its next copy, by `reorder`, is written with it. Until
   * then a store that is opened again has the one from before. Nothing where there is no such block.
   */
  setLevel(key: string, level: number): void {
    const block = this.#blocks.get(key) ?? this.#coming.get(key);
    if (block !== undefined) block.level = level;
  }

  /**
   * Removes blocks: from here on they are misses, also one whose `put` has not resolved yet, and a file that is not
   * listed. Their room is there when it resolves. Rejects with KV_CLOSED.
   */
  async remove(keys: readonly string[]): Promise<RemoveResult> {
    this.#checkOpen('remove blocks');
    const gone = new Map<string, Block | undefined>();
    let removed = 0;
    for (const key of new Set(keys)) {
      const block = this.#blocks.get(key) ?? this.#coming.get(key);
      if (block !== undefined) removed += 1;
      this.#drop(key, block);
      this.#coming.delete(key);
      gone.set(key, block);
    }
    const retried = this.#deleteLeft();
    const files = [...gone].map(([key, block]) => [nameOf(key, 'block'), block] as const);
    const isDeleted = gone.size === 0 || await this.#after([...gone.keys()], () => this.#delete(files));
    await retried;
    return { removed, isRecorded: isDeleted && ![...this.#left.keys()].some((name) => name.endsWith('.block')) };
  }

  /**
   * Deletes files and gives their room back. False where one is left, or may be back after a loss of power though it
   * should not.
   */
  async #delete(files: readonly (readonly [string, Block | undefined])[]): Promise<boolean> {
    const names = files.map(([name]) => name).join('/');
    const { numbers, bytes } = await this.#calls.ask(undefined, (id) => { this.#native.remove(id, names); });
    for (const [index, [name, block]] of files.entries()) {
      const fileBytes = block?.fileBytes ?? 0;
      if (bytes[index] === 1 && fileBytes > 0) this.#leave(name, fileBytes);
      if (bytes[index] === 1) continue;
      this.#gone(name);
      if (fileBytes > 0) this.#give(fileBytes);
    }
    return numbers[0] === 1 && !bytes.includes(1);
  }

  /** Tries again to delete what was left. Does not reject. */
  #deleteLeft(): Promise<unknown> {
    const names = [...this.#left.keys()].filter((name) => !this.#unread.has(name));
    return Promise.allSettled(names.map((name) => {
      const key = name.slice(0, name.indexOf('.'));
      return this.#changes.get(key) ?? this.#after([key], () => this.#delete([[name, undefined]]));
    }));
  }

  /** Does something to the files of these keys, once what is under way there is over. */
  #after<T>(keys: readonly string[], work: () => Promise<T>): Promise<T> {
    const before = keys.flatMap((key) => this.#changes.get(key) ?? []);
    const change = before.length === 0 ? work() : Promise.allSettled(before).then(work);
    const over = change.finally(() => {
      for (const key of keys) if (this.#changes.get(key) === over) this.#changes.delete(key);
    });
    for (const key of keys) this.#changes.set(key, over);
    return this.#track(over);
  }

  /**
   * Has what was stored and removed before on disk for good, with durability `interval`; the others leave nothing to
   * do. Rejects with KV_STORE_FAILED or KV_CLOSED.
   */
  async sync(): Promise<void> {
    this.#checkOpen('sync');
    await this.#ask(undefined, (id) => this.#native.sync(id));
  }

  /** Keys of the blocks. */
  keys(): string[] {
    return [...this.#blocks.keys()];
  }

  /** Counted over all blocks. */
  contents(): { readonly tokens: number; readonly reordered: number } {
    let [tokens, reordered] = [0, 0];
    for (const block of this.#blocks.values()) {
      tokens += block.tokens;
      reordered += block.isReordered ? 1 : 0;
    }
    return { tokens, reordered };
  }

  /** Once closed, as it was then. */
  stats(): StoreStats {
    const { isDirect, lastCall, lastErrno, ...counts } = this.#native.stats() ?? this.#lastStats!;
    const { direct, durability, bytes } = this.#options;
    return {
      blocks: this.#blocks.size,
      bytes: this.#bytes,
      fileBytes: this.#usedBytes,
      limitBytes: bytes,
      leftFiles: this.#left.size - this.#unread.size,
      queuedBytes: this.#queuedBytes,
      refusedPuts: this.#refusedPuts,
      ...counts,
      durability,
      direct: !direct ? 'off' : isDirect ? 'on' : 'unsupported',
      lastError: lastErrno === 0 ? undefined : `${lastCall}: ${getSystemErrorName(-lastErrno)}`,
    };
  }

  /** Reads every block whole and checks it. Rejects with KV_CLOSED, KV_INVALID_OPTION, or what `onProgress` throws. */
  async verify(options: VerifyOptions = {}): Promise<VerifyResult> {
    const { onProgress, signal } = readOptions('DiskStore.verify', options, verifySpec);
    this.#checkOpen('verify');
    const [corrupt, unreadable]: [string[], string[]] = [[], []];
    let [blocks, bytes] = [0, 0];
    const keys = this.keys();
    for (const key of keys) {
      if (signal?.aborted) return { blocks, bytes, corrupt, unreadable, isInterrupted: true };
      this.#checkOpen('verify');
      if (!this.#blocks.has(key)) continue; // removed meanwhile
      const { numbers } = await this.#ask(undefined, (id) => this.#native.check(id, bytesOf(key)));
      const state = nativeReadStates[numbers[0]!]!;
      if (state === 'absent') continue;
      if (state === 'corrupt') corrupt.push(key);
      if (state === 'io') unreadable.push(key);
      blocks += 1;
      bytes += numbers[1]!;
      onProgress?.({ blocks, totalBlocks: keys.length, bytes });
    }
    return { blocks, bytes, corrupt, unreadable, isInterrupted: false };
  }

  /**
   * Lets calls that were made end, syncs (but with durability `none`), and gives the directory free. Later calls are
   * answered `closed` or reject with KV_CLOSED. Idempotent: the same promise.
   */
  close(): Promise<void> {
    if (this.#closing !== undefined) return this.#closing;
    void this.#deleteLeft();
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
    while (this.#underWay.size > 0) await Promise.allSettled(this.#underWay);
    await this.#calls.ask(this, (id) => { this.#native.close(id); });
    this.#lastStats = this.#native.stats();
    this.#native.stop();
    unclosed.unregister(this);
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.close();
  }

  /** What a crash left of a block, and could not be deleted when the store was opened. @internal */
  leaveUnfinished(key: string, fileBytes: number): void {
    this.#take(fileBytes);
    this.#leave(nameOf(key, 'new'), fileBytes);
  }

  /** Lists what the files have, and tells it, what was written first before what was written later. @internal */
  async scan(files: number): Promise<void> {
    let next = 0;
    const scanned: ScannedBlock[] = [];
    await Promise.all(Array.from({ length: this.#options.threads }, async () => {
      while (next < files) {
        const first = next;
        next += scannedAtATime;
        const { numbers: unread, bytes } = await this.#calls.ask(this, (id) => {
          this.#native.scan(id, first, scannedAtATime);
        });
        const end = bytes.length - keyBytes * unread.length;
        for (const one of readScan(bytes.subarray(0, end))) scanned.push(one);
        for (const [index, key] of keysIn(bytes.subarray(end)).entries()) {
          this.#take(unread[index]!);
          this.#left.set(nameOf(key, 'block'), unread[index]!);
          this.#unread.add(nameOf(key, 'block'));
        }
      }
    }));
    for (const { block, headerBytes } of scanned.sort((a, b) => a.modifiedMs - b.modifiedMs)) {
      const fileBytes = headerBytes + wholePages(block.bytes);
      const { key, tokens, bytes, level, isReordered } = block;
      this.#add(key, { tokens: tokens.length, bytes, headerBytes, fileBytes, level, isReordered });
      this.#take(fileBytes);
      this.#events.found?.(block);
    }
  }

  /**
   * Blocks whose sync was refused: the kernel may count what it lost as written, and nothing makes them durable any
   * more. @internal
   */
  async lose(keys: readonly string[]): Promise<void> {
    for (const key of keys) {
      const coming = this.#coming.get(key);
      if (coming !== undefined) coming.isLost = true;
    }
    const known = keys.filter((key) => this.has(key));
    if (known.length === 0) return;
    this.#events.lost?.(known);
    await this.remove(known);
  }

  get #usedBytes(): number {
    return this.#fileBytes + Math.max(this.#ownBytes, emptyBytes + nameBytes * this.#files);
  }

  #hasRoomFor(fileBytes: number): boolean {
    return this.#usedBytes + fileBytes + nameBytes <= this.#options.bytes;
  }

  #take(fileBytes: number): void {
    this.#fileBytes += fileBytes;
    this.#files += 1;
  }

  #give(fileBytes: number): void {
    this.#fileBytes -= fileBytes;
    this.#files -= 1;
  }

  /** A file that was counted could not be deleted. */
  #leave(name: string, fileBytes: number): void {
    this.#gone(name);
    this.#left.set(name, fileBytes);
  }

  /** A file that was left is gone, or replaced. */
  #gone(name: string): void {
    const fileBytes = this.#left.get(name);
    if (fileBytes === undefined) return;
    this.#left.delete(name);
    this.#unread.delete(name);
    this.#give(fileBytes);
  }

  #add(key: string, block: Block): void {
    this.#blocks.set(key, block);
    this.#bytes += block.bytes;
  }

  #drop(key: string, block: Block | undefined): void {
    if (block !== undefined && this.#blocks.delete(key)) this.#bytes -= block.bytes;
  }

  #checkOpen(operation: string): void {
    if (this.isClosed) throw createError('KV_CLOSED', { operation, owner: 'DiskStore' });
  }

  #ask(holds: unknown, begin: (id: number) => void): Promise<StoreAnswer> {
    return this.#track(this.#calls.ask(holds, begin));
  }

  /** `close` waits for it, and the store is not collected before it is settled. */
  async #track<T>(answer: Promise<T>): Promise<T> {
    this.#underWay.add(answer);
    try {
      return await answer;
    } finally {
      this.#underWay.delete(answer);
    }
  }
}

/** Of a block's file, or of the one that is to take its place. */
function nameOf(key: string, kind: 'block' | 'new'): string {
  return `${key}.${kind}`;
}

function bytesOf(key: string): Uint8Array {
  return Buffer.from(key, 'hex');
}

function keysIn(bytes: Uint8Array): readonly string[] {
  return Buffer.from(bytes).toString('hex').match(/.{64}/g) ?? [];
}

/** Stores of this process that are closing, by their place: one that is opened there meanwhile waits for that. */
const closings = new Map<string, Promise<void>>();
/** How many have closed. */
let closes = 0;

/** Opens the store of a namespace's digest, with a test's faults in its system calls. @internal */
export async function openStore(
  options: CheckedStoreOptions, digest: Uint8Array, events: StoreEvents, faults?: NativeStoreFaults,
): Promise<DiskStore> {
  const { directory, chunkBytes, threads, durability, direct } = options;
  const opened: { store?: WeakRef<DiskStore> } = {}; // the addon keeps what the callback refers to
  const calls = new StoreCalls({
    directory: path.resolve(directory), namespace: digest, chunkBytes, threads, direct,
    durability: durabilities.indexOf(durability),
  }, (keys) => {
    void opened.store?.deref()?.lose(keysIn(keys));
  }, faults);
  const before = closes;
  let answer: StoreAnswer;
  try {
    answer = await calls.ask(undefined, (id) => { calls.native.open(id); });
  } catch (error) {
    calls.native.stop();
    const closing = closings.get(calls.place);
    if (!isKvError(error, 'KV_STORE_LOCKED') || (closing === undefined && closes === before)) throw error;
    await closing?.catch(() => { /* its closer hears of it */ });
    return openStore(options, digest, events, faults);
  }
  const [files, ownBytes, ...leftBytes] = answer.numbers as unknown as [number, number, ...number[]];
  const store = new DiskStore(makerKey, options, calls, ownBytes, events);
  try {
    // No closure: the one above is the thread's, and would keep what another here uses.
    const leftKeys = keysIn(answer.bytes);
    for (let at = 0; at < leftKeys.length; at += 1) store.leaveUnfinished(leftKeys[at]!, leftBytes[at]!);
    await store.scan(files);
  } catch (error) {
    unclosed.unregister(store);
    calls.native.stop();
    throw error;
  }
  opened.store = new WeakRef(store);
  return store;
}
