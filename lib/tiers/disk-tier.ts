// diskTier: blocks in a disk store. Each block is a record of the store, with a stripe for each tensor; what restarts, crashes and
// another layout leave of it is found again. The cache chooses what goes; the store's garbage is collected when room is short.

import { boolean, integer, oneOf, optional, readOptions, string, withDefault, type OptionsOf } from '../base/options.js';
import { chunkBytesField, durabilities, maxChunkBytes, type Durability } from '../store/disk-store-options.js';
import { DiskStore, PackedStripes, type ReorderResult } from '../store/disk-store.js';
import type { GcResult, NotStoredReason, ReadState } from '../store/store-record.js';
import { tierInUse } from './tier-field.js';
import type {
  BlockRecord, GetMiss, PutRefusal, Tier, TierContext, TierGet, TierPut, TierRemoval, TierStatistics, TierTokens, TierTokensGet,
} from './tier.js';

/** Options of `diskTier`. */
export interface DiskTierOptions {
  /** Folder of the store; made where it is missing. One cache at a time has the folder of a model open. */
  readonly directory: string;
  /** Bytes of files at most, 16 MiB or more. */
  readonly bytes: number;
  /** Bytes of blocks that the text of one tenant may take, from 4,096 on; what it used longest ago goes first then. Requests without a tenant are one. Default: all. */
  readonly tenantBytes?: number | undefined;
  /**
   * What a stored block promises about a loss of power: `none`, `interval` (at most the last second or 64 MiB is lost) or `sync`.
   * Whatever it is, what is read is exact or a miss. Default `interval`.
   */
  readonly durability?: Durability | undefined;
  /**
   * `all`: a block is written at once, and found when its text comes a second time, also after a restart. `twice`: when its text was seen a
   * second time by this process, which spares the disk what never returns, and finds less. Default `all`.
   */
  readonly admit?: 'twice' | 'all' | undefined;
  /** What stays where it is full: text that is likely to return, learnt from which did, or text used last. Default `adaptive`. */
  readonly keeps?: 'adaptive' | 'recent' | undefined;
  /** Threads for reading and writing, 1 to 64. Default 8. */
  readonly threads?: number | undefined;
  /** Go around the system's page cache (O_DIRECT) where the file system can. Default true. */
  readonly direct?: boolean | undefined;
  /**
   * Bytes that have a checksum of their own, and the least that is read where single tokens are: 4,096, 8,192, … 65,536. Small ones read
   * little more than the tokens, and take a thousandth of the room. Of blocks that are stored from now on. Default 65,536.
   */
  readonly chunkBytes?: number | undefined;
  /** In statistics and results. Default `disk`. */
  readonly name?: string | undefined;
}

const MiB = 2 ** 20;

const spec = {
  directory: string,
  bytes: integer({ min: 16 * MiB }),
  tenantBytes: optional(integer({ min: 4096 })),
  durability: withDefault(oneOf(durabilities), 'interval' as const),
  admit: withDefault(oneOf(['twice', 'all']), 'all'),
  keeps: withDefault(oneOf(['adaptive', 'recent']), 'adaptive'),
  threads: optional(integer({ min: 1, max: 64 })),
  direct: withDefault(boolean, true),
  chunkBytes: withDefault(chunkBytesField, maxChunkBytes),
  name: withDefault(string, 'disk'),
};

/**
 * A tier on a local disk, for `prefixCache.tiers`: text survives the process. Needs `prefixCache.modelId`. A folder that cannot be used
 * is an error of `prefixes.tiers.ready()`. Throws KV_UNKNOWN_OPTION and KV_INVALID_OPTION.
 */
export function diskTier(options: DiskTierOptions): Tier {
  return new DiskTier(readOptions('diskTier', options, spec));
}

/** What the header of a record takes beside its payload, in bytes and about. */
const headerBytes = 8192;
/** Share of the files that blocks may have: the rest is room for garbage and for collecting it. */
const usableShare = 0.7;

/** A block has no more, whatever `blockTokens` says (the contract of tiers). */
const mostPayloadBytes = 8 * MiB;

/**
 * Bytes of a file: of many, since the store keeps the room of one back, and collects garbage a file at a time; each with room for some blocks,
 * or for one where `bytes` are few.
 */
function segmentBytesOf(bytes: number, blockBytes: number): number {
  const wished = Math.min(256 * MiB, Math.max(bytes / 64, 8.5 * blockBytes, 1.1 * mostPayloadBytes));
  const most = 1.2 * blockBytes <= bytes / 8 ? bytes / 8 : bytes / 4;
  return Math.floor(Math.min(wished, most) / 4096) * 4096;
}

