// CachedTexts: what a cache has of texts, on the device and in tiers below: found, explained, brought up, and dropped.

import { createError } from '../base/errors.js';
import type { PrefixDomain, TextScope } from '../prefix/domain.js';
import type { PrefixExplanation as TextExplanation } from '../prefix/prefix-hit.js';
import type { PrefixIndex } from '../prefix/prefix-index.js';
import type { ReadSelection } from '../tiers/selection/selected-text.js';
import type { CoverEnd } from '../side/side-cover.js';
import type { SideTensors } from '../side/side-tensors.js';
import type { CacheTiers } from '../tiers/cache-tiers.js';
import type { CachedRows } from '../cache/cached-rows.js';
import type { Promotion, PromotionRequest } from '../tiers/promotion.js';
import type { SlotLeases } from '../cache/admission.js';
import { type SlotMemory, slotStates } from '../cache/slots.js';
import type { TextPlace, TiersExplanation } from '../tiers/text-places.js';

/**
 * Why no more of a prompt is cached. `side-evicted`, `side-never-written`: K and V are, up to `keyValueTokens`, but
 * `sideTensor` is not: its end was evicted, also with K and V that came back from a tier alone, or the sequences that
 * computed the text did not write it.
 */
export type PrefixExplanation = (TextExplanation | {
  readonly tokens: number;
  readonly reason: CoverEnd;
  readonly sideTensor: string;
  readonly keyValueTokens: number;
}) & {
  /** Where the text lies below the device, and why no more of it; undefined without tiers. */
  readonly tiers?: TiersExplanation | undefined;
};

/** What `Prefixes.lookup` finds. */
export interface PrefixLookup {
  /**
   * Tokens of the prompt that `acquire` would find now. One is left to compute, unless a value is kept for the whole
   * prompt.
   */
  readonly cachedTokens: number;
  /**
   * Tokens that it will find once running sequences have computed them: waiting may be cheaper than computing the same
   * tokens twice. Equal to `cachedTokens` when no sequence computes any.
   */
  readonly pendingTokens: number;
  /**
   * Tokens behind `cachedTokens` that `promote` could bring from tiers, as far as known without asking them. 0 for a
   * request that carries side tensors, of which tiers have no rows: it would compute them all the same.
   */
  readonly demotedTokens: number;
  /**
   * Where the prompt lies, stretch by stretch: on the device, in tiers, in several of them. Tokens that are stored
   * nowhere are left out.
   */
  readonly stretches: readonly TextPlace[];
}

/** What `Prefixes.drop` came to. */
export interface PrefixDrop {
  /** Rows that the cache let go of on the device. */
  readonly rows: number;
  /** Running sequences that are not cached any more. */
  readonly sequences: number;
  /** Blocks that tiers were known to have, or were about to get. */
  readonly tierBlocks: number;
  /**
   * Tiers that are out of service, did not answer, or whose stores did not take note, by name: text in them may be
   * found again.
   */
  readonly unreachedTiers: readonly string[];
}

/** How a text is brought up. */
export type HowToBring = Pick<PromotionRequest, 'deadlineMs' | 'signal' | 'priority' | 'isHint'> & {
  readonly selection?: ReadSelection | undefined;
};

const nothing: PrefixLookup = { cachedTokens: 0, pendingTokens: 0, demotedTokens: 0, stretches: [] };

export class CachedTexts {
  /** Undefined without `prefixCache.tiers`. */
  readonly tiers: CacheTiers | undefined;
  readonly side: SideTensors;
  readonly #memory: SlotMemory;
  readonly #leases: SlotLeases;
  readonly #cached: CachedRows;

  constructor(
    memory: SlotMemory, leases: SlotLeases, cached: CachedRows, side: SideTensors, tiers: CacheTiers | undefined,
  ) {
    this.#memory = memory;
    this.#leases = leases;
    this.#cached = cached;
    this.side = side;
    this.tiers = tiers;
  }

  /** Tokens that fill a row that can be shared; 0: a token has more than a row. */
  get tokensPerRow(): number {
    return this.#memory.arithmetic.tokensIn(1);
  }

  /** A failure that no call can throw. */
  report(error: unknown): void {
    this.#memory.background.report(error);
  }

  /** Of the texts on the device. */
  get index(): PrefixIndex {
    return this.#cached.index;
  }

  /** Tells the index, and routers, what sequences have committed. Throws what the driver throws. */
  flushCommits(): void {
    this.#cached.flushCommits();
  }

