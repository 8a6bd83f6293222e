// StoreFaults: a test's hold on the system calls of disk stores: the n-th fails, moves fewer bytes, flips a bit, waits
// or kills the process; and a journal of what changed files, from which a test builds what a loss of power may leave.
// Opens the stores that it holds.

import { createHash } from 'node:crypto';
import { constants } from 'node:os';

import { boolean, checkInteger, integer, oneOf, optional, readOptions, string, withDefault } from '../base/options.js';
import { native } from '../device/native.js';
import type { NativeStoreFaults } from '../device/native-store.js';
import { openStore, type DiskStore } from './disk-store.js';
import { readStoreOptions, type DiskStoreOptions } from './disk-store-options.js';
import type { StoreEvents } from './store-block.js';

/** System calls by name. `read` and `write` are `preadv` and `pwritev`, `sync` is `fdatasync`, `syncFolder` `fsync`. */
export const fileCalls = [
  'open', 'read', 'write', 'sync', 'syncFolder', 'rename', 'unlink', 'makeFolder', 'lock', 'readFolder', 'size',
] as const;

/** One of them. */
export type FileCall = (typeof fileCalls)[number];

/** What becomes of some system calls of a store. */
export interface StoreFault {
  /** Which; default any. */
  readonly call?: FileCall | undefined;
  /** From which call on, counted from now; 1, the default, is the next. */
  readonly nth?: number | undefined;
  /** How many from there on. Default 1; `Infinity` is not accepted, 2³² is as good. */
  readonly times?: number | undefined;
  /** The error that they give, `ENOSPC`; left out, they are made. */
  readonly error?: string | undefined;
  /** Most bytes that a read or write moves. */
  readonly mostBytes?: number | undefined;
  /** The bit of what was read that is flipped, modulo how many there are. */
  readonly flippedBit?: number | undefined;
  /** Whether the process is killed (SIGKILL) instead. */
  readonly kills?: boolean | undefined;
  /** Whether it waits for `clear` first. One that opens a store, or ends it, must not. */
  readonly holds?: boolean | undefined;
}

const faultSpec = {
  call: optional(oneOf(fileCalls)), nth: withDefault(integer({ min: 1 }), 1), times: withDefault(integer({ min: 1 }), 1),
  error: optional(oneOf(Object.keys(constants.errno))), mostBytes: withDefault(integer(), -1), flippedBit: withDefault(integer(), -1), kills: withDefault(boolean, false),
  holds: withDefault(boolean, false),
};

/** One change of a file that was made, or a sync that succeeded. */
export interface FileChange {
  /** `open` is one that made a file. */
  readonly call: FileCall;
  /** The file or folder. */
  readonly path: string;
  /** Of a `rename`: the new path. */
  readonly other: string;
  /** Of a `write` where; of a `sync` or `syncFolder`: earlier changes than this one are safe. */
  readonly offset: number;
  /** Of a `write`. */
  readonly bytes: Uint8Array;
}

/** Faults of the disk stores that it opens. */
export class StoreFaults {
  readonly #native: NativeStoreFaults = new (native().NativeStoreFaults)();

  /** As `DiskStore.open`, with these faults. */
  async open(options: DiskStoreOptions, events: StoreEvents = {}): Promise<DiskStore> {
    const checked = readStoreOptions(options);
    return openStore(checked, createHash('sha256').update(checked.namespace).digest(), events, this.#native);
  }

  /** Adds a fault to those that there are. Throws KV_INVALID_OPTION. */
  add(fault: StoreFault): void {
    const { call = '', nth, times, error, mostBytes, flippedBit, kills, holds } = readOptions('StoreFaults', fault, faultSpec);
    const errno = error === undefined ? 0 : constants.errno[error as keyof typeof constants.errno];
    this.#native.add(call, nth, times, errno, mostBytes, flippedBit, kills, holds);
  }

  /**
   * Kills the process (SIGKILL) when a store comes to the named point for the nth time from now. Throws
   * KV_INVALID_OPTION.
   */
  killAt(point: string, nth = 1): void {
    string(point, { owner: 'StoreFaults.killAt', option: 'point' });
    checkInteger('StoreFaults.killAt', 'nth', nth, 1);
    this.#native.killAt(point, nth);
  }

  /** Calls that wait, of a fault that holds them. */
  get held(): number {
    return this.#native.held();
  }

  /** Takes all faults back; held calls go on. */
  clear(): void {
    this.#native.clear();
  }

  /** Calls so far. */
  counts(): Readonly<Record<FileCall, number>> {
    return this.#native.counts();
  }

  /** How often each named point was passed. */
  points(): Readonly<Record<string, number>> {
    return this.#native.points();
  }

  /** Notes changes of files from now on. */
  startJournal(): void {
    this.#native.startJournal();
  }

  /** How many there are so far. */
  journalLength(): number {
    return this.#native.journalLength();
  }

  /** Ends the journal and returns it. */
  takeJournal(): readonly FileChange[] {
    return this.#native.takeJournal() as FileChange[];
  }
}
