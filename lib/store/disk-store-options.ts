// The options of a disk store: their checks and defaults.

import { boolean, integer, oneOf, readOptions, string, withDefault, type Field } from '../base/options.js';
import { createError } from '../base/errors.js';
import { bytesOf } from '../base/typed-arrays.js';

/** What a resolved `put` or `remove` promises; docs/store-format.md has the table. */
export const durabilities = ['none', 'interval', 'sync'] as const;

/**
 * `none`: nothing is synced. `interval`: within a second or 64 MiB. `sync`: a resolved call survives a loss of power.
 */
export type Durability = (typeof durabilities)[number];

/** Options of `DiskStore.open`. */
export interface DiskStoreOptions {
  /** Folder of the store; made where it is missing. Each namespace has a sub-folder of its own there. */
  readonly directory: string;
  /** Most bytes of files, those that are being written and the folder included; 65,536 or more. */
  readonly bytes: number;
  /**
   * Names what the blocks are of: model, revision, dtype, tensor-parallel shard, format. Of any length. Blocks of
   * another namespace are never seen. Only one store at a time, of any process, has a namespace of a directory open.
   */
  readonly namespace: Uint8Array;
  /** What a resolved call promises about a loss of power. Default `interval`. */
  readonly durability?: Durability | undefined;
  /**
   * Bytes of a block that have a sum of their own, and the least that a read of single tokens reads: 4,096, 8,192, …
   * 65,536. Small ones take 4 bytes of a header each. Of blocks that are put; those that there are keep theirs. Default
   * 65,536.
   */
  readonly chunkBytes?: number | undefined;
  /**
   * Most bytes of puts that wait or are being written; a put beyond is answered `busy`, unless none waits. Default 256
   * MiB.
   */
  readonly queueBytes?: number | undefined;
  /** Threads for reading and writing, 1 to 64. Default 8. */
  readonly threads?: number | undefined;
  /**
   * Whether to go around the page cache (O_DIRECT) where the file system can; `stats().direct` says what it does.
   * Default true.
   */
  readonly direct?: boolean | undefined;
}

const KiB = 2 ** 10;
const MiB = 2 ** 20;
const minChunkBytes = 4 * KiB;
export const maxChunkBytes = 64 * KiB;

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
  bytes: integer({ min: 64 * KiB }),
  namespace: bytesField,
  durability: withDefault(oneOf(durabilities), 'interval' as const),
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
  readonly chunkBytes: number;
  readonly queueBytes: number;
  readonly threads: number;
  readonly direct: boolean;
}

/** Throws KV_INVALID_OPTION and KV_UNKNOWN_OPTION. */
export function readStoreOptions(options: DiskStoreOptions): CheckedStoreOptions {
  const checked = readOptions('DiskStore', options, spec);
  const { directory } = checked;
  if (directory.includes('\0')) {
    throw createError('KV_INVALID_OPTION', {
      reason: 'range', owner: 'DiskStore', option: 'directory', expected: 'a path without a zero character', received: directory,
    });
  }
  return checked;
}
