// TokenSelection: which tokens of a stored text each layer of one sequence holds, and the rows of them that its engine writes. Layer by layer,
// while the first new tokens are computed: the engine hands over its queries, and gets the K and V that it is to write behind the tokens
// that the sequence has exactly. Keys were stored with their rotary positions, so packed tokens keep theirs.

import { createError } from '../base/errors.js';
import { checkInteger, notConstructible } from '../base/options.js';
import { isFloat32Array, lengthOf } from '../base/typed-arrays.js';
import type { TensorSpec } from '../layout/model-shape.js';
import { attentionScores } from './attention-scores.js';
import { BlockRows } from './block-rows.js';
import { floatsOf } from './floats.js';
import type { ChoiceNotes } from './choice-notes.js';
import type { Probe } from './probes.js';
import type { ReadSelection } from './selection-options.js';
import type { SelectionCounts, SelectionTotals } from './selection-totals.js';
import { countAt } from './similarity.js';

/** What an engine knows of its new tokens when it asks for a layer. */
export interface LayerQueries {
  /** Rotated queries of the sequence's new tokens, [token, query head, dim]. */
  readonly queries: Float32Array;
  /** Query heads of the layer, a multiple of its KV heads. */
  readonly queryHeads: number;
  /** Factor of the products of queries and keys. Default 1 / √dim. */
  readonly scale?: number | undefined;
  /** Ends the loading: it rejects with KV_SELECTION_LOST. */
  readonly signal?: AbortSignal | undefined;
}

/** What a layer of a sequence is to hold, in the order of the text. */
export interface SelectedRows {
  /** How many tokens. */
  readonly tokens: number;
  /** [token, KV head, dim], over shared memory. */
  readonly keys: Float32Array;
  /** [token, KV head, value dim], over shared memory. */
  readonly values: Float32Array;
}

/** One layer's stripes of a stored block, and what they are of. */
export interface StoredLayer {
  readonly key: TensorSpec;
  readonly value: TensorSpec;
  readonly keyStripe: number;
  readonly valueStripe: number;
  readonly probe: Probe | undefined;
  readonly probeStripe: number;
}

export interface TokenSelectionParts {
  readonly rules: ReadSelection;
  readonly rows: BlockRows;
  /** By the layer's number in the whole model. */
  readonly layers: ReadonlyMap<number, StoredLayer>;
  readonly totals: SelectionTotals;
  readonly notes: ChoiceNotes;
  /** The text [from, to) that is selected from. */
  readonly from: number;
  readonly to: number;
}

interface ReadQueries extends LayerQueries {
  readonly scale: number;
}

/** Keys that a selector looks at. */
interface LookedAt {
  readonly bytes: Uint8Array;
  readonly heads: number;
}

/** Which tokens each layer of a lossy sequence holds: `Sequence.selection`. */
export class TokenSelection {
  /** Tokens of the text's start that the sequence has exactly, in every layer. */
  readonly exactTokens: number;
  /** Tokens of the text up to where it was selected from: what the sequence's length was when it was acquired. */
  readonly textTokens: number;
  readonly #parts: TokenSelectionParts;
  /** By layer: tokens that it holds behind the exact ones. */
  readonly #held = new Map<number, number>();
  readonly #looking = new Map<number, Promise<LookedAt>>();
  /** Layers in order. */
  readonly #order: readonly number[];
  #failure: Error | undefined;

  /** @internal Made by `KvCache.acquire`. */
  constructor(parts: TokenSelectionParts) {
    if (!(parts?.rows instanceof BlockRows)) throw notConstructible('TokenSelection', 'cache.acquire');
    this.#parts = parts;
    this.exactTokens = parts.from;
    this.textTokens = parts.to;
    this.#order = [...parts.layers.keys()];
    parts.totals.add({ sequences: 1 });
    this.#lookAhead(0);
  }

  /** Whether every layer was loaded. */
  get isLoaded(): boolean {
    return this.#held.size === this.#order.length;
  }

