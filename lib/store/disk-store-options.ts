// The options of a disk store: their checks and defaults.

import { boolean, integer, oneOf, optional, readOptions, string, withDefault, type Field } from '../base/options.js';
import { createError } from '../base/errors.js';
import { bytesOf } from '../base/typed-arrays.js';

/** What a resolved `put` or `remove` promises; docs/store-format.md has the table. */
export const durabilities = ['none', 'interval', 'sync'] as const;

/** `none`: nothing is synced. `interval`: within a second or 64 MiB. `sync`: a resolved call survives a loss of power. */
export type Durability = (typeof durabilities)[number];

/** Options of `DiskStore.open`. */
export interface DiskStoreOptions {
  /** Folder of the store; made where it is missing. Each namespace has a sub-folder of its own there. */
  readonly directory: string;
  /** Most bytes of files, at least 4 segments. Room for one segment is kept back for garbage collection and removals. */
  readonly bytes: number;
  /**
   * Names what the records are of: model, revision, dtype, tensor-parallel shard, format. Of any length. Records of another namespace
   * are never seen. Only one store at a time, of any process, has a namespace of a directory open.
   */
  readonly namespace: Uint8Array;
  /** What a resolved call promises about a loss of power. Default `interval`. */
  readonly durability?: Durability | undefined;
  /** Bytes of one file, a multiple of 4,096 from 64 KiB to 4 GiB. Default 256 MiB, or an eighth of `bytes` where that is less. */
  readonly segmentBytes?: number | undefined;
  /**
   * Bytes of a record that have a sum of their own, and the least that a read of a few bytes reads: 4,096, 8,192, … 65,536. Small ones are for
   * reads of single tokens, and take 4 bytes of a header each. Of records that are put; those that there are keep theirs. Default 65,536.
   */
  readonly chunkBytes?: number | undefined;
  /** Most bytes of puts that wait or are being written; a put beyond is answered `busy`, unless none waits. Default 256 MiB. */
  readonly queueBytes?: number | undefined;
  /** Threads for reading and writing, 1 to 64. Default 8. */
  readonly threads?: number | undefined;
  /** Whether to go around the page cache (O_DIRECT) where the file system can; `stats().direct` says what it does. Default true. */
  readonly direct?: boolean | undefined;
}

const KiB = 2 ** 10;
const MiB = 2 ** 20;
const blockBytes = 4 * KiB;
export const minSegmentBytes = 64 * KiB;
const maxSegmentBytes = 2 ** 32;
const minChunkBytes = 4 * KiB;
export const maxChunkBytes = 64 * KiB;
/** A store needs the segment that is written, one to copy into, one kept back, and one to be copied. */
const minSegments = 4;

const bytesField: Field<Uint8Array> = (value, place) => {
  const bytes = bytesOf(value);
  if (bytes !== undefined) return bytes;
  throw createError('KV_INVALID_OPTION', { reason: 'type', ...place, expected: 'a typed array that is not detached', received: value });
};

/** A power of two that the format allows. */
export const chunkBytesField: Field<number> = (value, place) => {
  const bytes = integer({ min: minChunkBytes, max: maxChunkBytes })(value, place);
  if (Number.isInteger(Math.log2(bytes))) return bytes;
  throw createError('KV_INVALID_OPTION', { reason: 'range', ...place, expected: 'a power of two', received: value });
};

const spec = {
  directory: string,
  bytes: integer({ min: minSegments * minSegmentBytes }),
  namespace: bytesField,
  durability: withDefault(oneOf(durabilities), 'interval' as const),
  segmentBytes: optional(integer({ min: minSegmentBytes, max: maxSegmentBytes, multipleOf: blockBytes })),
  chunkBytes: withDefault(chunkBytesField, maxChunkBytes),
  queueBytes: withDefault(integer({ min: 1 }), 256 * MiB),
  threads: withDefault(integer({ min: 1, max: 64 }), 8),
  direct: withDefault(boolean, true),
};

/** The options with every default filled in. */
export interface CheckedStoreOptions {
  readonly directory: string;
  readonly bytes: number;
  readonly namespace: Uint8Array;
  readonly durability: Durability;
  readonly segmentBytes: number;
  readonly chunkBytes: number;
  readonly queueBytes: number;
  readonly threads: number;
  readonly direct: boolean;
}

/** Throws KV_INVALID_OPTION and KV_UNKNOWN_OPTION. */
export function readStoreOptions(options: DiskStoreOptions): CheckedStoreOptions {
  const checked = readOptions('DiskStore', options, spec);
  const { bytes, directory } = checked;
  if (directory.includes('\0')) {
    throw createError('KV_INVALID_OPTION', {
      reason: 'range', owner: 'DiskStore', option: 'directory', expected: 'a path without a zero character', received: directory,
    });
  }
  const eighth = Math.floor(bytes / 8 / blockBytes) * blockBytes;
  const segmentBytes = checked.segmentBytes ?? Math.min(256 * MiB, Math.max(minSegmentBytes, eighth));
  if (bytes < minSegments * segmentBytes) {
    throw createError('KV_INVALID_OPTION', {
      reason: 'range', owner: 'DiskStore', option: 'bytes', expected: `at least ${minSegments} × \`segmentBytes\``, received: bytes,
      hint: 'Raise it, or lower `segmentBytes`.',
    });
  }
  return { ...checked, segmentBytes };
}
