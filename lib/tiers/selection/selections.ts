// Selections: sequences that are given part of a stored text (lib/importance). Begins a selection for a slot that
// `acquire` has leased: the slot then has memory for all of the text, in which each layer holds fewer tokens.

import { BlockRows, SelectionTotals } from './block-rows.js';
import type { StoredLayer } from './layer-reads.js';
import type { Probe } from './probes.js';
import type { SelectedText } from './selected-text.js';
import { LoadedSelection } from './loaded-selection.js';
import type { TensorSpec } from '../../base/dtypes.js';
import type { PrefixDomain } from '../../prefix/domain.js';
import type { Admitted } from '../../cache/admission.js';
import { Batch } from '../../cache/batch.js';
import type { ChoiceFollowers } from './choice-followers.js';
import { GivenFence } from '../../cache/slot-fences.js';
import type { RowSharing } from '../../cache/row-sharing.js';
import type { SelectableTexts } from './selectable-texts.js';
import type { SlotMemory } from '../../cache/slots.js';
import type { Steps } from '../../cache/steps.js';

export class Selections {
  /** Of all sequences so far. */
  readonly totals = new SelectionTotals();
  /** What may be selected from. */
  readonly texts: SelectableTexts;
  /** Hear what is chosen. */
  readonly followers: ChoiceFollowers;
  readonly #memory: SlotMemory;
  readonly #steps: Steps;
  readonly #sharing: RowSharing;
  readonly #stripeTokenBytes: readonly number[];
  /** By layer. */
  readonly #layers: ReadonlyMap<number, StoredLayer>;
  /** By slot, of sequences that are not released. */
  readonly #running = new Map<number, LoadedSelection>();

  /** @param probes What blocks have beside K and V. */
  constructor(
    memory: SlotMemory, steps: Steps, sharing: RowSharing, texts: SelectableTexts, followers: ChoiceFollowers,
    probes: readonly Probe[],
  ) {
    const { tensors } = memory.layout;
    this.#memory = memory;
    this.#steps = steps;
    this.#sharing = sharing;
    this.texts = texts;
    this.followers = followers;
    this.#stripeTokenBytes = [...tensors, ...probes].map(({ tokenBytes }) => tokenBytes);
    this.#layers = layersOf(tensors, probes);
  }

  /**
   * The slot's selection behind the tokens that it was found, but for those in a row that it shares and would have to
   * write to; undefined where it has them all, tiers no longer have what is between, or the namespace of its text has
   * changed since: then it computes them. Throws what preparing memory throws; the slot is to be released then. `check`
   * throws once the slot's lease is over.
   */
  begin(
    selected: SelectedText, { slot, cachedTokens }: Admitted, domain: PrefixDomain, check: () => void,
  ): LoadedSelection | undefined {
    if (!selected.isIn(domain)) return undefined;
    const exactTokens = this.#wholeRowTokens(cachedTokens);
    const blocks = selected.tokens > cachedTokens ? selected.blocksFrom(exactTokens) : undefined;
    if (blocks === undefined || blocks.length === 0 || !blocks.every((block) => this.texts.isInService(block))) {
      return undefined;
    }
    if (exactTokens < cachedTokens) this.#sharing.truncate(slot, exactTokens);
    const batch = new Batch(this.#memory.slots, this.#memory.layout.maxTokens, 1);
    batch.addSlot(slot, selected.tokens - exactTokens);
    this.#steps.prepare(batch);
    this.#steps.commit(batch, GivenFence.awaited);
    const totals = new SelectionTotals(this.totals);
    const selection = new LoadedSelection({
      rules: selected.rules, check, rows: new BlockRows(this.texts.tiers, blocks, this.#stripeTokenBytes, totals),
      layers: this.#layers, totals,
      notes: this.followers.notesOf(selected, blocks, domain, exactTokens), from: exactTokens, to: selected.tokens,
      report: (error) => { this.#memory.background.report(error); }, ended: () => { this.#running.delete(slot); },
    });
    this.#running.set(slot, selection);
    return selection;
  }

  /** The slot's sequence was released, and not by its holder: ends what its selection reads, if it has one. */
  end(slot: number): void {
    this.#running.get(slot)?.end();
  }

  /** The cache closes. */
  endAll(): void {
    for (const selection of [...this.#running.values()]) selection.end();
  }

  /** The most tokens, no more than `tokens`, that end with a row. */
  #wholeRowTokens(tokens: number): number {
    const { arithmetic } = this.#memory;
    let whole = tokens;
    while (whole > 0 && arithmetic.wholeRows(whole) < arithmetic.rowsFor(whole)) whole -= 1;
    return whole;
  }
}

function layersOf(tensors: readonly TensorSpec[], probes: readonly Probe[]): ReadonlyMap<number, StoredLayer> {
  const layers = new Map<number, StoredLayer>();
  for (const [keyStripe, key] of tensors.entries()) {
    const value = tensors[keyStripe + 1];
    if (key.role !== 'key' || value?.role !== 'value') continue;
    const index = probes.findIndex(({ layer }) => layer === key.layer);
    layers.set(key.layer, {
      key, value, keyStripe, valueStripe: keyStripe + 1, probe: probes[index], probeStripe: tensors.length + index,
    });
  }
  return layers;
}
