// Selections: sequences that are given part of a stored text (lib/importance). Finds what may be selected from for `promote`, and begins a
// selection for a slot that `acquire` has leased: the slot then has memory for all of the text, in which each layer holds fewer tokens.

import { createError } from '../base/errors.js';
import { BlockRows } from '../importance/block-rows.js';
import { ChoiceNotes } from '../importance/choice-notes.js';
import type { Probe } from '../importance/probes.js';
import { SelectedText } from '../importance/selected-text.js';
import type { ReadSelection } from '../importance/selection-options.js';
import { SelectionTotals } from '../importance/selection-totals.js';
import { TokenSelection, type StoredLayer } from '../importance/token-selection.js';
import type { TensorSpec } from '../layout/model-shape.js';
import type { ImportanceMeans } from '../prefix/importance/importance-means.js';
import type { RaisedBlocks } from '../tiers/raised-blocks.js';
import type { TierSet } from '../tiers/tier-set.js';
import type { Admitted, Prompt } from './admission-request.js';
import { Batch } from './batch.js';
import { GivenFence } from './fence.js';
import type { Promotion } from './promotion.js';
import type { PromotionRequest, Promotions } from './promotions.js';
import type { RowSharing } from './row-sharing.js';
import type { SlotMemory } from './slot-memory.js';
import type { Steps } from './steps.js';

/** A prompt, and what is to be selected of it. */
export interface SelectionRequest extends Pick<PromotionRequest, 'domain' | 'text' | 'signal'> {
  readonly selection: ReadSelection;
}

export class Selections {
  /** Of all sequences so far. */
  readonly totals = new SelectionTotals();
  /** What they chose, by block. */
  readonly means: ImportanceMeans;
  readonly #memory: SlotMemory;
  readonly #steps: Steps;
  readonly #sharing: RowSharing;
  readonly #tiers: TierSet;
  readonly #promotions: Promotions;
  readonly #stripeTokenBytes: readonly number[];
  /** By layer. */
  readonly #layers: ReadonlyMap<number, StoredLayer>;
  readonly #probes: readonly Probe[];
  readonly #raised: RaisedBlocks;

  constructor(
    memory: SlotMemory, { steps, sharing, promotions }: { readonly steps: Steps; readonly sharing: RowSharing; readonly promotions: Promotions }, tiers: TierSet,
    { means, raised, probes }: { readonly means: ImportanceMeans; readonly raised: RaisedBlocks; readonly probes: readonly Probe[] },
  ) {
    const { tensors } = memory.layout;
    this.#memory = memory;
    this.#steps = steps;
    this.#sharing = sharing;
    this.#tiers = tiers;
    this.#promotions = promotions;
    this.#stripeTokenBytes = [...tensors, ...probes].map(({ tokenBytes }) => tokenBytes);
    this.#layers = layersOf(tensors, probes);
    this.#probes = probes;
    this.means = means;
    this.#raised = raised;
  }

  /** What a sequence may be given in part. Nothing is loaded. Throws KV_INVALID_OPTION for a selection that this cache cannot make. */
  async find({ domain, text, signal, selection }: SelectionRequest): Promise<Promotion> {
    this.#check(selection);
    const beganMs = performance.now();
    await this.#promotions.findElsewhere(domain, text, signal ?? new AbortController().signal);
    const cachedTokens = this.#promotions.cachedTokens(domain, text);
    const most = text.length - 1; // one is left to compute
    const { tokens } = this.#promotions.missing(domain, text, most, cachedTokens);
    const { blocks, partial } = this.#tiers.match(domain, text, most);
    const all = partial === undefined ? blocks : [...blocks, partial];
    const isMore = tokens > cachedTokens;
    if (isMore) this.#tiers.use(all.findLast(({ from }) => from < tokens)!);
    const selected = isMore ? SelectedText.make({
      owner: this, domain, rules: selection, text: text.slice(0, tokens), blocks: all.filter(({ from }) => from < tokens),
    }) : undefined;
    return { cachedTokens, promotedTokens: 0, promotedFrom: {}, end: 'complete', estimate: undefined, selected, milliseconds: performance.now() - beganMs };
  }

  /** Throws KV_INVALID_OPTION where it is not for this text. */
  check(selected: SelectedText, { domain, text }: Prompt): void {
    if (selected.isOf(this, domain, text)) return;
    throw createError('KV_INVALID_OPTION', {
      reason: 'range', owner: 'KvCache.acquire', option: 'selected', expected: 'what `promote` of this cache resolved with for the same prompt', received: selected,
    });
  }

  /**
   * The slot's selection behind the tokens that it was found, but for those in a row that it shares and would have to write to; undefined
   * where it has them all, or tiers no longer have what is between: then it computes them. Throws what preparing memory throws; the slot is to
   * be released then.
   */
  begin(selected: SelectedText, { slot, cachedTokens }: Admitted): TokenSelection | undefined {
    const exactTokens = this.#wholeRowTokens(cachedTokens);
    const blocks = selected.tokens > cachedTokens ? selected.blocksFrom(exactTokens) : undefined;
    if (blocks === undefined || blocks.length === 0) return undefined;
    if (exactTokens < cachedTokens) this.#sharing.truncate(slot, exactTokens);
    const batch = new Batch(this.#memory.slots, this.#memory.layout.maxTokens, 1);
    batch.addSlot(slot, selected.tokens - exactTokens);
    this.#steps.prepare(batch);
    this.#steps.commit(batch, new GivenFence());
    const totals = new SelectionTotals(this.totals);
    return new TokenSelection({
      rules: selected.rules, rows: new BlockRows(this.#tiers, blocks, this.#stripeTokenBytes, totals), layers: this.#layers, totals,
      notes: new ChoiceNotes(this.means, blocks, exactTokens, selected.tokens, (block) => { this.#raised.offer(block); }), from: exactTokens, to: selected.tokens,
    });
  }

  /** The most tokens, no more than `tokens`, that end with a row. */
  #wholeRowTokens(tokens: number): number {
    const { groups } = this.#memory;
    let whole = tokens;
    while (whole > 0 && groups.wholeRows(whole) < groups.rowsFor(whole)) whole -= 1;
    return whole;
  }

  #check({ selector }: ReadSelection): void {
    const wrong = (expected: string, received: unknown): Error =>
      createError('KV_INVALID_OPTION', { reason: 'range', owner: 'Prefixes.promote', option: 'selection', expected, received });
    const { tensors } = this.#memory.layout;
    const latent = tensors.find(({ role }) => role === 'latent');
    if (latent !== undefined) throw wrong('left out for MLA, which keeps no K and V of single heads', latent.name);
    const { dtype } = tensors[0]!;
    if (dtype !== 'float32' && dtype !== 'float16' && dtype !== 'bfloat16') throw wrong('left out for K and V that are no floating-point numbers of 16 or 32 bits', dtype);
    if (selector.looksAt === 'probe-keys' && this.#probes.length === 0) {
      throw wrong('one whose selector reads no probe keys, unless the cache has `prefixCache.importance`', selector.name);
    }
  }
}

function layersOf(tensors: readonly TensorSpec[], probes: readonly Probe[]): ReadonlyMap<number, StoredLayer> {
  const layers = new Map<number, StoredLayer>();
  for (const [keyStripe, key] of tensors.entries()) {
    const value = tensors[keyStripe + 1];
    if (key.role !== 'key' || value?.role !== 'value') continue;
    const index = probes.findIndex(({ layer }) => layer === key.layer);
    layers.set(key.layer, { key, value, keyStripe, valueStripe: keyStripe + 1, probe: probes[index], probeStripe: tensors.length + index });
  }
  return layers;
}
