// Selections: sequences that are given part of a stored text (lib/importance). Finds what may be selected from for `promote`, and begins a
// selection for a slot that `acquire` has leased: the slot then has memory for all of the text, in which each layer holds fewer tokens.

import { createError } from '../base/errors.js';
import { BlockRows } from '../importance/block-rows.js';
import { ChoiceNotes } from '../importance/choice-notes.js';
import type { StoredLayer } from '../importance/layer-reads.js';
import type { Probe } from '../importance/probes.js';
import { SelectedText } from '../importance/selected-text.js';
import type { ReadSelection } from '../importance/selection-options.js';
import { SelectionTotals } from '../importance/selection-totals.js';
import { TokenSelection } from '../importance/token-selection.js';
import type { TensorSpec } from '../base/dtypes.js';
import type { PrefixDomain } from '../prefix/domain.js';
import type { ImportanceMeans } from '../tiers/importance-means.js';
import type { RaisedBlocks } from '../tiers/raised-blocks.js';
import type { StoredBlock } from '../tiers/stored-texts.js';
import type { TierSet } from '../tiers/tier-set.js';
import type { Admitted, Prompt } from './admission-request.js';
import { Batch } from './batch.js';
import { GivenFence } from './fence.js';
import type { Promotion, PromotionRequest } from './promotion.js';
import type { Promotions } from './promotions.js';
import type { RaisedTexts } from './raised-texts.js';
import type { Reordering } from './reordering.js';
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
  readonly #raisedTexts: RaisedTexts;
  readonly #reordering: Reordering;
  /** By slot, of sequences that are not released. */
  readonly #running = new Map<number, TokenSelection>();

  constructor(
    memory: SlotMemory, { steps, sharing, promotions }: { readonly steps: Steps; readonly sharing: RowSharing; readonly promotions: Promotions }, tiers: TierSet,
    { means, raised, raisedTexts, reordering, probes }: {
      readonly means: ImportanceMeans; readonly raised: RaisedBlocks; readonly raisedTexts: RaisedTexts; readonly reordering: Reordering; readonly probes: readonly Probe[];
    },
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
    this.#raisedTexts = raisedTexts;
    this.#reordering = reordering;
  }

  /** What a sequence may be given in part. Nothing is loaded. Throws KV_INVALID_OPTION for a selection that this cache cannot make. */
  async find({ domain, text, signal, selection }: SelectionRequest): Promise<Promotion> {
    this.checkRules('Prefixes.promote', 'selection', selection);
    const beganMs = performance.now();
    await this.#promotions.findElsewhere({ domain, text, isHint: false, deadlineMs: undefined }, signal ?? new AbortController().signal);
    const cachedTokens = this.#promotions.cachedTokens(domain, text);
    const most = text.length - 1; // one is left to compute
    const missing = this.#promotions.missing(domain, text, most, cachedTokens);
    const { blocks, partial } = this.#tiers.match(domain, text, most);
    const all = partial === undefined ? blocks : [...blocks, partial];
    const gone = missing.blocks.find((block) => !this.#isInService(block));
    const tokens = gone === undefined ? missing.tokens : Math.max(cachedTokens, gone.from);
    let selected: SelectedText | undefined;
    if (tokens > cachedTokens) {
      const found = all.filter(({ from }) => from < tokens);
      this.#tiers.use(found.at(-1)!);
      selected = SelectedText.make({ owner: this, domain, rules: selection, text: text.slice(0, tokens), blocks: found });
    }
    const end = gone === undefined ? 'complete' : 'lost';
    return { cachedTokens, promotedTokens: 0, promotedFrom: {}, end, estimate: undefined, selected, milliseconds: performance.now() - beganMs };
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
   * where it has them all, tiers no longer have what is between, or the namespace of its text has changed since: then it computes them. Throws
   * what preparing memory throws; the slot is to be released then. `check` throws once the slot's lease is over.
   */
  begin(selected: SelectedText, { slot, cachedTokens }: Admitted, domain: PrefixDomain, check: () => void): TokenSelection | undefined {
    if (!selected.isIn(domain)) return undefined;
    const exactTokens = this.#wholeRowTokens(cachedTokens);
    const blocks = selected.tokens > cachedTokens ? selected.blocksFrom(exactTokens) : undefined;
    if (blocks === undefined || blocks.length === 0 || !blocks.every((block) => this.#isInService(block))) return undefined;
    if (exactTokens < cachedTokens) this.#sharing.truncate(slot, exactTokens);
    const batch = new Batch(this.#memory.slots, this.#memory.layout.maxTokens, 1);
    batch.addSlot(slot, selected.tokens - exactTokens);
    this.#steps.prepare(batch);
    this.#steps.commit(batch, new GivenFence());
    const totals = new SelectionTotals(this.totals);
    const selection = new TokenSelection({
      rules: selected.rules, check, rows: new BlockRows(this.#tiers, blocks, this.#stripeTokenBytes, totals), layers: this.#layers, totals,
      notes: new ChoiceNotes(this.means, blocks, exactTokens, selected.tokens, (isNoted) => { this.#chose(selected, blocks, domain, isNoted); }), from: exactTokens, to: selected.tokens,
      report: (error) => { this.#memory.late.report(error); }, ended: () => { this.#running.delete(slot); },
    });
    this.#running.set(slot, selection);
    return selection;
  }

  /** A request's layers have chosen of these blocks. What is made of it are hints: the request is none the worse for a tier of a user's that throws. */
  #chose({ text }: SelectedText, blocks: readonly StoredBlock[], domain: PrefixDomain, isNoted: boolean): void {
    try {
      for (const block of blocks) this.#raised.offer(block);
      this.#raisedTexts.offer(domain, text, blocks.at(-1)!);
      if (isNoted) this.#reordering.noted();
    } catch (error) {
      this.#memory.late.report(error);
    }
  }

  /** The slot's sequence was released, and not by its holder: ends what its selection reads, if it has one. */
  end(slot: number): void {
    this.#running.get(slot)?.end();
  }

  /** The cache closes. */
  endAll(): void {
    for (const selection of [...this.#running.values()]) selection.end();
  }

  /** Whether some tier that is open has the block. */
  #isInService(block: StoredBlock): boolean {
    return this.#tiers.all.some((open) => open.has(block));
  }

  /** The most tokens, no more than `tokens`, that end with a row. */
  #wholeRowTokens(tokens: number): number {
    const { groups } = this.#memory;
    let whole = tokens;
    while (whole > 0 && groups.wholeRows(whole) < groups.rowsFor(whole)) whole -= 1;
    return whole;
  }

  /** Throws KV_INVALID_OPTION for a selection that this cache cannot make. */
  checkRules(owner: string, option: string, { selector }: ReadSelection): void {
    const wrong = (expected: string, received: unknown): Error => createError('KV_INVALID_OPTION', { reason: 'range', owner, option, expected, received });
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
