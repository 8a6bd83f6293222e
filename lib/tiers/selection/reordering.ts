// Reordering: has blocks of a cache's tier stored in the order in which requests read their tokens
// (`BlockReorderer` below): of the fastest tier that can, when it is called and now and then by itself,
// beside everything else. Readers get the same bytes, before, meanwhile and after.

import { EitherSignal } from '../../base/either-signal.js';
import { createError } from '../../base/errors.js';
import { abortSignal, integer, optional, readOptions, withDefault } from '../../base/options.js';
import type { OpenTier } from '../open-tier.js';
import type { StoredBlock } from '../stored-texts.js';
import { readPut } from '../tier-calls.js';
import type { TierSet } from '../tier-set.js';
import type { TierPut } from '../tier.js';
import { chunksHolding, type ImportanceMeans, orderByImportance, rowsOfOrder } from './importance-means.js';

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

// BlockReorderer: chooses which blocks of a tier are worth storing in another order, by what requests selected of them,
// and has it done, one block at a time. A block is written anew only where that saves a good part of the chunks that
// its important tokens take, so that importance which wanders does not wear out the disk. Runs when it is called; for
// one Node thread.

/** What it needs of a tier. */
export interface ReorderingTier {
  /** Whether it has the block: of another, what was noted is kept for when it does. */
  has(key: string): boolean;
  /** The row of each token, as far as it is known; undefined: they are in the order of the text. */
  rowsOf(key: string): Int32Array | undefined;
  /** As `Tier.reorder`. */
  reorder(key: string, storedToLogical: Int32Array): Promise<TierPut>;
}

/** Options of `BlockReorderer`. */
export interface BlockReordererOptions {
  readonly tier: ReorderingTier;
  /** What requests noted of its blocks, by their keys. */
  readonly means: ImportanceMeans;
  /** Rows that a chunk holds: `chunkBytes` of the tier by the bytes of a token in a stripe. A fraction counts. */
  readonly chunkTokens: number;
  /**
   * Share of a block's tokens that requests select, above 0 … 1. Default: as requests have selected of the block, on
   * average.
   */
  readonly ratio?: number;
  /** Requests that must have noted a block first, 1 or more. Default 4. */
  readonly leastNotes?: number;
  /** Share of the chunks of its important tokens that must be saved, 0 … 1. Default 0.25. */
  readonly leastSaving?: number;
}

/** Blocks whose order is looked at in one turn of the event loop. */
const ratedAtATime = 32;

interface Candidate {
  readonly key: string;
  readonly order: Int32Array;
  /** Chunks that reads are spared, by how often the block was read. */
  readonly gain: number;
}

export class BlockReorderer {
  readonly #options: BlockReordererOptions & Required<Omit<BlockReordererOptions, 'ratio'>>;
  #isRunning = false;
  #reordered = 0;
  #refused = 0;

  constructor(options: BlockReordererOptions) {
    this.#options = { leastNotes: 4, leastSaving: 0.25, ...options };
  }

  /** Blocks that were reordered, and those that the tier refused. */
  get counts(): { readonly reordered: number; readonly refused: number } {
    return { reordered: this.#reordered, refused: this.#refused };
  }

  /**
   * Reorders the blocks that gain most, `mostBlocks` at most, one after the other. Resolves how many were; 0 at once
   * where a run is under way. Ends early once `signal` is aborted.
   */
  async run(mostBlocks: number, signal?: AbortSignal): Promise<number> {
    if (this.#isRunning) return 0;
    this.#isRunning = true;
    try {
      let done = 0;
      const candidates = await this.#candidates();
      for (const { key, order } of candidates.slice(0, mostBlocks)) {
        if (signal?.aborted === true) break;
        const { isStored } = await this.#options.tier.reorder(key, order);
        // it is gone, or there is no room: not to be tried at every turn
        if (!isStored) this.#options.means.forget(key);
        done += isStored ? 1 : 0;
        this.#refused += isStored ? 0 : 1;
      }
      this.#reordered += done;
      return done;
    } finally {
      this.#isRunning = false;
    }
  }

  /** The one that gains most first. What is noted may be much: others have this thread in between. */
  async #candidates(): Promise<Candidate[]> {
    const candidates: Candidate[] = [];
    for (const [number, key] of this.#options.means.keys().entries()) {
      if (number % ratedAtATime === ratedAtATime - 1) await new Promise<void>((resolve) => { setImmediate(resolve); });
      const candidate = this.#candidateOf(key);
      if (candidate !== undefined) candidates.push(candidate);
    }
    return candidates.toSorted((a, b) => b.gain - a.gain);
  }

  #candidateOf(key: string): Candidate | undefined {
    const { tier, means, chunkTokens, ratio, leastNotes, leastSaving } = this.#options;
    const notes = means.notesOf(key);
    if (notes < leastNotes || !tier.has(key)) return undefined;
    const order = orderByImportance(means.of(key)!);
    const selected = ratio === undefined ? Math.round(means.sumOf(key)!) : Math.ceil(order.length * ratio);
    const important = order.slice(0, Math.max(1, selected));
    const now = chunksHolding(important, tier.rowsOf(key), chunkTokens);
    const saved = now - Math.ceil(important.length / chunkTokens);
    return saved > 0 && saved >= leastSaving * now ? { key, order, gain: saved * notes } : undefined;
  }
}
