// diskTier: blocks in a disk store, a file each; what restarts and crashes leave is found again. The cache chooses what
// goes.

import {
  boolean, integer, oneOf, optional, type OptionsOf, readOptions, string, withDefault,
} from '../base/options.js';
import { usedHeaderBytes, wholePages } from '../store/block-header.js';
import { chunkBytesField, durabilities, type Durability, maxChunkBytes } from '../store/disk-store-options.js';
import { DiskStore, nameBytes } from '../store/disk-store.js';
import type { NotStoredReason, ReadMiss } from '../store/store-block.js';
import {
  type BlockRecord, type GetMiss, type PutRefusal, type Tier, type TierContext, type TierGet, tierInUse, type TierPut,
  type TierRemoval, type TierStatistics, type TierTokens, type TierTokensGet,
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

/** Share of `bytes` that blocks and their headers may have: the rest is for the folder and a block that is reordered. */
const usableShare = 0.97;
/** Of a block, for which room is reckoned. */
const notesBytes = 1024;

type ReadOptions = OptionsOf<typeof spec>;

/** The store's reasons in a tier's words. A file system without room has some once a block is gone. */
const refusals: Readonly<Record<Exclude<NotStoredReason, 'exists'>, PutRefusal>> = {
  'full': 'full', 'no-space': 'full', 'busy': 'busy', 'too-large': 'failed', 'failed': 'failed', 'closed': 'failed',
};

const stored: TierPut = { isStored: true };

class DiskTier implements Tier {
  readonly name: string;
  readonly isLasting = true;
  readonly takesOnlyWholeBlocks = false;
  readonly capacityBytes: number;
  readonly tenantBytes: number | undefined;
  readonly admitAfter: number;
  readonly chunkBytes: number;
  readonly #options: ReadOptions;
  #store: DiskStore | undefined;
  #opening: Promise<DiskStore> | undefined;
  #stripeTokenBytes: readonly number[] = [];

  constructor(options: ReadOptions) {
    this.name = options.name;
    this.tenantBytes = options.tenantBytes;
    this.capacityBytes = Math.floor(options.bytes * usableShare);
    this.admitAfter = options.admit === 'twice' ? 2 : 1;
    this.chunkBytes = options.chunkBytes;
    this.#options = options;
  }

  sizeOf(bytes: number): number {
    const rowBytes = this.#stripeTokenBytes;
    const tokens = Math.ceil(bytes / Math.max(1, rowBytes.reduce((sum, tokenBytes) => sum + tokenBytes, 0)));
    const used = usedHeaderBytes({ tokens, notesBytes, rowBytes, chunkBytes: this.chunkBytes });
    return wholePages(used + 4 * tokens) + wholePages(bytes) + nameBytes; // once it is reordered
  }

  async open({ namespace, stripeTokenBytes, found, lost }: TierContext): Promise<void> {
    if (this.#opening !== undefined) throw tierInUse('diskTier');
    const { directory, bytes, durability, threads, direct, chunkBytes } = this.#options;
    this.#stripeTokenBytes = stripeTokenBytes;
    const isOurs = (rowBytes: Uint32Array): boolean =>
      rowBytes.length === stripeTokenBytes.length && rowBytes.every((row, stripe) => row === stripeTokenBytes[stripe]);
    this.#opening = DiskStore.open({
      directory, bytes, durability, threads, direct, chunkBytes, namespace: Buffer.from(namespace, 'hex'),
    }, {
      found: ({ key, parent, position, tokens, notes, sums, bytes: blockBytes, level, rowBytes }) => {
        if (isOurs(rowBytes)) found({ key, parent, position, tokens, notes, sums, bytes: blockBytes, level });
      },
      lost,
    });
    this.#store = await this.#opening;
  }

  async put(block: BlockRecord, payload: Uint8Array): Promise<TierPut> {
    const store = this.#store;
    if (store === undefined) return { isStored: false, reason: 'failed' };
    const result = await store.put(block, this.#stripeTokenBytes, payload);
    if (result.stored) return stored;
    if (result.reason !== 'exists') return { isStored: false, reason: refusals[result.reason] };
    store.setLevel(block.key, block.level ?? 0); // it was there, with a level of its own
    return stored;
  }

  async get(key: string, payload: Uint8Array): Promise<TierGet> {
    const got = await this.#store?.get(key, payload);
    if (got?.isFound === true) return got;
    return { isFound: false, reason: got === undefined ? 'absent' : missOf(got.reason) };
  }

  async getTokens(key: string, parts: readonly TierTokens[], into: Uint8Array): Promise<TierTokensGet> {
    const store = this.#store;
    if (store === undefined) return { isFound: false, reason: 'absent', readBytes: 0, chunks: 0 };
    const counts = Float64Array.from(parts, ({ tokens }) => tokens.length);
    const tokens = new Int32Array(counts.reduce((sum, count) => sum + count, 0));
    let end = 0;
    for (const part of parts) {
      tokens.set(part.tokens, end);
      end += part.tokens.length;
    }
    const reads = { stripes: Float64Array.from(parts, ({ stripe }) => stripe), counts, tokens };
    const { reason, readBytes, chunks } = await store.getTokens(key, reads, into);
    return reason === undefined ? { isFound: true, readBytes, chunks } : { isFound: false, reason: missOf(reason), readBytes, chunks };
  }

  async reorder(key: string, storedToLogical: Int32Array): Promise<TierPut> {
    const result = await this.#store?.reorder(key, storedToLogical);
    if (result?.stored === true) return stored;
    return { isStored: false, reason: result?.reason === 'full' || result?.reason === 'no-space' ? 'full' : 'failed' };
  }

  setLevel(key: string, level: number): void {
    this.#store?.setLevel(key, level);
  }

  async remove(keys: readonly string[]): Promise<TierRemoval> {
    if (this.#store === undefined) return { isRemoved: true };
    const { isRecorded } = await this.#store.remove(keys);
    return { isRemoved: isRecorded };
  }

  statistics(): TierStatistics {
    const stats = this.#store?.stats();
    if (stats === undefined) return { blocks: 0, bytes: 0 };
    return { ...stats, lastError: stats.lastError ?? '' };
  }

  async close(): Promise<void> {
    const store = await this.#opening?.catch(() => undefined);
    this.#store = undefined;
    await store?.close();
  }
}

function missOf(reason: ReadMiss): GetMiss {
  return reason === 'absent' || reason === 'corrupt' ? reason : 'failed';
}
