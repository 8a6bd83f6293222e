// What a disk store says of itself: what lies in its files, counted from its segments, and what was done and refused since it was opened.

import type { Durability } from './disk-store-options.js';

/** A snapshot; sizes in bytes. */
export interface StoreStats {
  /** Records that can be read. */
  readonly records: number;
  /** What they occupy, headers and padding included. */
  readonly liveBytes: number;
  /** What removed records and failed writes occupy until `gc` gives it back. */
  readonly deadBytes: number;
  /** Sizes of all segment files, room that is not yet written included. */
  readonly fileBytes: number;
  /** The most that `fileBytes` may become: the option `bytes`. */
  readonly limitBytes: number;
  /** Segment files. */
  readonly segments: number;
  /** Of them, those to which a refused sync forbids further writes. */
  readonly failedSegments: number;
  /** Removals that are written down and still needed. */
  readonly tombstones: number;
  /** Removals that the disk refused to write down so far. */
  readonly unrecordedRemovals: number;
  /** Files in the folder that are not this store's; it leaves them alone. */
  readonly foreignFiles: number;
  /** Bytes of puts that wait or are being written. */
  readonly queuedBytes: number;
  readonly durability: Durability;
  /** `on`: O_DIRECT. `unsupported`: asked for, but the file system cannot; the page cache is used. `off`: not asked for. */
  readonly direct: 'on' | 'unsupported' | 'off';
  /** Whether files get their room when they are made. `unsupported`: a full disk shows only when it is written to. */
  readonly preallocation: 'on' | 'unsupported';
  /** How checksums are computed: `avx512`, `sse4.2`, `armv8` or `table`. */
  readonly checksum: string;

  // Since the store was opened
  readonly puts: number;
  readonly putBytes: number;
  readonly refusedPuts: number;
  readonly gets: number;
  /** Bytes that good reads delivered. */
  readonly getBytes: number;
  readonly corruptReads: number;
  readonly failedReads: number;
  readonly failedWrites: number;
  readonly failedSyncs: number;
  readonly syncs: number;
  /** Reads of files that the system made, and the bytes that they moved: headers, opening and `gc` included. */
  readonly readCalls: number;
  readonly readBytes: number;
  /** The last call that the system refused, `pwrite: ENOSPC`; undefined when there was none. */
  readonly lastError: string | undefined;
}
