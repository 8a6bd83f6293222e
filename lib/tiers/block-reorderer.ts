// BlockReorderer: chooses which blocks of a tier are worth storing in another order, by what requests selected of them,
// and has it done, one block at a time. A block is written anew only where that saves a good part of the chunks that
// its important tokens take, so that importance which wanders does not wear out the disk. Runs when it is called; for
// one Node thread.

import { chunksHolding, orderByImportance, type ImportanceMeans } from './importance-means.js';
import type { TierPut } from './tier.js';

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
