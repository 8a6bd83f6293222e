// TextPlaces: where a text lies, stretch by stretch: on the device, in tiers, in several of them; and why tiers have no
// more of it. For an operator's questions and for logs; looking changes nothing.

import type { PrefixDomain } from '../prefix/domain.js';
import type { BlockAbsence } from './tier-calls.js';
import type { LoadComparison } from './load-plan.js';
import type { OpenTier } from './open-tier.js';
import type { StoredMatch } from './stored-texts.js';
import type { TierSet } from './tier-set.js';
import type { LeftInTiers } from './promotion.js';
import type { Promotions } from './promotions.js';

/** Tokens [from, to) of a text, and all places where they lie. */
export interface TextPlace {
  /** Tokens of the text before it. */
  readonly from: number;
  /** Tokens of the text up to its end. */
  readonly to: number;
  /** `device`, and the names of tiers, the fastest first. */
  readonly places: readonly string[];
}

/** Where a text lies, and why no more of it is on the device or in tiers. */
export interface TiersExplanation {
  /** Stretches in the order of the text; what lies nowhere is left out. */
  readonly stretches: readonly TextPlace[];
  /** Tokens from the start that are on the device or could be brought there. */
  readonly reachableTokens: number;
  /** Loading what is not on the device against computing it; undefined: nothing could be brought. */
  readonly estimate: LoadComparison | undefined;
  /**
   * How the last promotion that came to what is not on the device ended there; undefined: none did, as far as is
   * remembered.
   */
  readonly left: LeftInTiers | undefined;
  /** Why each tier lacks the block behind `reachableTokens`; undefined: the text ends there. */
  readonly absences: Readonly<Record<string, BlockAbsence>> | undefined;
}

export class TextPlaces {
  readonly #tiers: TierSet;
  readonly #promotions: Promotions;

  constructor(tiers: TierSet, promotions: Promotions) {
    this.#tiers = tiers;
    this.#promotions = promotions;
  }

  /** @param cachedTokens Tokens from the start that are on the device. */
  stretches(domain: PrefixDomain, text: Int32Array, cachedTokens: number): TextPlace[] {
    return this.#stretches(this.#tiers.match(domain, text), cachedTokens);
  }

  explain(domain: PrefixDomain, text: Int32Array, cachedTokens: number): TiersExplanation {
    const match = this.#tiers.match(domain, text);
    const missing = this.#promotions.missing(domain, text, text.length, cachedTokens);
    const next = missing.blocks[0];
    return {
      stretches: this.#stretches(match, cachedTokens), reachableTokens: missing.tokens,
      estimate: this.#promotions.compare(missing, cachedTokens),
      left: next === undefined ? undefined : this.#promotions.totals.leftAt(next.key),
      absences: missing.tokens === text.length ? undefined : this.#absences(domain, text, missing.tokens),
    };
  }

  #stretches({ blocks, partial, tokens }: StoredMatch, cachedTokens: number): TextPlace[] {
    const open = this.#tiers.all.reduce((bits, { state }, number) => bits | (state === 'open' ? 1 << number : 0), 0);
    /** `places`: the tiers' bits; behind them that of the device. */
    const stretches: { from: number; to: number; places: number }[] = [];
    const device = 1 << this.#tiers.all.length;
    const add = (from: number, to: number, places: number): void => {
      const last = stretches.at(-1);
      if (from >= to || places === 0) return;
      if (last?.to === from && last.places === places) last.to = to;
      else stretches.push({ from, to, places });
    };
    let at = 0;
    for (const block of partial === undefined ? blocks : [...blocks, partial]) {
      const end = Math.min(block.to, tokens);
      const onDevice = Math.min(Math.max(at, cachedTokens), end);
      add(at, onDevice, block.tiers & open | device);
      add(onDevice, end, block.tiers & open);
      at = end;
    }
    add(at, cachedTokens, device);
    const names = ['device', ...this.#tiers.all.map(({ tier }) => tier.name)];
    const bits = [device, ...this.#tiers.all.map((_, number) => 1 << number)];
    return stretches.map(({ from, to, places }) => (
      { from, to, places: names.filter((_, place) => (places & bits[place]!) !== 0) }));
  }

  /** Why each tier lacks the block of the text that has the token `at`. */
  #absences(domain: PrefixDomain, text: Int32Array, at: number): Record<string, BlockAbsence> {
    const { keys, keys: { blockTokens }, names } = this.#tiers;
    const start = at - at % blockTokens;
    const count = Math.min(blockTokens, text.length - start);
    const parent = keys.ofText(domain, text.subarray(0, start), names).at(-1) ?? this.#tiers.rootOf(domain);
    const key = keys.key(parent, text, start, count, names);
    return Object.fromEntries(
      this.#tiers.all.map((open) => [open.tier.name, this.#absence(open, key, count === blockTokens)]));
  }

  #absence({ tier, state, absences, isSilent }: OpenTier, key: string, isWhole: boolean): BlockAbsence {
    if (state !== 'open') return 'out-of-service';
    if (!isWhole && tier.takesOnlyWholeBlocks) return 'part-of-block';
    const known = absences.get(key);
    if (known !== undefined) return known;
    if (isSilent) return 'unreachable';
    const seen = this.#tiers.sightings.get(key) ?? 0;
    return seen > 0 && seen < (tier.admitAfter ?? 1) ? 'seen-once' : 'never-offered';
  }
}
