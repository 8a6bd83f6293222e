// LoadComparison: whether text that tiers have is loaded or computed: how long each is likely to take, and by what
// measurements. It may be that the start of a text is loaded and its end, in a slower tier, computed.

import type { PrefillRate } from './load-estimate.js';
import type { OpenTier } from './open-tier.js';
import type { StoredBlock } from './stored-texts.js';

/**
 * Text is loaded that is likely to come in so much of the time that computing it takes: what loading would gain beyond
 * that is less than what a wait in vain costs.
 */
const worthLoading = 0.8;

/** What one tier would load, and how long that is likely to take. */
export interface LoadPart {
  /** The tier's name. */
  readonly tier: string;
  /** Tokens that would come from it. */
  readonly tokens: number;
  /** Bytes of their blocks. */
  readonly bytes: number;
  /** Milliseconds before its first byte, as measured; undefined: not yet. */
  readonly latencyMs: number | undefined;
  /** Bytes a millisecond from then on, as measured; undefined: not yet. */
  readonly bytesPerMs: number | undefined;
  /**
   * By these, and by what first blocks of loads took; while nothing was measured, how long the tier's first read has
   * been awaited that no request waits for any more, else 0.
   */
  readonly milliseconds: number;
}

/** Loading text from tiers against computing it, as both were measured. */
export interface LoadComparison {
  /** Tokens that tiers have behind those on the device. */
  readonly tokens: number;
  /**
   * Tokens of these, from the first on, that are better loaded: the others would not come in 0.8 of the time that
   * computing them takes.
   */
  readonly loadTokens: number;
  /** How long loading all of them is likely to take, in milliseconds. */
  readonly loadMs: number;
  /**
   * How long computing all of them is likely to take; undefined: the engine was not measured yet, and all is loaded.
   */
  readonly computeMs: number | undefined;
  /** Prompt tokens a millisecond that the engine computes, as measured. */
  readonly prefillTokensPerMs: number | undefined;
  /** By tier, the fastest first: each block comes from the fastest that has it. */
  readonly parts: readonly LoadPart[];
}

/** Tokens of a text that follow each other, in the fastest tier that has them; undefined: none that is in service. */
export interface LoadStretch {
  readonly tier: OpenTier | undefined;
  readonly tokens: number;
  readonly bytes: number;
}

/** Stretches behind each other, without the tokens that are on the device. */
export function compareLoad(
  stretches: readonly LoadStretch[], tiers: readonly OpenTier[], prefill: PrefillRate,
): LoadComparison {
  const sums = new Map<OpenTier, { readonly tokens: number; readonly bytes: number; readonly milliseconds: number }>();
  let [tokens, loadMs, gain, mostGain, loadTokens] = [0, 0, 0, 0, 0];
  let isAwaited = false; // from here on loading takes an unknown time
  for (const { tier, ...stretch } of stretches) {
    tokens += stretch.tokens;
    if (tier !== undefined) {
      const sum = sums.get(tier) ?? { tokens: 0, bytes: 0, milliseconds: 0 };
      const bytes = sum.bytes + stretch.bytes;
      const milliseconds = tier.estimate.milliseconds(bytes);
      sums.set(tier, { tokens: sum.tokens + stretch.tokens, bytes, milliseconds });
      const ms = milliseconds - sum.milliseconds;
      loadMs += ms;
      gain -= ms;
      isAwaited ||= tier.estimate.isAwaited;
    }
    gain += worthLoading * prefill.milliseconds(stretch.tokens);
    if (isAwaited || gain < mostGain) continue;
    mostGain = gain;
    loadTokens = tokens;
  }
  const parts = tiers.filter((tier) => sums.has(tier)).map((tier): LoadPart => {
    const { estimate, tier: { name } } = tier;
    return { tier: name, ...sums.get(tier)!, latencyMs: estimate.latencyMs, bytesPerMs: estimate.bytesPerMs };
  });
  const { tokensPerMs } = prefill;
  return {
    tokens, loadTokens, loadMs, computeMs: tokensPerMs === undefined ? undefined : tokens / tokensPerMs,
    prefillTokensPerMs: tokensPerMs, parts,
  };
}

// LoadSources: from which tier each block of one plan is loaded, by what tiers were measured to be when it was asked
// first. Blocks that lie in the same tiers come from the same one, so a plan compares tiers once for each such set, not
// for each block. For one plan, made and used in one turn.

/**
 * Milliseconds for a block by which a later tier must have been measured to be faster, and half as long at most: less
 * may be chance.
 */
const clearlyFasterMs = 50;

/**
 * Of tiers that have a block of so many bytes, the fastest first, the one that it is loaded from; undefined: there is
 * none. It is the first one, but for a later one that was measured to be clearly faster; one that owes an answer comes
 * behind the others.
 */
export function sourceOf(having: readonly OpenTier[], bytes: number): OpenTier | undefined {
  const ready = having.filter(({ estimate }) => !estimate.isAwaited);
  const [first, ...later] = ready.length > 0 ? ready : having;
  if (first?.estimate.isMeasured !== true) return first;
  let [fastest, ms] = [first, first.estimate.milliseconds(bytes)];
  for (const open of later) {
    const itsMs = open.estimate.milliseconds(bytes);
    if (open.estimate.isMeasured && itsMs <= ms / 2 && itsMs <= ms - clearlyFasterMs) [fastest, ms] = [open, itsMs];
  }
  return fastest;
}

/** Tiers that have a block, and the one that it is loaded from. */
interface Choice {
  readonly first: OpenTier | undefined;
  readonly source: OpenTier | undefined;
}

export class LoadSources {
  readonly #tiers: readonly OpenTier[];
  readonly #bytesOf: (tokens: number) => number;
  /** By the tokens of a block and the tiers that have it. */
  readonly #choices = new Map<number, Choice>();

  /** @param bytesOf Bytes of a payload of so many tokens. */
  constructor(tiers: readonly OpenTier[], bytesOf: (tokens: number) => number) {
    this.#tiers = tiers;
    this.#bytesOf = bytesOf;
  }

  /** The tier that the block is loaded from; undefined: none in service has it. */
  of(block: StoredBlock): OpenTier | undefined {
    return this.#choose(block).source;
  }

  /**
   * A request loads the block: where an earlier tier has it too, which is passed over for what it was measured to be,
   * that is forgotten now and then.
   */
  passOver(block: StoredBlock): void {
    const { first, source } = this.#choose(block);
    if (first !== undefined && first !== source && !first.estimate.isAwaited && !first.estimate.refuses()) {
      first.estimate.startOver();
    }
  }

  #choose(block: StoredBlock): Choice {
    const name = block.tokens.length * 2 ** 32 + (block.tiers >>> 0);
    let choice = this.#choices.get(name);
    if (choice === undefined) {
      const having = this.#tiers.filter((open) => open.has(block));
      choice = { first: having[0], source: sourceOf(having, this.#bytesOf(block.tokens.length)) };
      this.#choices.set(name, choice);
    }
    return choice;
  }
}
