// CacheStatistics: what a cache says about itself: counts of the moment, sums since it was opened, the check that all
// of them add up, and everything together for a bug report. Changes nothing.

import { createError } from '../base/errors.js';
import type { CachedBy, SlotLeases } from '../cache/admission.js';
import type { CachedRows } from '../cache/cached-rows.js';
import type { RowSupply } from '../cache/row-supply.js';
import { type SlotMemory, slotStates } from '../cache/slots.js';
import type { NativeCacheCounters } from '../device/native.js';
import type { LayerSetLayout } from '../layout/layout.js';
import { type DroppedRows, type DropReason, dropReasons } from '../prefix/row-ledger.js';
import type { SideTensors } from '../side/side-tensors.js';
import type { PrefixDropReason } from './prefix-events.js';

/** The moment's counts. */
export interface CacheCounts {
  /** Slots that a new sequence may have. */
  readonly idleSlots: number;
  /** Slots of running sequences. */
  readonly activeSlots: number;
  /** Released, their fence not passed yet. */
  readonly retiringSlots: number;
  /** Out of service because the driver refused to undo a failed change there. */
  readonly quarantinedSlots: number;
  /** Rows mapped in all slots together, each mapping counted. */
  readonly mappedRows: number;
  /**
   * Mappings of pages: one that several slots share counts for each. `pool.counts().mappedPages` counts pages, each
   * once.
   */
  readonly mappedPages: number;
  /** Rows of idle slots that hold no prefix. */
  readonly idleRows: number;
  /** Rows that the prefix cache holds: of running sequences, and of the cache pool. */
  readonly cachedRows: number;
  /**
   * The cache pool: those of them that no sequence uses, mapped or not. They can be evicted, unless the eviction policy
   * withholds them.
   */
  readonly pooledRows: number;
  /**
   * Pages that a growing sequence could be given: of idle rows, of unused tails of active slots, and of the cache pool.
   */
  readonly reclaimablePages: number;
  /**
   * Pages that could be earmarked now for prompts without a cached prefix, all of them together: pages that are free,
   * not created yet, or reclaimable, also from other caches of the pool, less those that are earmarked already. Pages
   * of a row that a background mapper is just mapping are missing here; `acquire` waits for that row before it refuses.
   */
  readonly admissiblePages: number;
  /**
   * Tokens of the longest prompt without a cached prefix that `acquire` would earmark memory for now; 0 when no slot is
   * idle.
   */
  readonly admissibleTokens: number;
  /** Valid tokens of active sequences. */
  readonly usedTokens: number;
  /** By layer set, in the order of `layout.sets`: what of the above is mapped for it. */
  readonly sets: readonly LayerSetCounts[];
}

/** What is mapped for a layer set. */
export interface LayerSetCounts {
  /** As in `layout.sets`. */
  readonly kind: LayerSetLayout['kind'];
  /** Rows mapped in all slots together, each mapping counted. */
  readonly mappedRows: number;
  /** Mappings of pages. */
  readonly mappedPages: number;
}

/** Sums since the cache was opened. Maps and unmaps count pages; `foreground` is what some `prepare` waited for. */
export interface CacheMetrics extends NativeCacheCounters {
  /** Sequences that were given a slot, forks included. */
  readonly acquired: number;
  /** Sequences that gave theirs back. */
  readonly released: number;
  /**
   * Failures that no call could report: the mapper's, and those of what follows a call that is done already. Each is
   * also published on the channel `virtual-kv:late-error`.
   */
  readonly lateErrors: number;
  /** Requests that the mapper dropped for want of room; the growth then happens in `prepare` if it must. */
  readonly droppedRequests: number;
}

const stateNames = Object.keys(slotStates);

export class CacheStatistics {
  readonly #memory: SlotMemory;
  readonly #supply: RowSupply;
  readonly #leases: SlotLeases;
  readonly #cached: CachedRows;
  readonly #side: SideTensors;
  /** Whether no other cache uses the pool. */
  readonly #ownsPool: boolean;

  constructor(
    memory: SlotMemory, supply: RowSupply, leases: SlotLeases, cached: CachedRows, side: SideTensors, ownsPool: boolean,
  ) {
    this.#memory = memory;
    this.#supply = supply;
    this.#leases = leases;
    this.#cached = cached;
    this.#side = side;
    this.#ownsPool = ownsPool;
  }