type ReadOptions = OptionsOf<typeof spec>;

/** The store's reasons in a tier's words. */
const refusals: Readonly<Record<Exclude<NotStoredReason, 'exists'>, PutRefusal>> = {
  'full': 'full', 'no-space': 'failed', 'busy': 'busy', 'too-large': 'failed', 'failed': 'failed', 'closed': 'failed',
};

const stored: TierPut = { isStored: true };

class DiskTier implements Tier {
  readonly name: string;
  readonly isLasting = true;
  readonly takesOnlyWholeBlocks = false;
  readonly capacityBytes: number;
  readonly tenantBytes: number | undefined;
  readonly admitAfter: number;
  readonly keeps: 'adaptive' | 'recent';
  readonly chunkBytes: number;
  readonly #options: ReadOptions;
  /** Of every block there is: the store has them in its headers, which a read does not need then. */
  readonly #sums = new Map<string, Uint32Array>();
  #store: DiskStore | undefined;
  #opening: Promise<DiskStore> | undefined;
  #stripeTokenBytes: readonly number[] = [];
  /** Of the payload that was read last. */
  #packed: { readonly bytes: number; readonly stripes: PackedStripes } | undefined;
  #collecting: Promise<GcResult> | undefined;

  constructor(options: ReadOptions) {
    this.name = options.name;
    this.tenantBytes = options.tenantBytes;
    this.capacityBytes = Math.floor(options.bytes * usableShare);
    this.keeps = options.keeps;
    this.admitAfter = options.admit === 'twice' ? 2 : 1;
    this.chunkBytes = options.chunkBytes;
    this.#options = options;
  }

  sizeOf(bytes: number): number {
    return bytes + headerBytes;
  }

