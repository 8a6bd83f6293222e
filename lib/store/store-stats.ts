// What a disk store says of itself: what lies in its files, and what was done and refused since it was opened.

import type { Durability } from './disk-store-options.js';

/** A snapshot; sizes in bytes. */
export interface StoreStats {
  /** Blocks that can be read. */
  readonly blocks: number;
  /** Of their payloads. */
  readonly bytes: number;
  /** What all files take: headers and padding, blocks that are being written or deleted, the folder itself. */
  readonly fileBytes: number;
  /** The most that `fileBytes` may become: the option `bytes`. */
  readonly limitBytes: number;
  /** Files that the disk refused to delete so far; the store tries again with later changes. */
  readonly leftFiles: number;
  /** Files in the folder that are not this store's; it leaves them alone. */
  readonly foreignFiles: number;
  /** Files that held no block when the store was opened: cut off by a loss of power, or damaged. They were deleted. */
  readonly damagedFiles: number;
  /** Files kept open for further reads of single tokens. */
  readonly openFiles: number;
  /** Bytes of puts that wait or are being written. */
  readonly queuedBytes: number;
  readonly durability: Durability;
  /**
   * `on`: O_DIRECT. `unsupported`: asked for, but the file system cannot; the page cache is used. `off`: not asked for.
   */
  readonly direct: 'on' | 'unsupported' | 'off';
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
  /** Reads of files that the system made, and the bytes that they moved: headers and opening included. */
  readonly readCalls: number;
  readonly readBytes: number;
  /** The last call that the system refused, `pwritev: ENOSPC`; undefined when there was none. */
  readonly lastError: string | undefined;
}
