// Reordering: has blocks of a cache's tier stored in the order in which requests read their tokens: of the fastest tier
// that can, when it is called and now and then by itself, beside everything else, one block at a time. A block is
// written anew only where that saves a good part of the chunks that its important tokens take, so that importance which
// wanders does not wear out the disk. Readers get the same bytes, before, meanwhile and after.

import { EitherSignal } from '../../base/either-signal.js';
import { createError } from '../../base/errors.js';
import { abortSignal, integer, optional, readOptions, withDefault } from '../../base/options.js';
import type { OpenTier } from '../open-tier.js';
import type { StoredBlock } from '../stored-texts.js';
import { readPut } from '../tier-calls.js';
import type { TierSet } from '../tier-set.js';
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
/** Requests that must have noted a block first. */
const leastNotes = 4;
/** Share of the chunks of its important tokens that must be saved. */
const leastSaving = 0.25;
/** Blocks whose order is looked at in one turn of the event loop. */
const ratedAtATime = 32;

const spec = { mostBlocks: withDefault(integer({ min: 1 }), 64), signal: optional(abortSignal) };

interface Candidate {
  readonly block: StoredBlock;
  readonly order: Int32Array;
  /** Chunks that reads are spared, by how often the block was read. */
  readonly gain: number;
}

export class Reordering {
  readonly #set: Pick<TierSet, 'all' | 'texts'>;
  readonly #means: ImportanceMeans;
  /** Bytes of a token in a tensor, the mean of all. */
  readonly #tokenBytes: number;
  /** Requests that selected between two runs; 0: none by itself. */
  readonly #after: number;
  readonly #report: (error: unknown) => void;
  readonly #ending = new AbortController();
  #running: Promise<number> | undefined;
  /** Requests that selected since a run began by itself. */
  #notes = 0;
  #reordered = 0;
  #refused = 0;

  /**
   * @param after Requests that selected between two runs that begin by themselves; 0: none does. @param report Hears of
   * failures that no call reports.
   */
  constructor(
    set: Pick<TierSet, 'all' | 'texts'>, means: ImportanceMeans, tensorTokenBytes: readonly number[],
    { after, report }: { readonly after: number; readonly report: (error: unknown) => void },
  ) {
    this.#set = set;
    this.#means = means;
    this.#tokenBytes = tensorTokenBytes.reduce((sum, bytes) => sum + bytes, 0) / tensorTokenBytes.length;
    this.#after = after;
    this.#report = report;
  }

  get counts(): ReorderingCounts {
    return { notedBlocks: this.#means.blocks, reorderedBlocks: this.#reordered, refusedBlocks: this.#refused };
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
    const open = this.#fastest();
    if (open === undefined) {
      throw createError('KV_INVALID_OPTION', {
        reason: 'range', owner: 'CacheTiers.reorder', option: 'prefixCache.tiers',
        expected:
          'to have an open tier that can reorder blocks: `diskTier`, or one of your own with `reorder` and `chunkBytes`',
        received: this.#set.all.map(({ tier, state }) => `${tier.name} (${state})`).join(', '),
      });
    }
    const either = new EitherSignal(this.#ending.signal, signal);
    try {
      return await this.#begin(open, mostBlocks, either.signal);
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
    const open = this.#fastest();
    if (open !== undefined) this.#begin(open, mostByItself, this.#ending.signal).catch(this.#report);
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

  /** The fastest tier that can reorder; undefined: none can. */
  #fastest(): OpenTier | undefined {
    return this.#set.all.find(({ state, tier: { reorder, chunkBytes } }) =>
      state === 'open' && reorder !== undefined && chunkBytes !== undefined);
  }

  async #begin(open: OpenTier, mostBlocks: number, signal: AbortSignal): Promise<number> {
    this.#running = this.#reorderAll(open, mostBlocks, signal);
    try {
      return await this.#running;
    } finally {
      this.#running = undefined;
    }
  }

  async #reorderAll(open: OpenTier, mostBlocks: number, signal: AbortSignal): Promise<number> {
    let done = 0;
    for (const { block, order } of (await this.#candidates(open)).slice(0, mostBlocks)) {
      if (signal.aborted) break;
      if (await this.#reorder(open, block, order)) {
        done += 1;
        continue;
      }
      this.#means.forget(block.key); // it is gone, or there is no room: not to be tried at every turn
      this.#refused += 1;
    }
    this.#reordered += done;
    return done;
  }

  /** The one that gains most first. What is noted may be much: others have this thread in between. */
  async #candidates(open: OpenTier): Promise<Candidate[]> {
    const candidates: Candidate[] = [];
    for (const [number, key] of this.#means.keys().entries()) {
      if (number % ratedAtATime === ratedAtATime - 1) await new Promise<void>((resolve) => { setImmediate(resolve); });
      const candidate = this.#candidateOf(open, key);
      if (candidate !== undefined) candidates.push(candidate);
    }
    return candidates.toSorted((a, b) => b.gain - a.gain);
  }

  /** Of a block that the tier does not have, what was noted is kept for when it does. */
  #candidateOf(open: OpenTier, key: string): Candidate | undefined {
    const notes = this.#means.notesOf(key);
    const block = this.#set.texts.find(key);
    if (notes < leastNotes || block === undefined || !open.has(block)) return undefined;
    const chunkTokens = open.tier.chunkBytes! / this.#tokenBytes;
    const order = orderByImportance(this.#means.of(key)!);
    const important = order.slice(0, Math.max(1, Math.round(this.#means.sumOf(key)!)));
    const now = chunksHolding(important, open.contents.rowsOf(block), chunkTokens);
    const saved = now - Math.ceil(important.length / chunkTokens);
    return saved > 0 && saved >= leastSaving * now ? { block, order, gain: saved * notes } : undefined;
  }

  /** Whether the block is stored in the order. */
  async #reorder(open: OpenTier, block: StoredBlock, order: Int32Array): Promise<boolean> {
    if (!open.has(block)) return false;
    open.contents.beginReading(block); // it is not evicted meanwhile
    try {
      const put = readPut(await open.calls.track(open.tier.reorder!(block.key, order)), open.tier.name, 'reorder');
      if (put.isStored) open.contents.noteRows(block, rowsOfOrder(order));
      else if (put.error !== undefined) this.#report(put.error);
      return put.isStored;
    } catch (error) { // a tier of the user's that throws
      this.#report(error);
      return false;
    } finally {
      open.contents.endReading(block);
    }
  }
}
