// Reordering: has blocks of a cache's tier stored in the order in which requests read their tokens
// (lib/tiers/block-reorderer.ts): of the fastest tier that can, when it is called and now and then by itself, beside
// everything else. Readers get the same bytes, before, meanwhile and after.

import { EitherSignal } from '../base/either-signal.js';
import { createError } from '../base/errors.js';
import { abortSignal, integer, optional, readOptions, withDefault } from '../base/options.js';
import { rowsOfOrder, type ImportanceMeans } from '../tiers/importance-means.js';
import { BlockReorderer } from '../tiers/block-reorderer.js';
import type { OpenTier } from '../tiers/open-tier.js';
import type { StoredBlock } from '../tiers/stored-texts.js';
import { readPut } from '../tiers/tier-answers.js';
import type { TierPut } from '../tiers/tier.js';
import type { TierSet } from '../tiers/tier-set.js';

/** Options of `prefixes.tiers.reorder`. */
export interface ReorderOptions {
  /** Blocks that are stored anew at most, each by one write of its bytes. Default 64. */
  readonly mostBlocks?: number | undefined;
  /** Ends it behind the block that is under way. Default: none. */
  readonly signal?: AbortSignal | undefined;
}

/** What reordering came to since the cache was opened. */
export interface ReorderingCounts {
  /** Blocks of which requests have said what they read. */
  readonly notedBlocks: number;
  /** Blocks that were stored anew. */
  readonly reorderedBlocks: number;
  /** Blocks that the tier did not store anew: they were gone, there was no room, or it failed. */
  readonly refusedBlocks: number;
}

/** Blocks that a run that begins by itself stores anew at most. */
const mostByItself = 16;

const spec = { mostBlocks: withDefault(integer({ min: 1 }), 64), signal: optional(abortSignal) };

export class Reordering {
  readonly #set: TierSet;
  readonly #means: ImportanceMeans;
  /** Bytes of a token in a tensor, the mean of all. */
  readonly #tokenBytes: number;
  /** Requests that selected between two runs; 0: none by itself. */
  readonly #after: number;
  readonly #report: (error: unknown) => void;
  readonly #ending = new AbortController();
  #reorderer: BlockReorderer | undefined;
  #running: Promise<number> | undefined;
  /** Requests that selected since a run began by itself. */
  #notes = 0;

  /**
   * @param after Requests that selected between two runs that begin by themselves; 0: none does. @param report Hears of
   * failures that no call reports.
   */
  constructor(
    set: TierSet, means: ImportanceMeans, tensorTokenBytes: readonly number[],
    { after, report }: { readonly after: number; readonly report: (error: unknown) => void },
  ) {
    this.#set = set;
    this.#means = means;
    this.#tokenBytes = tensorTokenBytes.reduce((sum, bytes) => sum + bytes, 0) / tensorTokenBytes.length;
    this.#after = after;
    this.#report = report;
  }

  get counts(): ReorderingCounts {
    const { reordered, refused } = this.#reorderer?.counts ?? { reordered: 0, refused: 0 };
    return { notedBlocks: this.#means.blocks, reorderedBlocks: reordered, refusedBlocks: refused };
  }

  /**
   * Stores the blocks anew of which reads will be spared most. Resolves how many were; 0 at once while another run is
   * under way. `ready`: until tiers are open. Rejects with KV_INVALID_OPTION, also where no tier can reorder, and with
   * KV_CLOSED.
   */
  async run(options: ReorderOptions | undefined, ready: Promise<void>): Promise<number> {
    const { mostBlocks, signal } = readOptions('CacheTiers.reorder', options, spec);
    await ready.catch(() => { /* other tiers may be open */ });
    if (this.#ending.signal.aborted) {
      throw createError('KV_CLOSED', { operation: 'reorder its blocks', owner: 'KvCache' });
    }
    if (this.#running !== undefined) return 0;
    this.#reorderer ??= this.#makeReorderer();
    if (this.#reorderer === undefined) {
      throw createError('KV_INVALID_OPTION', {
        reason: 'range', owner: 'CacheTiers.reorder', option: 'prefixCache.tiers',
        expected:
          'to have an open tier that can reorder blocks: `diskTier`, or one of your own with `reorder` and `chunkBytes`',
        received: this.#set.all.map(({ tier, state }) => `${tier.name} (${state})`).join(', '),
      });
    }
    const either = new EitherSignal(this.#ending.signal, signal);
    try {
      return await this.#begin(this.#reorderer, mostBlocks, either.signal);
    } finally {
      either.forget();
    }
  }

  /** A request has said what it read of blocks: now and then a run begins. */
  noted(): void {
    this.#notes += 1;
    if (this.#after === 0 || this.#notes < this.#after || this.#running !== undefined || this.#ending.signal.aborted) {
      return;
    }
    this.#notes = 0;
    this.#reorderer ??= this.#makeReorderer();
    if (this.#reorderer !== undefined) {
      this.#begin(this.#reorderer, mostByItself, this.#ending.signal).catch(this.#report);
    }
  }

  async #begin(reorderer: BlockReorderer, mostBlocks: number, signal: AbortSignal): Promise<number> {
    this.#running = reorderer.run(mostBlocks, signal);
    try {
      return await this.#running;
    } finally {
      this.#running = undefined;
    }
  }

  /** Resolves when nothing of it is under way; nothing begins any more. Undefined: nothing is. */
  stop(): Promise<unknown> | undefined {
    this.#ending.abort();
    return this.#running;
  }

  /** Forgets what requests have said. */
  clear(): void {
    this.#means.clear();
  }

  /** For the fastest tier that can reorder; undefined: none can. */
  #makeReorderer(): BlockReorderer | undefined {
    for (const open of this.#set.all) {
      const { chunkBytes, reorder } = open.tier;
      if (open.state !== 'open' || reorder === undefined || chunkBytes === undefined || !(chunkBytes > 0)) continue;
      const blockOf = (key: string): StoredBlock | undefined => {
        const block = this.#set.texts.find(key);
        return block !== undefined && open.has(block) ? block : undefined;
      };
      return new BlockReorderer({
        tier: {
          has: (key) => blockOf(key) !== undefined,
          rowsOf: (key) => {
            const block = blockOf(key);
            return block && open.contents.rowsOf(block);
          },
          reorder: (key, order) => this.#reorder(open, blockOf(key), order),
        },
        means: this.#means, chunkTokens: chunkBytes / this.#tokenBytes,
      });
    }
    return undefined;
  }

  async #reorder(open: OpenTier, block: StoredBlock | undefined, order: Int32Array): Promise<TierPut> {
    if (block === undefined) return { isStored: false, reason: 'failed' };
    open.contents.beginReading(block); // it is not evicted meanwhile
    try {
      const put = readPut(await open.calls.track(open.tier.reorder!(block.key, order)), open.tier.name, 'reorder');
      if (put.isStored) open.contents.noteRows(block, rowsOfOrder(order));
      else if (put.error !== undefined) this.#report(put.error);
      return put;
    } catch (error) { // a tier of the user's that throws
      this.#report(error);
      return { isStored: false, reason: 'failed', error };
    } finally {
      open.contents.endReading(block);
    }
  }
}
