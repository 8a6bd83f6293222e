// LoadedSelection: which tokens of a stored text each layer of one sequence holds, and the rows of them that its engine
// writes. Layer by layer, while the first new tokens are computed: the engine hands over its queries, and gets the K
// and V that it is to write behind the tokens that the sequence has exactly. Keys were stored with their rotary
// positions, so packed tokens keep theirs. What does not depend on a layer's queries is read while the layers before it
// are computed (layer-reads.ts).

import { floatsOf } from '../../base/dtypes.js';
import { EitherSignal } from '../../base/either-signal.js';
import { createError, isKvError } from '../../base/errors.js';
import {
  abortSignal, checkInteger, type Field, integer, notConstructible, number, optional, readOptions,
} from '../../base/options.js';
import { describe } from '../../base/phrases.js';
import { floatsOf as viewOf, isFloat32Array, lengthOf } from '../../base/typed-arrays.js';
import type { LayerQueries, SelectedRows, SelectionCounts, TokenSelection } from '../../cache/sequence.js';
import type { ChoiceNotes } from './importance-means.js';
import { BlockRows, ended, LayerReads, type ReadRows, type SelectionTotals, type StoredLayer } from './layer-reads.js';
import type { ReadSelection } from './selected-text.js';
import { attentionScores } from './selectors.js';

export interface LoadedSelectionParts {
  readonly rules: ReadSelection;
  readonly rows: BlockRows;
  /** By the layer's number in the whole model. */
  readonly layers: ReadonlyMap<number, StoredLayer>;
  readonly totals: SelectionTotals;
  readonly notes: ChoiceNotes;
  /** The text [from, to) that is selected from. */
  readonly from: number;
  readonly to: number;
  /** Throws KV_SLOT_RELEASED or KV_CLOSED once the sequence is released. */
  readonly check: () => void;
  /**
   * Hears of a selector that throws or chooses what is no choice: the request is computed then, and no call reports it.
   */
  readonly report: (error: unknown) => void;
  /** Hears that the sequence was released. */
  readonly ended: () => void;
}

interface ReadQueries {
  readonly queries: Float32Array;
  readonly queryHeads: number;
  readonly scale: number;
  readonly signal: AbortSignal | undefined;
}

const anything: Field<unknown> = (value) => value;
const spec =
  { queries: anything, queryHeads: integer({ min: 1 }), scale: optional(number()), signal: optional(abortSignal) };

export class LoadedSelection implements TokenSelection {
  readonly exactTokens: number;
  readonly textTokens: number;
  readonly #parts: LoadedSelectionParts;
  /** By layer: tokens that it holds behind the exact ones. */
  readonly #held = new Map<number, number>();
  /** Layers that were asked for. */
  readonly #asked = new Set<number>();
  readonly #reads: LayerReads;
  #failure: Error | undefined;

  /** @internal Made by `KvCache.acquire`. */
  constructor(parts: LoadedSelectionParts) {
    if (!(parts?.rows instanceof BlockRows)) throw notConstructible('TokenSelection', 'cache.acquire');
    this.#parts = parts;
    this.exactTokens = parts.from;
    this.textTokens = parts.to;
    parts.totals.add({ sequences: 1 });
    this.#reads = new LayerReads(parts);
  }

  get isLoaded(): boolean {
    return this.#held.size === this.#parts.layers.size;
  }

  get failure(): Error | undefined {
    return this.#failure;
  }

  get counts(): SelectionCounts {
    return this.#parts.totals.copy();
  }

