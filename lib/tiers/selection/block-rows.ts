// BlockRows: rows of single tokens of a stored text, from the blocks that hold them: from the fastest tier that has
// each, checked there. Of a tier that reads blocks only whole, each is read once and kept until `forget`.

import { createError } from '../../base/errors.js';
import type { SelectionCounts } from '../../cache/sequence.js';
import { CheckedStripes } from '../checked-stripes.js';
import type { OpenTier } from '../open-tier.js';
import type { StoredBlock } from '../stored-texts.js';
import { readTokensGet } from '../tier-calls.js';
import type { TierSet } from '../tier-set.js';
import type { GetMiss, TierTokens } from '../tier.js';

/** Blocks that are read at the same time. */
const mostReads = 32;

/** Tokens of one block: which, and where their rows go. */
interface BlockPart {
  readonly block: StoredBlock;
  /** Tokens of the block. */
  readonly tokens: Int32Array;
  /** Of its first row among all rows of a stripe. */
  readonly firstRow: number;
}

export class BlockRows {
  readonly #tiers: TierSet;
  /** In the order of the text, without a hole. */
  readonly #blocks: readonly StoredBlock[];
  readonly #stripeTokenBytes: readonly number[];
  readonly #totals: SelectionTotals;
  /** Blocks that were read whole. */
  readonly #whole = new Map<StoredBlock, Promise<CheckedStripes>>();

  constructor(
    tiers: TierSet, blocks: readonly StoredBlock[], stripeTokenBytes: readonly number[], totals: SelectionTotals,
  ) {
    this.#tiers = tiers;
    this.#blocks = blocks;
    this.#stripeTokenBytes = stripeTokenBytes;
    this.#totals = totals;
  }

  /**
   * For each stripe the rows of these tokens of the text, ascending, one behind the other, in memory that cannot be
   * detached. Rejects with KV_SELECTION_LOST where no tier gives them.
   */
  async read(stripes: readonly number[], tokens: Int32Array, signal: AbortSignal): Promise<Uint8Array[]> {
    const rows = stripes.map((stripe) => memoryOf(tokens.length * this.#stripeTokenBytes[stripe]!));
    const parts = this.#partsOf(tokens);
    let next = 0;
    const readSome = async (): Promise<void> => {
      for (let part = parts[next++]; part !== undefined; part = parts[next++]) {
        await this.#readPart(part, stripes, rows, signal);
      }
    };
    const workers = Array.from({ length: Math.min(mostReads, parts.length) }, readSome);
    // none writes any more
    const failed = (await Promise.allSettled(workers)).find((worker) => worker.status === 'rejected');
    if (failed !== undefined) throw failed.reason;
    return rows;
  }

  /** Nothing more is read: gives back what was kept. */
  forget(): void {
    this.#whole.clear();
  }

  #partsOf(tokens: Int32Array): BlockPart[] {
    const parts: BlockPart[] = [];
    let at = 0;
    for (const block of this.#blocks) {
      const firstRow = at;
      while (at < tokens.length && tokens[at]! < block.to) at += 1;
      if (at > firstRow) {
        parts.push({ block, firstRow, tokens: tokens.slice(firstRow, at).map((token) => token - block.from) });
      }
    }
    return parts;
  }

  async #readPart(
    { block, tokens, firstRow }: BlockPart, stripes: readonly number[], rows: readonly Uint8Array[],
    signal: AbortSignal,
  ): Promise<void> {
    const bytes = stripes.map((stripe) => tokens.length * this.#stripeTokenBytes[stripe]!);
    const into = memoryOf(bytes.reduce((sum, each) => sum + each, 0));
    await this.#readBlock(block, stripes.map((stripe) => ({ stripe, tokens })), into, signal);
    let at = 0;
    for (const [index, stripe] of stripes.entries()) {
      rows[index]!.set(into.subarray(at, at += bytes[index]!), firstRow * this.#stripeTokenBytes[stripe]!);
    }
  }

  /** Of the fastest tier that has the block; of the next where that does not give it. */
  async #readBlock(
    block: StoredBlock, parts: readonly TierTokens[], into: Uint8Array, signal: AbortSignal,
  ): Promise<void> {
    let reason: GetMiss | 'no-memory' = 'absent';
    for (const open of this.#tiers.all) {
      if (!open.has(block)) continue;
      if (signal.aborted) throw lost('timeout');
      const missed = open.tier.getTokens === undefined ? await this.#readWhole(open, block, parts, into, signal)
        : await this.#readTokens(open, block, parts, into, signal);
      if (missed === undefined) return;
      reason = missed;
    }
    throw lost(signal.aborted ? 'timeout' : reason);
  }

  /** Returns why there are none; undefined: they are in `into`. */
  async #readTokens(
    open: OpenTier, block: StoredBlock, parts: readonly TierTokens[], into: Uint8Array, signal: AbortSignal,
  ): Promise<GetMiss | undefined> {
    open.contents.beginReading(block);
    try {
      const got = readTokensGet(await open.tier.getTokens!(block.key, parts, into, signal), open.tier.name);
      this.#totals.add({ readBytes: got.readBytes, chunks: got.chunks });
      if (got.isFound) return undefined;
      open.counts.missed(got.reason);
      if (got.reason === 'absent') open.lose(block.key);
      if (got.reason === 'corrupt') open.damaged(block);
      return got.reason;
    } catch { // a tier of the user's that throws
      open.counts.missed('failed');
      return 'failed';
    } finally {
      open.contents.endReading(block);
    }
  }

  async #readWhole(
    open: OpenTier, block: StoredBlock, parts: readonly TierTokens[], into: Uint8Array, signal: AbortSignal,
  ): Promise<GetMiss | undefined> {
    let reading = this.#whole.get(block);
    if (reading === undefined) {
      reading = this.#fetchWhole(block, signal);
      this.#whole.set(block, reading);
    }
    const got = (await reading).copyTokens(parts, into);
    if (got.isFound) return undefined;
    if (got.reason === 'corrupt') open.damaged(block);
    return got.reason;
  }

  async #fetchWhole(block: StoredBlock, signal: AbortSignal): Promise<CheckedStripes> {
    const fetched = await this.#tiers.fetch(block, signal);
    if ('reason' in fetched) throw lost(fetched.reason);
    try {
      const payload = memoryOf(fetched.payload.length);
      payload.set(fetched.payload);
      this.#totals.add({ readBytes: payload.length });
      return new CheckedStripes(payload, fetched.sums.slice(), this.#stripeTokenBytes);
    } finally {
      fetched.release();
    }
  }
}

function memoryOf(bytes: number): Uint8Array {
  return new Uint8Array(new SharedArrayBuffer(bytes));
}

function lost(reason: GetMiss | 'no-memory'): Error {
  return createError('KV_SELECTION_LOST', { reason });
}

// SelectionTotals: what selections came to, of one sequence or of all of a cache: for reports and metrics.

export class SelectionTotals implements SelectionCounts {
  sequences = 0;
  lostSequences = 0;
  layers = 0;
  fallBacks = 0;
  tokens = 0;
  selectedTokens = 0;
  readBytes = 0;
  chunks = 0;
  readonly #whole: SelectionTotals | undefined;

  /** @param whole What is counted here is counted there too. */
  constructor(whole?: SelectionTotals) {
    this.#whole = whole;
  }

  add(counts: Partial<SelectionCounts>): void {
    for (const [name, count] of Object.entries(counts) as [keyof SelectionCounts, number][]) this[name] += count;
    this.#whole?.add(counts);
  }

  /** As they are now. */
  copy(): SelectionCounts {
    return { ...this };
  }
}