  counts(): CacheCounts {
    const { pool, slots: numbers, layout, windows, background } = this.#memory;
    const { index } = this.#cached;
    background.attempt(() => {
      this.#cached.flushBesideWithheld();
    });
    const slots = [0, 0, 0];
    let quarantinedSlots = 0;
    let idleRows = 0;
    let usedTokens = 0;
    for (let slot = 0; slot < numbers.count; slot += 1) {
      const state = numbers.state[slot]!;
      if (state === slotStates.idle && !numbers.isFree(slot)) {
        quarantinedSlots += 1;
        continue;
      }
      if (numbers.isTransfer(slot)) continue;
      slots[state]! += 1;
      if (state === slotStates.idle) idleRows += numbers.rows[slot]! - this.#cached.registry.namedRows(slot);
      if (state === slotStates.active) usedTokens += numbers.length[slot]!;
    }
    const idleSlots = Math.min(slots[slotStates.idle]!, numbers.freeSequences);
    const sets = this.#memory.natives.map((set, index) => ({ ...layout.sets[index]!, ...set.counters() }))
      .filter(({ layers }) => layers.length > 0)
      .map(({ kind, mappedRows, mappedPages }): LayerSetCounts => ({ kind, mappedRows, mappedPages }));
    const sum = (of: 'mappedRows' | 'mappedPages'): number => sets.reduce((total, counts) => total + counts[of], 0);
    const admissiblePages = pool.obtainablePages();
    const isAdmissible = (tokens: number): boolean =>
      layout.pagesFor(layout.rowsFor(tokens)) + windows.pagesOfPrompt(tokens) <= admissiblePages;
    return {
      idleSlots, activeSlots: slots[slotStates.active]!,
      retiringSlots: slots[slotStates.retiring]!, quarantinedSlots,
      mappedRows: sum('mappedRows'), mappedPages: sum('mappedPages'), idleRows, cachedRows: index.heldRows,
      pooledRows: index.pooledRows, reclaimablePages: this.#supply.reclaimablePages(),
      admissiblePages, usedTokens, sets,
      admissibleTokens: idleSlots === 0 ? 0 : mostTokens(layout.maxTokens, isAdmissible),
    };
  }

  metrics(): CacheMetrics {
    const { background } = this.#memory;
    this.#memory.synchronize();
    const [counters, ...others] = this.#memory.natives.map((native) => native.counters());
    const sums = { ...counters! } as Record<keyof NativeCacheCounters, number>;
    for (const set of others) {
      for (const name of Object.keys(set) as (keyof NativeCacheCounters)[]) sums[name] += set[name];
    }
    return {
      ...sums, acquired: this.#leases.acquired, released: this.#leases.released,
      lateErrors: background.count,
      droppedRequests: this.#memory.droppedRequests,
    };
  }

  /** Throws KV_INTERNAL unless free + in use + quarantined = created and the cache's own records agree with it. */
  verify(): void {
    const { natives, pool } = this.#memory;
    this.#cached.index.verify();
    this.#cached.registry.verify();
    this.#side.verify();
    // While the mapper maps, pages are taken before they are counted as mapped here. Once idle it stays so during this
    // call.
    const isStill = this.#ownsPool && natives.every((native) => native.mapperState().isIdle);
    this.#memory.windows.verify();
    const own = natives.reduce((pages, native) => pages + native.verify(), 0);
    const { freePages, mappedPages, quarantinedPages, createdPages } = pool.counts();
    const isOwnRight = isStill ? own === mappedPages : own <= mappedPages;
    if (freePages + mappedPages + quarantinedPages === createdPages && isOwnRight) return;
    throw createError('KV_INTERNAL', { problem: 'pages are not conserved', what: own, howMany: mappedPages });
  }

  inspect(): Readonly<Record<string, unknown>> {
    const { pool, slots: numbers, layout } = this.#memory;
    const { kind, pageBytes, slots, maxTokens, reservations } = layout;
    const counts = this.counts(); // first: it hears of the mapper
    const used = Array.from({ length: numbers.count }, (_, slot) => ({
      slot, state: stateNames[numbers.state[slot]!], isQuarantined: numbers.isQuarantined[slot] === 1,
      generation: numbers.generation[slot], length: numbers.length[slot], prepared: numbers.prepared[slot],
      rows: numbers.rows[slot], earmarkedTokens: numbers.earmarkedTokens[slot],
    })).filter(({ generation, state, rows }) => generation !== 0 || state !== 'idle' || rows !== 0);
    return {
      driver: pool.driver.info, layout: { kind, pageBytes, slots, maxTokens, reservations: reservations.length },
      pool: pool.counts(), counts, metrics: this.metrics(), slots: used,
    };
  }
}

