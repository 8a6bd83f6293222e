// Selections: sequences that are given part of a stored text (docs/importance.md). What tiers have of a prompt behind
// what is on the device, for `promote`; whether the cache can select as it is asked to; and the selection of a slot
// that `acquire` has leased: it then has memory for all of the text, in which each layer holds fewer tokens.

import type { TensorSpec } from '../../base/dtypes.js';
import { createError } from '../../base/errors.js';
import type { Admitted, Prompt } from '../../cache/admission.js';
import { Batch } from '../../cache/batch.js';
import type { RowSharing } from '../../cache/row-sharing.js';
import { GivenFence } from '../../cache/slot-fences.js';
import type { SlotMemory } from '../../cache/slots.js';
import type { Steps } from '../../cache/steps.js';
import type { PrefixDomain } from '../../prefix/domain.js';
import type { Promotion, PromotionRequest } from '../promotion.js';
import type { Promotions } from '../promotions.js';
import type { StoredBlock } from '../stored-texts.js';
import type { TierSet } from '../tier-set.js';
import type { ChoiceFollowers } from './choice-followers.js';
import { BlockRows, SelectionTotals, type StoredLayer } from './layer-reads.js';
import { LoadedSelection } from './loaded-selection.js';
import type { Probe } from './probes.js';
import { type ReadSelection, SelectedText } from './selected-text.js';

/** A prompt, and what is to be selected of it. */
export interface SelectionRequest extends Pick<PromotionRequest, 'domain' | 'text' | 'signal'> {
  readonly selection: ReadSelection;
}

export interface SelectionsOptions {
  readonly memory: SlotMemory;
  readonly steps: Steps;
  readonly sharing: RowSharing;
  readonly tiers: TierSet;
  readonly promotions: Promotions;
  /** Hear what is chosen. */
  readonly followers: ChoiceFollowers;
  /** What blocks have beside K and V. */
  readonly probes: readonly Probe[];
}

export class Selections {
  /** Of all sequences so far. */
  readonly totals = new SelectionTotals();
  readonly #options: SelectionsOptions;
  readonly #stripeTokenBytes: readonly number[];
  /** By layer. */
  readonly #layers: ReadonlyMap<number, StoredLayer>;
  /** By slot, of sequences that are not released. */
  readonly #running = new Map<number, LoadedSelection>();

  constructor(options: SelectionsOptions) {
    const { memory: { layout: { tensors } }, probes } = options;
    this.#options = options;
    this.#stripeTokenBytes = [...tensors, ...probes].map(({ tokenBytes }) => tokenBytes);
    this.#layers = layersOf(tensors, probes);
  }

  /**
   * What a sequence may be given in part. Nothing is loaded. Throws KV_INVALID_OPTION for a selection that this cache
   * cannot make.
   */
  async find({ domain, text, signal, selection }: SelectionRequest): Promise<Promotion> {
    this.checkRules('Prefixes.promote', 'selection', selection);
    const { promotions, tiers } = this.#options;
    const beganMs = performance.now();
    const unasked = await promotions.findElsewhere(
      { domain, text, isHint: false, deadlineMs: undefined }, signal ?? new AbortController().signal);
    const cachedTokens = promotions.cachedTokens(domain, text);
    const most = text.length - 1; // one is left to compute
    const missing = promotions.missing(domain, text, most, cachedTokens);
    const { blocks, partial } = tiers.match(domain, text, most);
    const all = partial === undefined ? blocks : [...blocks, partial];
    const gone = missing.blocks.find((block) => !this.isInService(block));
    const tokens = gone === undefined ? missing.tokens : Math.max(cachedTokens, gone.from);
    let selected: SelectedText | undefined;
    if (tokens > cachedTokens) {
      const found = all.filter(({ from }) => from < tokens);
      tiers.use(found.at(-1)!);
      selected = new SelectedText({
        owner: this, domain, rules: selection, text: text.slice(0, tokens), blocks: found,
      });
    }
    const end = gone !== undefined ? 'lost' : signal?.aborted === true ? 'aborted' : unasked ?? 'complete';
    return {
      cachedTokens, promotedTokens: 0, promotedFrom: {}, end, estimate: undefined, selected,
      milliseconds: performance.now() - beganMs,
    };
  }

  /** Throws KV_INVALID_OPTION where it is not for this text. */
  check(selected: SelectedText, { domain, text }: Prompt): void {
    if (selected.isOf(this, domain, text)) return;
    throw createError('KV_INVALID_OPTION', {
      reason: 'range', owner: 'KvCache.acquire', option: 'selected',
      expected: 'what `promote` of this cache resolved with for the same prompt', received: selected,
    });
  }

  /** Whether some tier that is open has the block. */
  isInService(block: StoredBlock): boolean {
    return this.#options.tiers.all.some((open) => open.has(block));
  }

  /** Throws KV_INVALID_OPTION for a selection that this cache cannot make. */
  checkRules(owner: string, option: string, { selector }: ReadSelection): void {
    const wrong = (
      expected: string, received: unknown,
    ): Error => createError('KV_INVALID_OPTION', { reason: 'range', owner, option, expected, received });
    const { memory: { layout: { tensors } }, probes } = this.#options;
    const latent = tensors.find(({ role }) => role === 'latent');
    if (latent !== undefined) throw wrong('left out for MLA, which keeps no K and V of single heads', latent.name);
    const { dtype } = tensors[0]!;
    if (dtype !== 'float32' && dtype !== 'float16' && dtype !== 'bfloat16') {
      throw wrong('left out for K and V that are no floating-point numbers of 16 or 32 bits', dtype);
    }
    if (selector.looksAt === 'probe-keys' && probes.length === 0) {
      throw wrong(
        'one whose selector reads no probe keys, unless the cache has `prefixCache.importance`', selector.name);
    }
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
    const { memory, steps, sharing, tiers, followers } = this.#options;
    const exactTokens = this.#wholeRowTokens(cachedTokens);
    const blocks = selected.tokens > cachedTokens ? selected.blocksFrom(exactTokens) : undefined;
    if (blocks === undefined || blocks.length === 0 || !blocks.every((block) => this.isInService(block))) {
      return undefined;
    }
    if (exactTokens < cachedTokens) sharing.truncate(slot, exactTokens);
    const batch = new Batch(memory.slots, memory.layout.maxTokens, 1);
    batch.addSlot(slot, selected.tokens - exactTokens);
    steps.prepare(batch);
    steps.commit(batch, GivenFence.awaited);
    const totals = new SelectionTotals(this.totals);
    const selection = new LoadedSelection({
      rules: selected.rules, check, rows: new BlockRows(tiers, blocks, this.#stripeTokenBytes, totals),
      layers: this.#layers, totals,
      notes: followers.notesOf(selected, blocks, domain, exactTokens), from: exactTokens, to: selected.tokens,
      report: (error) => { memory.background.report(error); }, ended: () => { this.#running.delete(slot); },
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
    const { arithmetic } = this.#options.memory;
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
