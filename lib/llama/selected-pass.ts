// SelectedPass: a pass with sequences that hold selected tokens of their text. Layer by layer: what a sequence has not loaded yet is chosen by
// the queries of its new tokens, which are awaited, loaded and written; then all sequences attend to what each holds of the layer. The
// places of new tokens in their texts are those of exact sequences.

import { createError } from '../base/errors.js';
import type { Kernels, TokenSelection } from '../index.js';

import type { LlamaLayers, PassRows } from './layers.js';
import type { LlamaModel } from './model.js';
import type { PassBuffers } from './pass-buffers.js';
import type { LlamaPass } from './pass-reader.js';

export interface SelectedPassParts {
  readonly model: LlamaModel;
  readonly kernels: Kernels;
  readonly layers: LlamaLayers;
  readonly buffers: PassBuffers;
  /** Resolves when what was queued is done; rejects with KV_ABORTED once it was dropped. */
  readonly synchronize: (signal: AbortSignal) => Promise<void>;
}

/** A sequence whose selection is not loaded. */
interface Loading {
  readonly selection: TokenSelection;
  readonly slot: number;
  /** Its rows of the pass. */
  readonly firstRow: number;
  readonly rows: number;
}

export class SelectedPass {
  readonly #parts: SelectedPassParts;

  constructor(parts: SelectedPassParts) {
    this.#parts = parts;
  }

  /** hidden = what all layers make of the tokens; writes their K and V. What a selection could not load is missing, as it says itself. */
  async compute(pass: LlamaPass, rows: PassRows, signal: AbortSignal): Promise<void> {
    const { layers } = this.#parts;
    const { length, slots, positions, tokenCounts } = pass;
    const loading = loadingOf(pass);
    layers.begin(rows);
    for (let layer = 0; layer < layers.count; layer += 1) {
      layers.project(layer, rows);
      if (loading.length > 0) await this.#load(layer, loading, rows, signal);
      const lengths = positions.slice(0, length);
      for (let index = 0; index < length; index += 1) lengths[index]! -= pass.sequences?.[index]?.selection?.droppedTokens(layer) ?? 0;
      layers.attend(layer, rows, { slots, lengths, tokens: tokenCounts, count: length });
    }
  }

  async #load(layer: number, loading: readonly Loading[], { count }: PassRows, signal: AbortSignal): Promise<void> {
    const { model: { config: { queryHeads, headDim, kvHeads } }, kernels, buffers, synchronize } = this.#parts;
    const width = queryHeads * headDim;
    await synchronize(signal);
    const queries = buffers.readQueries(count * width);
    await Promise.all(loading.map(async ({ selection, slot, firstRow, rows }) => {
      if (selection.failure !== undefined) return;
      const own = queries.slice(firstRow * width, (firstRow + rows) * width);
      const selected = await selection.load(layer, { queries: own, queryHeads, signal }).catch(() => undefined); // it is its `failure`
      if (selected === undefined || selected.tokens === 0 || signal.aborted) return;
      const place = { slots: Int32Array.of(slot), lengths: Int32Array.of(selection.exactTokens), tokens: Int32Array.of(selected.tokens) };
      const elements = selected.tokens * kvHeads * headDim;
      kernels.append(layer, place, buffers.floatsOf(`keys of ${slot}`, selected.keys, elements), buffers.floatsOf(`values of ${slot}`, selected.values, elements));
    }));
    if (signal.aborted) throw createError('KV_ABORTED', { operation: 'computing a pass' }, { cause: signal.reason });
  }
}

function loadingOf({ length, slots, tokenCounts, sequences }: LlamaPass): Loading[] {
  const loading: Loading[] = [];
  let firstRow = 0;
  for (let index = 0; index < length; index += 1) {
    const selection = sequences?.[index]?.selection;
    if (selection?.isLoaded === false) loading.push({ selection, slot: slots[index]!, firstRow, rows: tokenCounts[index]! });
    firstRow += tokenCounts[index]!;
  }
  return loading;
}
