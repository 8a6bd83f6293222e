// LayerReads: what is read of a stored text for one sequence's selection, layer by layer. What depends on no queries is
// read ahead, so that a tier works while layers are computed: what the selector looks at (probe keys, all keys) of the
// next two layers, and, where tokens are chosen without looking or all are loaded, K and V of the next layer.

import { types } from 'node:util';

import type { TensorSpec } from '../../base/dtypes.js';
import { createError } from '../../base/errors.js';
import type { SelectionCounts } from '../../cache/sequence.js';
import { CheckedStripes } from '../checked-stripes.js';
import type { Missed, OpenTier } from '../open-tier.js';
import type { StoredBlock } from '../stored-texts.js';
import type { TierSet } from '../tier-set.js';
import type { TierTokens } from '../tier.js';
import type { Probe } from './probes.js';
import type { ReadSelection } from './selected-text.js';
import { countAt } from './selectors.js';

/** One layer's stripes of a stored block, and what they are of. */
export interface StoredLayer {
  readonly key: TensorSpec;
  readonly value: TensorSpec;
  readonly keyStripe: number;
  readonly valueStripe: number;
  readonly probe: Probe | undefined;
  readonly probeStripe: number;
}

/** Keys that a selector looks at. */
export interface LookedAt {
  readonly bytes: Uint8Array;
  readonly heads: number;
}

/** Rows of the tokens that a layer was given. */
export interface ReadRows {
  readonly chosen: Int32Array;
  /** Its selector chose none: these are all. */
  readonly isFallBack: boolean;
  readonly keyBytes: Uint8Array;
  readonly valueBytes: Uint8Array;
}

export interface LayerReadsParts {
  readonly rules: ReadSelection;
  readonly rows: BlockRows;
  /** By the layer's number in the whole model, in order. */
  readonly layers: ReadonlyMap<number, StoredLayer>;
  /** The text [from, to) that is selected from. */
  readonly from: number;
  readonly to: number;
}

/** Layers of which the keys that are looked at are read ahead. */
const keysAhead = 2;

export class LayerReads {
  readonly #parts: LayerReadsParts;
  readonly #order: readonly number[];
  /** How many tokens a layer gets. */
  readonly #count: number;
  /** By layer, what was begun and not yet taken. */
  readonly #keys = new Map<number, Promise<LookedAt>>();
  readonly #rows = new Map<number, Promise<ReadRows>>();
  readonly #stopping = new AbortController();

  /** Begins with the first layers. */
  constructor(parts: LayerReadsParts) {
    this.#parts = parts;
    this.#order = [...parts.layers.keys()];
    this.#count = countAt(parts.rules.ratio, parts.to - parts.from);
    this.#readAhead(0);
  }

  /** Aborted by `stop`. */
  get stopped(): AbortSignal {
    return this.#stopping.signal;
  }

  /** Whether keys are needed to choose, and so are queries. */
  get looks(): boolean {
    const { rules: { selector }, from, to } = this.#parts;
    return selector.looksAt !== 'nothing' && this.#count < to - from;
  }

  /** What the selector looks at of a layer; undefined: nothing. Rejects with KV_SELECTION_LOST. */
  lookedAt(layer: number): Promise<LookedAt> | undefined {
    return this.looks ? this.#begin(this.#keys, layer, () => this.#look(layer)) : undefined;
  }

  /** Has a layer's tokens chosen, and reads them. Rejects with KV_SELECTION_LOST, and with what a selector throws. */
  rows(
    layer: number, scores: readonly Float32Array[], keys: LookedAt | undefined, signal: AbortSignal,
  ): Promise<ReadRows> {
    return this.looks ? this.#choose(layer, scores, keys, signal)
      : this.#begin(this.#rows, layer, () => this.#chooseAhead(layer));
  }

  /** A layer has its rows, and is computed now: begins to read for the next ones. */
  isOver(layer: number): void {
    this.#keys.delete(layer);
    this.#rows.delete(layer);
    const next = this.#order.indexOf(layer) + 1;
    if (next < this.#order.length) this.#readAhead(next);
    else this.#parts.rows.forget();
  }

  /** Nothing is read any more. */
  stop(): void {
    this.#stopping.abort();
    this.#keys.clear();
    this.#rows.clear();
    this.#parts.rows.forget();
  }

  #readAhead(index: number): void {
    for (const layer of this.#order.slice(index, index + (this.looks ? keysAhead : 1))) {
      if (this.looks) void this.lookedAt(layer);
      else void this.#begin(this.#rows, layer, () => this.#chooseAhead(layer));
    }
  }

