// LoadPlan: how text that the device lacks is best brought there: from which tier each of its blocks, how long that
// takes by what was measured, and how much of it comes sooner than the engine computes it: it may be that the start of
// a text is loaded and its end, in a slower tier, computed. Made and used in one turn. Blocks that lie in the same
// tiers come from the same one, so a plan compares tiers once for each such set, not for each block.

import type { PrefillRate } from './load-estimate.js';
import type { OpenTier } from './open-tier.js';
import type { StoredBlock } from './stored-texts.js';

/**
 * Text is loaded that is likely to come in so much of the time that computing it takes: what loading would gain beyond
 * that is less than what a wait in vain costs.
 */
const worthLoading = 0.8;
/**
 * Milliseconds for a block by which a later tier must have been measured to be faster, and half as long at most: less
 * may be chance.
 */
const clearlyFasterMs = 50;

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

/** Blocks that the device lacks, and tokens up to where they agree with the text. */
export interface MissingBlocks {
  readonly blocks: readonly StoredBlock[];
  readonly tokens: number;
}

/** Of these, what is to be brought. */
export interface WantedBlocks extends MissingBlocks {
  /** A tier that is likely to be too slow, and is tried all the same. */
  readonly tried: OpenTier | undefined;
}

/** What a plan knows of tiers. */
export interface PlannedTiers {
  /** The fastest first. */
  readonly all: readonly OpenTier[];
  /** Bytes of a payload of so many tokens. */
  bytesOf(tokens: number): number;
}

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

/** Tiers that have a block, and the one that it is loaded from; undefined: none in service has it. */
interface Source {
  readonly first: OpenTier | undefined;
  readonly open: OpenTier | undefined;
}

export class LoadPlan {
  readonly #tiers: PlannedTiers;
  readonly #missing: MissingBlocks;
  readonly #cachedTokens: number;
  readonly #prefill: PrefillRate;
  /** By the tokens of a block and the tiers that have it. */
  readonly #sources = new Map<number, Source>();

  /** @param cachedTokens Tokens of the text that the device has. */
  constructor(tiers: PlannedTiers, missing: MissingBlocks, cachedTokens: number, prefill: PrefillRate) {
    this.#tiers = tiers;
    this.#missing = missing;
    this.#cachedTokens = cachedTokens;
    this.#prefill = prefill;
  }

  /** The tier that the block is loaded from; undefined: none in service has it. */
  sourceOf(block: StoredBlock): OpenTier | undefined {
    return this.#source(block).open;
  }

  /** Loading all that is missing against computing it. */
  compare(): LoadComparison {
    const sums = new Map<OpenTier, { tokens: number; bytes: number; milliseconds: number }>();
    const { tokensPerMs } = this.#prefill;
    let [at, loadMs, gain, mostGain, loadTokens] = [this.#cachedTokens, 0, 0, 0, 0];
    let isAwaited = false; // from here on loading takes an unknown time
    for (const block of this.#missing.blocks) {
      const open = this.sourceOf(block);
      const tokens = Math.min(block.to, this.#missing.tokens) - at;
      at += tokens;
      if (open !== undefined) {
        const sum = sums.get(open) ?? { tokens: 0, bytes: 0, milliseconds: 0 };
        const bytes = sum.bytes + this.#tiers.bytesOf(block.tokens.length);
        const milliseconds = open.estimate.milliseconds(bytes);
        sums.set(open, { tokens: sum.tokens + tokens, bytes, milliseconds });
        loadMs += milliseconds - sum.milliseconds;
        gain -= milliseconds - sum.milliseconds;
        isAwaited ||= open.estimate.isAwaited;
      }
      gain += worthLoading * this.#prefill.milliseconds(tokens);
      if (isAwaited || gain < mostGain) continue;
      mostGain = gain;
      loadTokens = at - this.#cachedTokens;
    }
    const parts = this.#tiers.all.filter((open) => sums.has(open)).map((open): LoadPart => {
      const { estimate: { latencyMs, bytesPerMs }, tier: { name } } = open;
      return { tier: name, ...sums.get(open)!, latencyMs, bytesPerMs };
    });
    const tokens = at - this.#cachedTokens;
    return {
      tokens, loadTokens, loadMs, computeMs: tokensPerMs === undefined ? undefined : tokens / tokensPerMs,
      prefillTokensPerMs: tokensPerMs, parts,
    };
  }

  /** Of what is missing the first `loadTokens` tokens, which are worth loading; now and then all, to measure anew. */
  worthLoading({ loadTokens }: LoadComparison): WantedBlocks {
    const { blocks, tokens } = this.#missing;
    const end = this.#cachedTokens + loadTokens;
    const worth = blocks.filter((block) => Math.min(block.to, tokens) <= end);
    const rest = blocks.slice(worth.length);
    const slow = rest[0] && this.sourceOf(rest[0]);
    if (slow !== undefined && slow.estimate.refuses(this.bytesFrom(slow, rest))) {
      return { blocks: worth, tokens: end, tried: undefined };
    }
    return { blocks, tokens, tried: slow };
  }

  /** Bytes of the blocks that are loaded from the tier. */
  bytesFrom(open: OpenTier, blocks: readonly StoredBlock[]): number {
    return blocks.reduce(
      (sum, block) => sum + (this.sourceOf(block) === open ? this.#tiers.bytesOf(block.tokens.length) : 0), 0);
  }

  /**
   * A request loads what is missing: where an earlier tier has its first block too, which is passed over for what it
   * was measured to be, that is forgotten now and then.
   */
  passOver(): void {
    const { first, open } = this.#source(this.#missing.blocks[0]!);
    if (first === undefined || first === open || first.estimate.isAwaited || first.estimate.refuses()) return;
    first.estimate.startOver();
    this.#sources.clear();
  }

  #source(block: StoredBlock): Source {
    const name = block.tokens.length * 2 ** 32 + (block.tiers >>> 0);
    let source = this.#sources.get(name);
    if (source === undefined) {
      const having = this.#tiers.all.filter((open) => open.has(block));
      source = { first: having[0], open: sourceOf(having, this.#tiers.bytesOf(block.tokens.length)) };
      this.#sources.set(name, source);
    }
    return source;
  }
}