  /**
   * What a request would find of a text, in K, V and the side tensors `needs`. Changes nothing, not even what is
   * evicted next.
   */
  find(domain: PrefixDomain, text: Int32Array, needs: number): PrefixLookup {
    const { side, tiers } = this;
    this.#cached.flushCommits();
    if (this.#cached.isForgetting) return nothing;
    const hit = this.#cached.index.match(domain, text);
    const covered = needs === 0 ? hit.tokens : side.covered(hit.node, hit.tokens, needs);
    if (covered < hit.tokens) hit.limitTo(covered);
    const { tokens, pendingTokens } = hit;
    const onDevice = tokens === 0 ? [] : [{ from: 0, to: tokens, places: ['device'] }];
    return {
      cachedTokens: tokens, pendingTokens: Math.max(tokens, pendingTokens),
      demotedTokens: needs === 0 ? tiers?.demotedTokens(domain, text, tokens) ?? 0 : 0,
      stretches: tiers?.stretches(domain, text, tokens) ?? onDevice,
    };
  }

  /** Why a request would find no more of it. */
  explain(domain: PrefixDomain, text: Int32Array, needs: number): PrefixExplanation {
    const { index } = this.#cached;
    this.#cached.flushCommits();
    if (this.#cached.isForgetting) return { tokens: 0, reason: 'never-cached' };
    const { node, tokens: keyValueTokens } = index.match(domain, text, text.length);
    const lacking = this.side.lacking(node, keyValueTokens, needs);
    const tiers = this.tiers?.explain(domain, text, keyValueTokens);
    const below = tiers === undefined ? {} : { tiers };
    if (lacking === undefined) return { ...index.explain(domain, text), ...below };
    return { tokens: lacking.tokens, reason: lacking.reason, sideTensor: lacking.tensor, keyValueTokens, ...below };
  }

  /** Brings a text from tiers to the device, or finds what may be selected of it. Rejects as `Prefixes.promote`. */
  async bring(domain: PrefixDomain, text: Int32Array, { selection, ...how }: HowToBring): Promise<Promotion> {
    const { tiers } = this;
    const isForgetting = this.isForgetting(); // then nothing is found
    if (tiers !== undefined && !isForgetting) {
      const isText = text.every((token) => token >= 0);
      return selection !== undefined && isText
        ? tiers.selections.find({ domain, text, signal: how.signal, selection })
        : tiers.promote({ domain, text, ...how });
    }
    this.#cached.flushCommits();
    const cachedTokens = isForgetting ? 0 : this.#cached.index.match(domain, text, text.length).tokens;
    return { cachedTokens, promotedTokens: 0, promotedFrom: {}, end: 'complete', estimate: undefined, milliseconds: 0 };
  }

  /** Whether prefixes that were reset are still used by running work, after hearing which is over. */
  isForgetting(): boolean {
    if (!this.#cached.isForgetting) return false;
    this.#leases.synchronize();
    return this.#cached.isForgetting;
  }

  /**
   * Nothing that running sequences compute from here on is cached; what they have computed stays. Transfers go on.
   * Throws what the driver throws.
   */
  stopStoring(): void {
    const { slots } = this.#memory;
    this.#leases.synchronize();
    this.#cached.flushCommits();
    for (let slot = 0; slot < slots.count; slot += 1) {
      if (!slots.isTransfer(slot)) this.#cached.tokens.stopStoring(slot);
    }
  }

  /**
   * Drops what the scope says, here and in tiers; sequences of such text keep what they use and are not cached any
   * more. From the call on nothing of it is found; resolves when it is gone. Rejects with what the driver throws, once
   * all else is done.
   */
  async drop(scope: TextScope): Promise<PrefixDrop> {
    const { tokens } = this.#cached;
    this.#leases.synchronize();
    this.#cached.flushCommits();
    if (tokens.slotsIn(scope).some((slot) => this.#memory.slots.isTransfer(slot))) this.tiers?.interrupt();
    const slots = tokens.slotsIn(scope);
    const sequences = slots.filter((slot) => this.#memory.slots.state[slot] === slotStates.active).length;
    for (const slot of slots) tokens.leave(slot);
    const below = this.tiers?.drop(scope); // before the driver may refuse something
    try {
      const rows = this.#cached.drop(scope);
      tokens.endDropped();
      const { blocks = 0, unreachedTiers = [] } = await below ?? {};
      return { rows, sequences, tierBlocks: blocks, unreachedTiers };
    } finally {
      await below;
    }
  }

  /**
   * Drops all; returns how many rows it let go of. `preempt`: releases sequences that use some. Throws
   * KV_PREFIX_IN_USE.
   */
  reset(preempt: boolean): number {
    const { tiers } = this;
    const { slots } = this.#memory;
    const cached = this.#cached;
    const usersNow = (): number[] =>
      Array.from({ length: slots.count }, (_, slot) => slot).filter((slot) => cached.tokens.of(slot) !== undefined);
    this.#leases.synchronize();
    const sequences = usersNow().filter((slot) => !slots.isTransfer(slot)).length;
    if (sequences > 0 && !preempt) throw createError('KV_PREFIX_IN_USE', { sequences }); // before it ends what tiers do
    tiers?.interrupt();
    this.#leases.synchronize();
    const users = usersNow();
    if (users.length > 0 && !preempt) throw createError('KV_PREFIX_IN_USE', { sequences: users.length });
    tiers?.clear();
    for (const slot of users) {
      if (slots.state[slot] !== slotStates.active) continue;
      this.#leases.release(slot);
      tiers?.selections.end(slot);
    }
    for (const slot of users) if (cached.tokens.of(slot) !== undefined) cached.forgetLater(slot);
    return cached.clear();
  }
}