  async open({ namespace, stripeTokenBytes, blockTokens, found }: TierContext): Promise<void> {
    if (this.#opening !== undefined) throw tierInUse('diskTier');
    const { directory, bytes, durability, threads, direct, chunkBytes } = this.#options;
    this.#stripeTokenBytes = stripeTokenBytes;
    const blockBytes = this.sizeOf(blockTokens * stripeTokenBytes.reduce((sum, tokenBytes) => sum + tokenBytes, 0));
    this.#opening = DiskStore.open({
      directory, bytes, durability, threads, direct, chunkBytes, segmentBytes: segmentBytesOf(bytes, blockBytes), namespace: Buffer.from(namespace, 'hex'),
    });
    const store = await this.#opening;
    for await (const { key, parent, position, tokens, extra, level, stripes } of store.records()) {
      const read = readExtra(extra, stripeTokenBytes.length);
      if (read === undefined) continue; // not a block of ours
      const { sums, notes } = read;
      this.#sums.set(hex(key), sums);
      const bytes = stripes.reduce((sum, stripe) => sum + stripe.bytes, 0);
      found({ key: hex(key), parent: hex(parent), position, tokens, notes, sums, bytes, level });
    }
    this.#store = store;
  }

  async put({ key, parent, position, tokens, notes, sums, level }: BlockRecord, payload: Uint8Array): Promise<TierPut> {
    const store = this.#store;
    if (store === undefined) return { isStored: false, reason: 'failed' };
    const record = {
      key: bytesOf(key), parent: bytesOf(parent), position, tokens, extra: writeExtra(sums, notes), level,
      stripes: this.#stripesOf(payload).map((source, id) => ({ id, source })),
    };
    let result = await store.put(record);
    if (!result.stored && result.reason === 'full' && await this.#collect(store)) result = await store.put(record);
    if (!result.stored && result.reason !== 'exists') return { isStored: false, reason: refusals[result.reason] };
    if (!result.stored) this.setLevel(key, level ?? 0); // it was there, with a level of its own
    this.#sums.set(key, sums.slice());
    return stored;
  }

  async get(key: string, payload: Uint8Array): Promise<TierGet> {
    const store = this.#store;
    const sums = this.#sums.get(key);
    if (store === undefined || sums === undefined) return { isFound: false, reason: 'absent' };
    const reason = await store.getPacked(bytesOf(key), this.#packedOf(payload), payload);
    if (reason === undefined) return { isFound: true, sums: sums.slice() };
    return { isFound: false, reason: missOf(reason) };
  }

  async getTokens(key: string, parts: readonly TierTokens[], into: Uint8Array): Promise<TierTokensGet> {
    const store = this.#store;
    if (store === undefined || !this.#sums.has(key)) return { isFound: false, reason: 'absent', readBytes: 0, chunks: 0 };
    const counts = Float64Array.from(parts, ({ tokens }) => tokens.length);
    const tokens = new Int32Array(counts.reduce((sum, count) => sum + count, 0));
    let end = 0;
    for (const part of parts) {
      tokens.set(part.tokens, end);
      end += part.tokens.length;
    }
    const reads = { stripes: Float64Array.from(parts, ({ stripe }) => stripe), counts, tokens };
    const { reason, readBytes, chunks } = await store.getTokens(bytesOf(key), reads, into);
    return reason === undefined ? { isFound: true, readBytes, chunks } : { isFound: false, reason: missOf(reason), readBytes, chunks };
  }

  async reorder(key: string, storedToLogical: Int32Array): Promise<TierPut> {
    const store = this.#store;
    if (store === undefined || !this.#sums.has(key)) return { isStored: false, reason: 'failed' };
    const again = (): Promise<ReorderResult> => store.reorder(bytesOf(key), storedToLogical);
    let result = await again();
    if (!result.stored && result.reason === 'full' && await this.#collect(store)) result = await again();
    return result.stored ? stored : { isStored: false, reason: result.reason === 'full' ? 'full' : 'failed' };
  }

  setLevel(key: string, level: number): void {
    this.#store?.setLevel(bytesOf(key), level);
  }

  async remove(keys: readonly string[]): Promise<TierRemoval> {
    for (const key of keys) this.#sums.delete(key);
    if (this.#store === undefined || keys.length === 0) return { isRemoved: true };
    const { isRecorded } = await this.#store.remove(keys.map(bytesOf));
    return { isRemoved: isRecorded };
  }

  statistics(): TierStatistics {
    const stats = this.#store?.stats();
    if (stats === undefined) return { blocks: 0, bytes: 0 };
    const { records, liveBytes, lastError = '', ...more } = stats;
    return { blocks: records, bytes: liveBytes, lastError, ...more };
  }

  async close(): Promise<void> {
    const store = await this.#opening?.catch(() => undefined);
    this.#store = undefined;
    this.#sums.clear();
    await store?.close();
  }

  /** Gives room back; whether there may be some. One at a time. */
  async #collect(store: DiskStore): Promise<boolean> {
    this.#collecting ??= store.gc().finally(() => {
      this.#collecting = undefined;
    });
    const { freedBytes } = await this.#collecting;
    return freedBytes > 0;
  }

  /** How the stripes of a payload lie in it. */
  #packedOf(payload: Uint8Array): PackedStripes {
    if (this.#packed?.bytes === payload.length) return this.#packed.stripes;
    const tokens = payload.length / this.#stripeTokenBytes.reduce((sum, bytes) => sum + bytes, 0);
    const stripes = new PackedStripes(this.#stripeTokenBytes.map((tokenBytes) => tokens * tokenBytes));
    this.#packed = { bytes: payload.length, stripes };
    return stripes;
  }

  /** The parts of a payload, one for each tensor. */
  #stripesOf(payload: Uint8Array): Uint8Array[] {
    const tokens = payload.length / this.#stripeTokenBytes.reduce((sum, bytes) => sum + bytes, 0);
    let start = 0;
    return this.#stripeTokenBytes.map((tokenBytes) => {
      const stripe = payload.subarray(start, start + tokens * tokenBytes);
      start += tokens * tokenBytes;
      return stripe;
    });
  }
}

function missOf(reason: Exclude<ReadState, 'good'>): GetMiss {
  return reason === 'absent' || reason === 'corrupt' ? reason : 'failed';
}

// The extra bytes of a record: how many sums, the sums, the cache's notes. Least significant byte first.

function writeExtra(sums: Uint32Array, notes: Uint8Array): Uint8Array {
  const extra = Buffer.alloc(4 + 4 * sums.length + notes.length);
  extra.writeUInt32LE(sums.length, 0);
  sums.forEach((sum, index) => extra.writeUInt32LE(sum, 4 + 4 * index));
  extra.set(notes, 4 + 4 * sums.length);
  return extra;
}

/** Undefined unless it has so many sums. */
function readExtra(extra: Uint8Array, count: number): { sums: Uint32Array; notes: Uint8Array } | undefined {
  const bytes = Buffer.from(extra.buffer, extra.byteOffset, extra.byteLength);
  if (bytes.length < 4 + 4 * count || bytes.readUInt32LE(0) !== count) return undefined;
  return { sums: Uint32Array.from({ length: count }, (_, index) => bytes.readUInt32LE(4 + 4 * index)), notes: bytes.subarray(4 + 4 * count) };
}

function hex(key: Uint8Array): string {
  return Buffer.from(key.buffer, key.byteOffset, key.byteLength).toString('hex');
}

function bytesOf(key: string): Uint8Array {
  return Buffer.from(key, 'hex');
}