  droppedTokens(layer: number): number {
    this.#layer('TokenSelection.droppedTokens', layer);
    return this.textTokens - this.exactTokens - (this.#held.get(layer) ?? 0);
  }

  async load(layer: number, queries: LayerQueries): Promise<SelectedRows> {
    const owner = 'TokenSelection.load';
    const stored = this.#layer(owner, layer);
    const read = this.#readQueries(owner, stored, queries);
    this.#parts.check();
    if (this.#failure !== undefined) throw this.#failure;
    if (this.#asked.has(layer)) {
      throw createError('KV_SEQUENCE_LOSSY', { operation: `load layer ${layer} of it again` });
    }
    this.#asked.add(layer);
    try {
      const rows = await this.#load(layer, stored, read);
      this.#held.set(layer, rows.tokens);
      if (this.isLoaded) this.#parts.notes.finish();
      return rows;
    } catch (error) {
      this.#parts.check(); // released meanwhile: nothing was lost
      throw this.#fail(error);
    }
  }

  end(): void {
    this.#parts.ended();
    queueMicrotask(() => { this.#reads.stop(); });
  }

  async #load(layer: number, stored: StoredLayer, read: ReadQueries): Promise<SelectedRows> {
    const limits = AbortSignal.any([AbortSignal.timeout(this.#parts.rules.layerTimeoutMs), this.#reads.stopped]);
    const either = new EitherSignal(limits, read.signal);
    try {
      return await this.#loadUntil(either.signal, layer, stored, read);
    } finally {
      either.forget();
    }
  }

  async #loadUntil(
    signal: AbortSignal, layer: number, stored: StoredLayer, { queries, queryHeads, scale }: ReadQueries,
  ): Promise<SelectedRows> {
    const { totals, notes, from, to } = this.#parts;
    const { dim, heads: kvHeads, dtype } = stored.key;
    const tokens = to - from;
    const keys = await ended(signal, this.#reads.lookedAt(layer));
    const scores = keys === undefined ? [] : attentionScores(queries, floatsOf(keys.bytes, dtype), {
      rows: queries.length / queryHeads / dim, queryHeads, kvHeads, keyHeads: keys.heads, dim, tokens, scale,
    });
    const { chosen, keyBytes, valueBytes, isFallBack }: ReadRows =
      await ended(signal, this.#reads.rows(layer, scores, keys, signal));
    this.#parts.check();
    this.#reads.isOver(layer);
    if (isFallBack) totals.add({ fallBacks: 1 });
    else notes.add(chosen);
    totals.add({ layers: 1, tokens, selectedTokens: chosen.length });
    return { tokens: chosen.length, keys: floatsOf(keyBytes, dtype), values: floatsOf(valueBytes, stored.value.dtype) };
  }

  /** Nothing more is read of it. Returns why: what failed first. */
  #fail(error: unknown): Error {
    if (this.#failure === undefined) {
      this.#failure = failureOf(error);
      this.#parts.totals.add({ lostSequences: 1 });
      this.#reads.stop();
      if (!isKvError(error, 'KV_SELECTION_LOST')) this.#parts.report(this.#failure);
    }
    return this.#failure;
  }

  #layer(owner: string, layer: number): StoredLayer {
    const { layers } = this.#parts;
    const stored = layers.get(layer);
    if (stored === undefined) {
      const order = [...layers.keys()];
      checkInteger(owner, 'layer', layer, order[0], order.at(-1));
      throw createError('KV_INTERNAL', { problem: 'a layer is not stored', what: layer });
    }
    return stored;
  }

  #readQueries(owner: string, { key }: StoredLayer, options: LayerQueries): ReadQueries {
    const { queries, queryHeads, scale, signal } = readOptions(owner, options, spec);
    const width = queryHeads * key.dim;
    if (!isFloat32Array(queries) || queryHeads % key.heads !== 0 || lengthOf(queries) === 0
      || lengthOf(queries) % width !== 0) {
      throw createError('KV_INVALID_OPTION', {
        reason: 'type', owner, option: 'queries',
        expected:
          `a Float32Array of [token, ${queryHeads} query heads, ${key.dim}], and query heads a multiple of ${key.heads}`, received:
            queries,
      });
    }
    // its owner may write to it while keys are read
    const own = this.#reads.looks ? viewOf(queries, 0, lengthOf(queries)).slice() : queries;
    return { queries: own, queryHeads, scale: scale ?? 1 / Math.sqrt(key.dim), signal };
  }
}

/**
 * What a selector has thrown as an error: `throw undefined` would read as "no failure", and 0 as none in a condition.
 */
function failureOf(thrown: unknown): Error {
  if (typeof thrown === 'object' && thrown !== null) return thrown as Error;
  return createError('KV_INVALID_OPTION', {
    reason: 'type', owner: 'SelectionOptions', option: 'selector.select',
    expected: 'a function that throws nothing but errors', received: describe(thrown),
  });
}