  #begin<T>(begun: Map<number, Promise<T>>, layer: number, read: () => Promise<T>): Promise<T> {
    let reading = begun.get(layer);
    if (reading === undefined) {
      reading = read();
      reading.catch(() => { /* the layer that awaits it hears of it */ });
      begun.set(layer, reading);
    }
    return reading;
  }

  /** For reads that begin before a layer is asked for. */
  #limit(): AbortSignal {
    return AbortSignal.any([AbortSignal.timeout(this.#parts.rules.layerTimeoutMs), this.#stopping.signal]);
  }

  async #look(layer: number): Promise<LookedAt> {
    const { rules: { selector }, layers, rows, from, to } = this.#parts;
    const { key, keyStripe, probe, probeStripe } = layers.get(layer)!;
    const all = Int32Array.from({ length: to - from }, (_, token) => from + token);
    const [stripe, heads] = selector.looksAt === 'keys' ? [keyStripe, key.heads] : [probeStripe, probe!.heads];
    const [bytes] = await rows.read([stripe], all, this.#limit());
    return { bytes: bytes!, heads };
  }

  async #chooseAhead(layer: number): Promise<ReadRows> {
    await Promise.resolve(); // a selector is never called in the middle of `acquire`
    return this.#choose(layer, [], undefined, this.#limit());
  }

  async #choose(
    layer: number, scores: readonly Float32Array[], keys: LookedAt | undefined, signal: AbortSignal,
  ): Promise<ReadRows> {
    const { rules: { selector }, layers, rows, from, to } = this.#parts;
    const stored = layers.get(layer)!;
    const tokens = to - from;
    const choice = this.#count < tokens
      ? checkChoice(selector.select({ layer, tokens, count: this.#count, scores }), tokens)
      : undefined;
    const chosen = choice ?? Int32Array.from({ length: tokens }, (_, token) => token);
    const hasKeys = keys !== undefined && selector.looksAt === 'keys';
    const stripes = hasKeys ? [stored.valueStripe] : [stored.keyStripe, stored.valueStripe];
    const read = await rows.read(stripes, chosen.map((token) => from + token), signal);
    return {
      chosen, isFallBack: choice === undefined && this.#count < tokens, valueBytes: read.at(-1)!,
      keyBytes: hasKeys ? rowsOf(keys.bytes, chosen, stored.key.tokenBytes) : read[0]!,
    };
  }
}

/**
 * A copy of what a selector of the user's returned, which may use its array again. A tier that is asked for tokens that
 * it cannot have would be believed to have lost the block.
 */
function checkChoice(chosen: unknown, tokens: number): Int32Array | undefined {
  if (chosen === undefined) return undefined;
  if (types.isInt32Array(chosen)
    && chosen.every((token, at) => token < tokens && token > (at === 0 ? -1 : chosen[at - 1]!))) return chosen.slice();
  if (types.isPromise(chosen)) {
    chosen.catch(() => { /* an async selector that fails ends no process; that it is async is reported */ });
  }
  throw createError('KV_INVALID_OPTION', {
    reason: 'range', owner: 'SelectionOptions', option: 'selector.select', received: chosen, isReturned: true,
    expected: `a function that returns an Int32Array of tokens below ${tokens}, ascending, none twice, or undefined`,
  });
}

function rowsOf(bytes: Uint8Array, tokens: Int32Array, tokenBytes: number): Uint8Array {
  const rows = new Uint8Array(tokens.length * tokenBytes);
  for (const [row, token] of tokens.entries()) {
    rows.set(bytes.subarray(token * tokenBytes, (token + 1) * tokenBytes), row * tokenBytes);
  }
  return rows;
}

/** What the promise gives; rejects with KV_SELECTION_LOST once the signal is aborted, whatever the promise does. */
export async function ended<T>(signal: AbortSignal, promise: Promise<T>): Promise<T>;
export async function ended<T>(signal: AbortSignal, promise: Promise<T> | undefined): Promise<T | undefined>;
export async function ended<T>(signal: AbortSignal, promise: Promise<T> | undefined): Promise<T | undefined> {
  if (promise === undefined) return undefined;
  const lost = (): Error => createError('KV_SELECTION_LOST', { reason: 'timeout' });
  if (signal.aborted) { // also where it is there already
    promise.catch(() => { /* the caller hears of the lost selection instead */ });
    throw lost();
  }
  let stop = (): void => {};
  const aborted = new Promise<never>((_, reject) => {
    stop = () => { reject(lost()); };
    signal.addEventListener('abort', stop, { once: true });
  });
  try {
    return await Promise.race([promise, aborted]);
  } finally {
    signal.removeEventListener('abort', stop);
  }
}

// BlockRows: rows of single tokens of a stored text, from the blocks that hold them: from the fastest tier that has
// each, checked there. Of a tier that reads blocks only whole, each is read once and kept until `forget`.

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
  /** Blocks that were read whole, each from the tier that it is in. */
  readonly #whole = new Map<StoredBlock, Promise<CheckedStripes | Missed>>();

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
    let reason: Missed['reason'] = 'absent';
    for (const open of this.#tiers.all) {
      if (!open.has(block)) continue;
      if (signal.aborted) throw lost('timeout');
      if (open.tier.getTokens === undefined) {
        const missed = await this.#readWhole(open, block, parts, into, signal);
        if (missed === undefined) return;
        reason = missed;
        continue;
      }
      const got = await open.getTokens(block, parts, into, signal);
      this.#totals.add({ readBytes: got.readBytes, chunks: got.chunks });
      if (got.isFound) return;
      reason = got.reason;
    }
    throw lost(signal.aborted ? 'timeout' : reason);
  }

  /** Returns why there are none; undefined: they are in `into`. */
  async #readWhole(
    open: OpenTier, block: StoredBlock, parts: readonly TierTokens[], into: Uint8Array, signal: AbortSignal,
  ): Promise<Missed['reason'] | undefined> {
    const reading = this.#whole.get(block) ?? this.#fetchWhole(open, block, signal);
    this.#whole.set(block, reading);
    const read = await reading;
    const missed = 'reason' in read ? read : read.copyTokens(parts, into);
    if (!('reason' in missed)) return undefined;
    if (this.#whole.get(block) === reading) { // the first that sees it
      this.#whole.delete(block);
      if (missed !== read && missed.reason === 'corrupt') open.damaged(block);
    }
    return missed.reason;
  }

  async #fetchWhole(open: OpenTier, block: StoredBlock, signal: AbortSignal): Promise<CheckedStripes | Missed> {
    const fetched = await this.#tiers.fetchFrom(open, block, signal);
    if ('reason' in fetched) return fetched;
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

function lost(reason: Missed['reason']): Error {
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