/** The most tokens, 0 … `maxTokens`, that fit, where fewer always fit as well. */
function mostTokens(maxTokens: number, isFitting: (tokens: number) => boolean): number {
  let enough = 0;
  for (let tooMany = maxTokens + 1; tooMany - enough > 1;) {
    const tokens = Math.floor((enough + tooMany) / 2);
    if (isFitting(tokens)) enough = tokens;
    else tooMany = tokens;
  }
  return enough;
}

// PrefixStatistics: what the prefix cache was worth: sums since the cache was opened, and the hit rate of the last
// requests.

/** What the prefix cache was worth, in tokens, since the cache was opened. */
export interface PrefixMetrics {
  /** Requests that gave their tokens and read the cache. */
  readonly requests: number;
  /** Their prompts' tokens. */
  readonly promptTokens: number;
  /** Of these, those that came from the cache, and how. */
  readonly cachedTokens: number;
  /** Cached tokens that came with an idle slot that held them: nothing was mapped or copied. */
  readonly adoptedTokens: number;
  /** Cached tokens whose rows were mapped under another slot. */
  readonly aliasedTokens: number;
  /** Cached tokens that were copied, of rows that match in part. */
  readonly copiedTokens: number;
  /** cachedTokens / promptTokens; 0 without any. */
  readonly hitRate: number;
  /** The same over the last requests (`recentRequests`). */
  readonly recentHitRate: number;
  /** Times that text was dropped: by `drop`, and for a scheduler whose engine's logits were not numbers. */
  readonly drops: number;
  /** Of these, those for such logits. */
  readonly distrusts: number;
  /** Rows that the cache let go of, by reason. */
  readonly droppedRows: Readonly<Record<DropReason, number>>;
}

/** Sums since the cache was opened, and the hit rate of the last requests. Made once, allocates nothing per request. */
export class PrefixStatistics {
  readonly #recentPrompt: Float64Array;
  readonly #recentCached: Float64Array;
  #recentPromptTokens = 0;
  #recentCachedTokens = 0;
  #requests = 0;
  #promptTokens = 0;
  #adoptedTokens = 0;
  #aliasedTokens = 0;
  #copiedTokens = 0;
  #drops = 0;
  #distrusts = 0;
  readonly #droppedRows: Record<DropReason, number>;

  constructor(recentRequests: number) {
    this.#recentPrompt = new Float64Array(recentRequests);
    this.#recentCached = new Float64Array(recentRequests);
    this.#droppedRows = Object.fromEntries(dropReasons.map((reason) => [reason, 0])) as Record<DropReason, number>;
  }

  request(promptTokens: number, { adoptedTokens, aliasedTokens, copiedTokens }: CachedBy): void {
    const at = this.#requests % this.#recentPrompt.length;
    const cachedTokens = adoptedTokens + aliasedTokens + copiedTokens;
    this.#recentPromptTokens += promptTokens - this.#recentPrompt[at]!;
    this.#recentCachedTokens += cachedTokens - this.#recentCached[at]!;
    this.#recentPrompt[at] = promptTokens;
    this.#recentCached[at] = cachedTokens;
    this.#requests += 1;
    this.#promptTokens += promptTokens;
    this.#adoptedTokens += adoptedTokens;
    this.#aliasedTokens += aliasedTokens;
    this.#copiedTokens += copiedTokens;
  }

  /** Text was dropped, as it was asked for or not trusted. */
  drop(reason: PrefixDropReason): void {
    this.#drops += 1;
    if (reason === 'not-numbers') this.#distrusts += 1;
  }

  dropped(dropped: DroppedRows): void {
    for (let index = 0; index < dropped.count; index += 1) this.#droppedRows[dropped.reason(index)] += 1;
  }

  metrics(): PrefixMetrics {
    const cachedTokens = this.#adoptedTokens + this.#aliasedTokens + this.#copiedTokens;
    return {
      requests: this.#requests, promptTokens: this.#promptTokens, cachedTokens, adoptedTokens: this.#adoptedTokens,
      aliasedTokens: this.#aliasedTokens, copiedTokens: this.#copiedTokens,
      hitRate: share(cachedTokens, this.#promptTokens),
      recentHitRate: share(this.#recentCachedTokens, this.#recentPromptTokens),
      drops: this.#drops, distrusts: this.#distrusts, droppedRows: { ...this.#droppedRows },
    };
  }
}

function share(part: number, whole: number): number {
  return whole === 0 ? 0 : part / whole;
}