  /** Why a layer could not be loaded; undefined: none failed. What the sequence computed then is of no use: release it, and compute its text. */
  get failure(): Error | undefined {
    return this.#failure;
  }

  /** What it came to so far. */
  get counts(): SelectionCounts {
    return this.#parts.totals.copy();
  }

  /**
   * How many tokens of the text a layer does not hold: its new tokens lie so many places before their positions, and that many fewer are
   * attended to. All that were to be selected, until it was loaded. Throws KV_INVALID_OPTION.
   */
  droppedTokens(layer: number): number {
    this.#layer('TokenSelection.droppedTokens', layer);
    return this.textTokens - this.exactTokens - (this.#held.get(layer) ?? 0);
  }

  /**
   * Chooses and loads a layer's tokens; the engine writes them behind the first `exactTokens` tokens of its slot, and attends to no others. Once for
   * each layer, in order. Rejects with KV_SELECTION_LOST where tiers no longer give the text, for this layer and all after it, and for wrong
   * arguments.
   */
  async load(layer: number, queries: LayerQueries): Promise<SelectedRows> {
    const owner = 'TokenSelection.load';
    const stored = this.#layer(owner, layer);
    const read = this.#readQueries(owner, stored, queries);
    if (this.#held.has(layer)) throw createError('KV_SEQUENCE_LOSSY', { operation: `load layer ${layer} of it again` });
    if (this.#failure !== undefined) throw this.#failure;
    try {
      const rows = await this.#load(layer, stored, read);
      this.#held.set(layer, rows.tokens);
      if (this.isLoaded) this.#parts.notes.finish();
      return rows;
    } catch (error) {
      if (this.#failure === undefined) this.#parts.totals.add({ lostSequences: 1 });
      this.#failure ??= error as Error;
      throw this.#failure;
    } finally {
      this.#looking.delete(layer);
    }
  }

  async #load(layer: number, stored: StoredLayer, { queries, queryHeads, scale, signal: given }: ReadQueries): Promise<SelectedRows> {
    const { rules, rows, totals, notes, from, to } = this.#parts;
    const limit = AbortSignal.timeout(rules.layerTimeoutMs);
    const signal = given === undefined ? limit : AbortSignal.any([limit, given]);
    const tokens = to - from;
    const count = countAt(rules.ratio, tokens);
    let chosen: Int32Array | undefined;
    let keys: LookedAt | undefined;
    if (count < tokens) {
      const index = this.#order.indexOf(layer);
      this.#lookAhead(index);
      keys = await ended(signal, this.#looking.get(layer));
      this.#lookAhead(index + 1); // while this layer is computed
      const scores = keys === undefined ? [] : attentionScores(queries, floatsOf(keys.bytes, stored.key.dtype), {
        rows: queries.length / queryHeads / stored.key.dim, queryHeads, kvHeads: stored.key.heads, keyHeads: keys.heads, dim: stored.key.dim, tokens, scale,
      });
      chosen = this.#checkChoice(rules.selector.select({ layer, tokens, count, scores }), tokens);
      if (chosen === undefined) totals.add({ fallBacks: 1 });
      else notes.add(chosen);
    }
    chosen ??= Int32Array.from({ length: tokens }, (_, token) => token);
    totals.add({ layers: 1, tokens, selectedTokens: chosen.length });
    const places = chosen.map((token) => from + token);
    const hasKeys = keys !== undefined && rules.selector.looksAt === 'keys';
    const stripes = hasKeys ? [stored.valueStripe] : [stored.keyStripe, stored.valueStripe];
    const read = await ended(signal, rows.read(stripes, places, signal));
    const keyBytes = hasKeys ? rowsOf(keys!.bytes, chosen, stored.key.tokenBytes) : read[0]!;
    return { tokens: chosen.length, keys: floatsOf(keyBytes, stored.key.dtype), values: floatsOf(read.at(-1)!, stored.value.dtype) };
  }

  /** Begins to read what the selector looks at of a layer; nothing where it looks at nothing, and where all tokens are loaded anyway. */
  #lookAhead(index: number): void {
    const layer = this.#order[index];
    if (layer === undefined || this.#looking.has(layer) || this.#held.has(layer)) return;
    const { rules: { ratio, selector: { looksAt }, layerTimeoutMs }, layers, rows, from, to } = this.#parts;
    if (looksAt === 'nothing' || countAt(ratio, to - from) >= to - from) return;
    const { key, keyStripe, probe, probeStripe } = layers.get(layer)!;
    const all = Int32Array.from({ length: to - from }, (_, token) => from + token);
    const [stripe, heads] = looksAt === 'keys' ? [keyStripe, key.heads] : [probeStripe, probe!.heads];
    const looking = rows.read([stripe], all, AbortSignal.timeout(layerTimeoutMs)).then(([bytes]) => ({ bytes: bytes!, heads }));
    looking.catch(() => { /* who awaits it hears of it */ });
    this.#looking.set(layer, looking);
  }

  #layer(owner: string, layer: number): StoredLayer {
    const stored = this.#parts.layers.get(layer);
    if (stored === undefined) {
      checkInteger(owner, 'layer', layer, this.#order[0], this.#order.at(-1));
      throw createError('KV_INTERNAL', { problem: 'a layer is not stored', what: layer });
    }
    return stored;
  }

  #readQueries(owner: string, { key }: StoredLayer, options: LayerQueries): ReadQueries {
    const { queries, queryHeads, scale, signal } = options;
    checkInteger(owner, 'queryHeads', queryHeads, key.heads);
    const width = queryHeads * key.dim;
    if (!isFloat32Array(queries) || queryHeads % key.heads !== 0 || lengthOf(queries) === 0 || lengthOf(queries) % width !== 0) {
      throw createError('KV_INVALID_OPTION', {
        reason: 'type', owner, option: 'queries', expected: `a Float32Array of [token, ${queryHeads} query heads, ${key.dim}], and query heads a multiple of ${key.heads}`, received: queries,
      });
    }
    return { queries, queryHeads, scale: scale ?? 1 / Math.sqrt(key.dim), signal };
  }

  /** What a selector of the user's returned. */
  #checkChoice(chosen: Int32Array | undefined, tokens: number): Int32Array | undefined {
    if (chosen === undefined) return undefined;
    const isRight = chosen instanceof Int32Array && chosen.every((token, at) => token >= 0 && token < tokens && (at === 0 || token > chosen[at - 1]!));
    if (isRight) return chosen;
    throw createError('KV_INVALID_OPTION', {
      reason: 'range', owner: 'SelectionOptions', option: 'selector.select', received: chosen, isReturned: true,
      expected: 'a function that returns an Int32Array of tokens, ascending, none twice, or undefined',
    });
  }
}

function rowsOf(bytes: Uint8Array, tokens: Int32Array, tokenBytes: number): Uint8Array {
  const rows = new Uint8Array(tokens.length * tokenBytes);
  for (const [row, token] of tokens.entries()) rows.set(bytes.subarray(token * tokenBytes, (token + 1) * tokenBytes), row * tokenBytes);
  return rows;
}

/** What the promise gives; rejects with KV_SELECTION_LOST once the signal is aborted, whatever the promise does. */
async function ended<T>(signal: AbortSignal, promise: Promise<T>): Promise<T>;
async function ended<T>(signal: AbortSignal, promise: Promise<T> | undefined): Promise<T | undefined>;
async function ended<T>(signal: AbortSignal, promise: Promise<T> | undefined): Promise<T | undefined> {
  if (promise === undefined) return undefined;
  let stop = (): void => {};
  const aborted = new Promise<never>((_, reject) => {
    stop = () => { reject(createError('KV_SELECTION_LOST', { reason: 'timeout' })); };
    if (signal.aborted) stop();
    else signal.addEventListener('abort', stop, { once: true });
  });
  try {
    return await Promise.race([promise, aborted]);
  } finally {
    signal.removeEventListener('abort', stop);
  }
}
