// Admission: how a request gets a slot, and in it as much of its prompt as is cached. Cheapest first: an idle slot that
// holds the start of the prompt already is adopted; else whole rows are aliased; the tokens of the last, partly
// matching row are copied. What cannot be had is found out before anything changes.
//
// The five ranges of a request's slot, from its first token on; each may be empty:
//
//   0         adoptedTokens      + aliasedTokens      + copiedTokens       promptTokens
//   |  adopted  |     aliased      |      copied        |   to compute     |  ahead →
//   | mapped    | other slots' or  | own rows; bytes of | own rows, set    | own rows, asked of
//   | there     | cached rows      | a partly equal row | aside (`reserve`)| the mapper (`growth`)
//   └──────────────── cachedTokens ─────────────────────┘
//
// Admission owns no state. On failure nothing has changed but, where the driver refused, which idle slot has what
// mapped.

import { createError, isKvError } from '../base/errors.js';
import { cacheNews } from '../device/native.js';
import type { PrefixDomain } from '../prefix/domain.js';
import type { PrefixHit } from '../prefix/prefix-hit.js';
import type { PrefixPath } from '../prefix/prefix-tree.js';
import type { SideRequest, SideTensors } from '../side/side-tensors.js';
import type { CachedRows } from './cached-rows.js';
import { compareFit } from './slot-choice.js';
import type { RowSharing } from './row-sharing.js';
import type { RowSupply, TailCopy } from './row-supply.js';
import { GivenFence } from './slot-fences.js';
import { noForeignRow, sharedTails, type SlotMemory } from './slots.js';

// What a sequence asks for when it wants a slot, and what it gets. Types only.

/** A prompt whose prefix may be cached. */
export interface Prompt {
  readonly domain: PrefixDomain;
  readonly text: Int32Array;
  readonly canRead: boolean;
  readonly canWrite: boolean;
  readonly priority: number;
}

/**
 * Tokens that came from the cache, by how: `adopted` cost nothing, `aliased` a mapping per row, `copied` their bytes.
 */
export interface CachedBy {
  /** Tokens that came with an idle slot that held them. */
  readonly adoptedTokens: number;
  /** Tokens whose rows were mapped under the slot. */
  readonly aliasedTokens: number;
  /** Tokens that were copied. */
  readonly copiedTokens: number;
}

export interface AdmissionRequest {
  readonly promptTokens: number;
  /** Whether pages for all of them are set aside. */
  readonly isEarmarked: boolean;
  /** Number of the tenant, for scrubbing. */
  readonly tenant: bigint;
  readonly prompt: Prompt | undefined;
  /** Side tensors that the sequence carries, as bits. */
  readonly needs: number;
  /** On which the sequence's work will be queued, if that was said. */
  readonly stream: bigint | undefined;
  /** Whether the cache itself asks, to move K and V: counted apart, and no use of the text. */
  readonly isTransfer: boolean;
}

export interface Admitted {
  readonly slot: number;
  readonly cachedTokens: number;
  readonly cachedBy: CachedBy;
  /**
   * Tokens of the prompt, from its start, that running sequences have computed or are computing; 0 if no more than
   * cached ones.
   */
  readonly pendingTokens: number;
  /** What was kept at the end of the prompt; only when all of it is cached. */
  readonly keptValue: unknown;
}

/** Texts that the policy is asked for. More save more mappings, and stray further from its order. */
const candidates = 8;
/** Rows that are evicted beyond need, at most: as a share of those that need not be mapped for it. */
const excessShare = 1 / 4;

/** What is cached of a prompt, and the cheapest way to it. */
interface Plan {
  /** What the index found; undefined: it was not asked. */
  readonly hit: PrefixHit | undefined;
  readonly tokens: number;
  readonly pendingTokens: number;
  /** Shared rows that the slot gets: whole ones, and one more when the adopted slot ends inside one. */
  readonly rows: number;
  /** Slot to adopt, or -1, and how many of the rows it has. */
  readonly adoptedSlot: number;
  readonly adoptedRows: number;
  /** Row from which the tokens behind those are copied, or -1, and slots whose queued work may still write it. */
  readonly copiedId: number;
  readonly writers: readonly number[];
  /** Pages of the rows to have that running sequences use already. */
  readonly usedPages: number;
  /** Pages in no sequence's use that must stay while they are copied from. */
  readonly sourcePages: number;
  /** What was kept at the end of the prompt. */
  readonly keptValue: unknown;
}

const noSlots: readonly number[] = [];

const nothing: Plan = {
  hit: undefined, tokens: 0, pendingTokens: 0, rows: 0, adoptedSlot: -1, adoptedRows: 0, copiedId: -1,
  writers: noSlots, usedPages: 0, sourcePages: 0,
  keptValue: undefined,
};

interface Copy extends TailCopy {
  /** Slots that a queued copy reads, and slots whose work it waits for. */
  readonly usedSlots: readonly number[];
}

const noCopy: Copy = { source: -1, id: -1, tokens: 0, stream: undefined, usedSlots: noSlots };

export class Admission {
  readonly #memory: SlotMemory;
  readonly #supply: RowSupply;
  readonly #cached: CachedRows;
  readonly #sharing: RowSharing;
  readonly #side: SideTensors;
  readonly #leaves = new Int32Array(candidates);
  #ids = new Int32Array(64);

  constructor(memory: SlotMemory, supply: RowSupply, cached: CachedRows, sharing: RowSharing, side: SideTensors) {
    this.#memory = memory;
    this.#supply = supply;
    this.#cached = cached;
    this.#sharing = sharing;
    this.#side = side;
  }

  /**
   * Commits have been flushed. Throws KV_NO_FREE_SLOT, for which `retiringSlots` is told, KV_OUT_OF_PAGES,
   * KV_LENGTH_OUT_OF_RANGE or what the driver throws.
   */
  admit(request: AdmissionRequest, retiringSlots: number): Admitted {
    const { prompt } = request;
    for (let maxTokens: number | undefined, hasReplaced = false; ; ) {
      const plan = prompt?.canRead === true ? this.#plan(this.#match(prompt, maxTokens, request.needs)) : nothing;
      try {
        return this.#admitAs(plan, request, retiringSlots);
      } catch (error) {
        if (!isKvError(error, 'KV_OUT_OF_PAGES') || error.details.sideTensor !== undefined) throw error;
        if (!hasReplaced && this.#hasIdleRows(plan)) { // running sequences may have the same in rows of their own
          hasReplaced = true;
          this.#cached.replaceDuplicates();
        } else if (plan.copiedId >= 0) {
          // The row that is copied from cannot make room meanwhile: a prompt that fits an empty cache does without it.
          maxTokens = this.#memory.arithmetic.tokensIn(plan.rows);
        } else {
          throw error;
        }
      }
    }
  }

  /**
   * Gives an idle slot to a copy of the sequence in `from`, which no prepared batch computes on. Commits have been
   * flushed. On failure nothing has changed. Throws KV_NO_FREE_SLOT, for which `retiringSlots` is told, KV_SLOT_BUSY,
   * or what the driver throws.
   */
  fork(from: number, retiringSlots: number): Admitted {
    const { native, slots, windows, background } = this.#memory;
    const { registry, choice } = this.#cached;
    const length = slots.length[from]!;
    if (!slots.hasRoom(from, length) || windows?.isMapped(from, length, length) === false) { // it has lost rows
      throw createError('KV_SLOT_BUSY', { slot: from, operation: 'fork', holder: 'the quarantine' });
    }
    const slot = slots.canLease(false) ? choice.forSharedRows() : -1;
    if (slot < 0) throw createError('KV_NO_FREE_SLOT', { slots: slots.sequences, retiringSlots });
    if (this.#side.everything > 0) this.#side.checkFork(from);
    this.#cached.vacate(slot, 0);
    native.assign(slot, slots.tenantOf(from));
    registry.start(slot);
    try {
      if (this.#side.everything > 0) this.#side.fork(from, slot, slots.tenantOf(from));
      if (windows !== undefined) {
        this.#supply.withRoom(slot, windows.pagesPerRow, () => { windows.fork(from, slot); });
      }
      slots.lease(slot, this.#sharing.fork(from, slot));
    } catch (error) {
      background.attempt(() => windows?.vacate(slot));
      this.#side.retire(slot);
      registry.stop(slot);
      background.attempt(() => this.#cached.vacate(slot, 0));
      throw error;
    }
    const cachedTokens = slots.length[slot]!;
    return {
      slot, cachedTokens, cachedBy: { adoptedTokens: 0, aliasedTokens: cachedTokens, copiedTokens: 0 },
      pendingTokens: 0, keptValue: undefined,
    };
  }

  /** What is cached of the prompt in K, V and every side tensor that the sequence carries. */
  #match({ domain, text }: Prompt, maxTokens: number | undefined, needs: number): PrefixHit {
    const hit = this.#cached.index.match(domain, text, maxTokens);
    if (needs === 0) return hit;
    const covered = this.#side.covered(hit.node, hit.tokens, needs);
    if (covered < hit.tokens) hit.limitTo(covered);
    return hit;
  }

  #admitAs(plan: Plan, request: AdmissionRequest, retiringSlots: number): Admitted {
    const { layout, slots, news } = this.#memory;
    const { registry } = this.#cached;
    const { promptTokens, isEarmarked, needs } = request;
    if (needs !== 0) this.#side.checkAdmission(sideRequest(plan, request, plan.hit?.node ?? -1));
    const promptRows = layout.rowsFor(promptTokens);
    const earmarkedRows = isEarmarked ? promptRows : 0;
    if (plan.tokens === 0 && layout.pagesFor(earmarkedRows) > news[cacheNews.availablePages]!) {
      this.#evictWholeText(promptRows);
    }
    const slot = plan.adoptedSlot >= 0 ? plan.adoptedSlot : this.#choose(plan, promptRows, retiringSlots);

    // What is ready maps nothing behind the match.
    const isReady = slots.foreignRow[slot] === noForeignRow && plan.adoptedRows === plan.rows &&
      registry.named[slot] === plan.rows;
    const cachedRows = plan.tokens === 0 ? 0 : layout.rowsFor(plan.tokens);
    const neededRows = Math.max(cachedRows, earmarkedRows);
    const earmarkedTokens = isEarmarked ? promptTokens : 0;
    let pages = layout.pagesFor(neededRows) - plan.usedPages + plan.sourcePages
      + (this.#memory.windows?.pagesOfPrompt(earmarkedTokens) ?? 0);
    if (pages > 0 && !this.#supply.canObtain(pages)) {
      const { withheld } = this.#cached;
      if (withheld.isAny && plan.hit !== undefined) pages -= withheld.idlePagesIn(this.#ids, plan.hit);
      this.#supply.checkObtainable(pages, Math.ceil(pages / layout.pagesPerRow));
    }

    if (!isReady) this.#cached.vacate(slot, plan.adoptedRows);
    else this.#cached.choice.remove(slot);
    this.#attach(slot, plan, request, cachedRows, earmarkedRows);
    return {
      slot, cachedTokens: plan.tokens, cachedBy: this.#cachedBy(plan), pendingTokens: plan.pendingTokens,
      keptValue: plan.keptValue,
    };
  }

  #plan(hit: PrefixHit): Plan {
    const { registry: { numbers }, choice } = this.#cached;
    const { tokens, wholeRows, tailRow, isTailWhole, pendingTokens, value } = hit;
    if (tokens === 0) return { ...nothing, hit, pendingTokens };
    if (this.#ids.length < wholeRows) this.#ids = new Int32Array(2 * wholeRows);
    hit.fill(this.#ids);
    const { pagesPerRow } = this.#memory.layout;
    const sourcePages = tailRow >= 0 && numbers.users[tailRow] === 0 ? pagesPerRow : 0;
    let usedPages = 0; // those of its start, as a rule
    for (let row = 0; row < wholeRows; row += 1) if (numbers.users[this.#ids[row]!]! > 0) usedPages += pagesPerRow;
    const plan: Plan = { // with every field: an object that grows while it is copied is slow
      hit, tokens, pendingTokens, rows: wholeRows, adoptedSlot: -1, adoptedRows: 0, copiedId: tailRow,
      writers: noSlots, usedPages, sourcePages, keptValue: value,
    };
    // A sequence that adopts a row that is not full writes on in it, so nothing may lie behind the match there.
    if (tailRow >= 0 && isTailWhole && numbers.mappers[tailRow] === 1) {
      const slot = choice.freeEndingIn(tailRow);
      const rows = wholeRows + 1;
      if (slot >= 0) return { ...plan, rows, adoptedSlot: slot, adoptedRows: rows, copiedId: -1, sourcePages: 0 };
    }
    // A copy cannot be put behind a step of the engine: what it may still be writing is not found yet.
    const writers = tailRow < 0 ? noSlots : this.#sharing.writersOf(tailRow);
    if (writers.some((writer) => this.#memory.fences.writtenStep(writer) >= 0)) {
      hit.limitTo(this.#memory.arithmetic.tokensIn(wholeRows));
      return this.#plan(hit);
    }
    const { slot: adoptedSlot, rows: adoptedRows } = choice.forRows(this.#ids, wholeRows);
    return { ...plan, adoptedSlot, adoptedRows, writers };
  }

  #hasIdleRows({ rows, usedPages }: Plan): boolean {
    return usedPages < rows * this.#memory.layout.pagesPerRow;
  }

  /** An idle slot for what no slot has ready. */
  #choose({ rows }: Plan, promptRows: number, retiringSlots: number): number {
    const { choice } = this.#cached;
    const slot = rows === 0 ? choice.forText(promptRows) : choice.forSharedRows();
    if (slot >= 0) return slot;
    throw createError('KV_NO_FREE_SLOT', { slots: this.#memory.slots.sequences, retiringSlots });
  }

  /**
   * Gives the slot what the plan says, and sets the prompt's pages aside. When that fails, the slot is idle again as it
   * was.
   */
  #attach(slot: number, plan: Plan, request: AdmissionRequest, cachedRows: number, earmarkedRows: number): void {
    const { slots, background } = this.#memory;
    const { promptTokens, isEarmarked, tenant, prompt, needs, stream, isTransfer } = request;
    const { registry, tokens, index } = this.#cached;
    let path: PrefixPath | undefined;
    let isHeld = false;
    try {
      const ids = registry.idsOf(slot);
      path = this.#open(ids, plan, prompt, isTransfer);
      registry.start(slot, plan.rows); // before room is made, which leaves alone what a sequence uses
      isHeld = plan.copiedId >= 0;
      if (isHeld) registry.hold(plan.copiedId);
      if (needs !== 0) {
        this.#side.admit(slot, sideRequest(plan, request, path?.node ?? -1));
      }
      const queue = this.#memory.fences.setStream(slot, stream);
      if (path !== undefined && plan.rows > 0) this.#sharing.orderBehindWriters(slot, queue, ids, plan.rows);
      const copy = this.#copyFor(slot, queue, plan);
      this.#supply.admit(slot, tenant, {
        ids, from: plan.adoptedRows, to: plan.rows, copy, rows: copy.tokens > 0 ? cachedRows : 0,
        earmarkedRows, earmarkedTokens: isEarmarked ? promptTokens : 0,
      });
      if (copy.stream !== undefined) this.#sharing.hasQueuedCopy(slot, copy.usedSlots, copy.stream);
    } catch (error) {
      if (needs !== 0) this.#side.retire(slot);
      registry.leave(slot, plan.adoptedRows);
      registry.unwrite(slot);
      registry.stop(slot);
      this.#cached.list(slot, plan.adoptedRows);
      if (path !== undefined) index.release(path);
      background.attempt(() => {
        this.#cached.endDropped();
      });
      throw error;
    } finally {
      if (isHeld) registry.letGo(plan.copiedId);
    }
    slots.lease(slot, {
      tokens: plan.tokens, earmarkedTokens: isEarmarked ? promptTokens : 0, tenant, sharedTail: sharedTails.none,
      isTransfer,
    });
    if (path === undefined || prompt === undefined) return;
    tokens.open(slot, { path, buffer: prompt.text, count: prompt.text.length });
    if (this.#cached.hasDropped) background.attempt(() => { this.#cached.endDropped(); });
  }

  /** Opens the path of the prompt, whose rows are `ids` from here on. */
  #open(ids: Int32Array, plan: Plan, prompt: Prompt | undefined, isTransfer: boolean): PrefixPath | undefined {
    if (prompt === undefined) return undefined;
    const { index } = this.#cached;
    const { domain, text, canWrite, priority } = prompt;
    const hit = plan.hit ?? index.match(domain, text, 0);
    return index.open(hit, {
      rows: ids, isStored: canWrite, level: priority, isTransfer, promptTokens: text.length, announced: text,
    });
  }

  /**
   * How the matching tokens of a row that goes on differently are copied: queued on `stream` behind the work that is
   * queued on the row, which is ordered for it, or at once, when that work is over.
   */
  #copyFor(slot: number, stream: bigint | undefined, { tokens, copiedId, writers }: Plan): Copy {
    if (copiedId < 0) return noCopy;
    const fences = this.#memory.fences;
    const source = writers.length === 0 ? -1 : this.#sharing.sourceOf(copiedId, slot);
    if (source < 0 || stream === undefined) {
      for (const writer of writers) fences.waitWritten(writer, 'copy from');
      return { source: -1, id: copiedId, tokens, stream: undefined, usedSlots: [] };
    }
    fences.ensure(stream);
    for (const writer of writers) fences.order(stream, writer);
    return { source, id: copiedId, tokens, stream, usedSlots: [source, ...writers] };
  }

  #cachedBy({ tokens, rows, adoptedRows }: Plan): CachedBy {
    if (tokens === 0) return { adoptedTokens: 0, aliasedTokens: 0, copiedTokens: 0 };
    const { arithmetic } = this.#memory;
    const adoptedTokens = adoptedRows === 0 ? 0 : Math.min(tokens, arithmetic.tokensIn(adoptedRows));
    const aliasedTokens = adoptedRows === rows ? 0 : Math.min(tokens, arithmetic.tokensIn(rows)) - adoptedTokens;
    return { adoptedTokens, aliasedTokens, copiedTokens: tokens - adoptedTokens - aliasedTokens };
  }

  /**
   * Which cached text makes way for a new one as a whole, so that the new one gets its slot with the rows mapped there:
   * the eviction policy names the texts that may go, and of those the one is chosen whose rows fit the prompt. Where a
   * text of its own must displace cached ones, those go first that idle slots hold: it then gets one with their
   * rows.
   */
  #evictWholeText(promptRows: number): void {
    if (!this.#memory.slots.hasFree()) return;
    const missing = this.#missingPages(promptRows);
    if (missing <= 0) return;
    const leaf = this.#bestLeaf(promptRows, missing);
    if (leaf < 0) {
      this.#cached.evictInPlace(missing);
      return;
    }
    this.#cached.index.evictLeaf(leaf);
    this.#cached.endDropped();
    const left = this.#missingPages(promptRows);
    if (left > 0) this.#cached.evictInPlace(left);
  }

  /**
   * Pages that the prompt lacks beside the fullest slot without content, and that only eviction gives; 0 or less: none,
   * or not even so.
   */
  #missingPages(promptRows: number): number {
    const { layout, slots } = this.#memory;
    const fullest = this.#cached.choice.fullestBlank();
    return this.#supply.missingWithoutEviction(
      () => layout.pagesBetween(fullest < 0 ? 0 : slots.rows[fullest]!, promptRows), fullest);
  }

  /** The leaf whose slot has the fewest rows that are enough, or else the most; -1: none is worth it. */
  #bestLeaf(promptRows: number, missingPages: number): number {
    const { index, choice } = this.#cached;
    const { slots, layout } = this.#memory;
    const missingRows = Math.ceil(missingPages / layout.pagesPerRow);
    const fullest = choice.fullestBlank();
    const blankRows = fullest < 0 ? 0 : slots.rows[fullest]!;
    const count = index.victims(this.#leaves);
    let best = -1;
    let bestRows = 0;
    for (let at = 0; at < count; at += 1) {
      const leaf = this.#leaves[at]!;
      const rows = this.#rowsOfText(leaf);
      const gained = Math.min(rows, promptRows) - blankRows;
      if (gained <= 0 || rows - missingRows > excessShare * gained) continue;
      if (best >= 0 && compareFit(rows, bestRows, promptRows) >= 0) continue;
      best = leaf;
      bestRows = rows;
    }
    return best;
  }

  /**
   * Rows of an idle slot that hold this text and no other, from the first on; 0: there is none, or other slots map some
   * of them.
   */
  #rowsOfText(leaf: number): number {
    const { index, choice, registry } = this.#cached;
    const lastRow = index.lastRowOfWhole(leaf);
    const slot = lastRow < 0 ? -1 : choice.freeEndingIn(lastRow);
    if (slot < 0 || registry.numbers.mappers[registry.idsOf(slot)[0]!]! > 1) return 0;
    return this.#memory.slots.rows[slot]!;
  }
}

/** What a sequence begins with in its side tensors, where its text ends in `node`. */
function sideRequest(
  { tokens }: Plan, { promptTokens, isEarmarked, needs, tenant }: AdmissionRequest, node: number,
): SideRequest {
  return { node, tokens, earmarkedTokens: isEarmarked ? promptTokens : 0, needs, tenant };
}

// SlotLeases: which sequence has which slot. Leases idle slots to new sequences and forks, and retires released ones
// behind their fences. A slot changes hands only when it is idle: released, in no prepared batch and past its fence.
// Every call that decides hears first what has happened since: rows that the mapper mapped, fences that passed, tokens
// that were committed, failures that no call reported.

export class SlotLeases {
  readonly #memory: SlotMemory;
  readonly #admission: Admission;
  readonly #supply: RowSupply;
  readonly #cached: CachedRows;
  readonly #sharing: RowSharing;
  /** Released slots that are not idle yet. */
  readonly #retiring = new Set<number>();
  #acquired = 0;
  #released = 0;

  constructor(memory: SlotMemory, admission: Admission, supply: RowSupply, cached: CachedRows, sharing: RowSharing) {
    this.#memory = memory;
    this.#admission = admission;
    this.#supply = supply;
    this.#cached = cached;
    this.#sharing = sharing;
  }

  get acquired(): number {
    return this.#acquired;
  }

  get released(): number {
    return this.#released;
  }

  /**
   * Slots that wait for queued work before they are idle, or before they are rid of rows that they gave up or that are
   * behind a window.
   */
  get waiting(): number {
    return this.#retiring.size + this.#cached.registry.waiting + (this.#memory.windows?.waiting ?? 0);
  }

  /** Hears what has happened since the last call. Never throws: what fails is reported in the background. */
  synchronize(): void {
    const { background } = this.#memory;
    this.#memory.synchronize();
    if (this.waiting > 0) background.attempt(() => { this.pollRetirement(); });
    if (this.#cached.hasNews) background.attempt(() => { this.#cached.flushCommits(); });
    this.#cached.tokens.endDropped();
  }

  /** Leases a slot. On failure nothing has changed. Throws as `Admission.admit`. */
  acquire(request: AdmissionRequest): Admitted {
    this.#memory.pool.driver.checkAlive();
    this.synchronize();
    const { slots } = this.#memory;
    if (!slots.canLease(request.isTransfer)) {
      throw createError('KV_NO_FREE_SLOT', { slots: slots.sequences, retiringSlots: this.#retiring.size });
    }
    const admitted = this.#admit(request);
    this.#acquired += 1;
    return admitted;
  }

  /**
   * Leases a slot to a copy of the sequence in `from`, which no prepared batch computes on. On failure nothing has
   * changed.
   */
  fork(from: number): Admitted {
    this.#memory.pool.driver.checkAlive();
    this.synchronize();
    const admitted = this.#admission.fork(from, this.#retiring.size);
    this.#acquired += 1;
    return admitted;
  }

  /**
   * Retires a slot behind the batch that computes on it, the fences of its commits, and `fence`. When recording the
   * fence fails, nothing has changed.
   */
  release(slot: number, fence = new GivenFence()): void {
    const { native, pool, slots, windows, views, background } = this.#memory;
    this.synchronize();
    this.#memory.fences.release(slot, fence);
    views.revoke(slot);
    native.cancel(slot);
    native.earmark(slot, 0);
    windows?.release(slot);
    slots.retire(slot);
    this.#cached.tokens.finish(slot);
    this.#released += 1;
    if (!this.#isBusy(slot)) {
      this.#becomeIdle(slot);
    } else {
      this.#retiring.add(slot);
      if (fence.isNone) background.attempt(() => this.pollRetirement()); // what its commits named may be over
      pool.capacity.raise(); // what was set aside for it, and fences to ask for
    }
    this.#supply.keepEager();
  }

  /**
   * Drops the last tokens of the sequence in a slot, which no prepared batch computes on: `tokens` stay. Never throws.
   */
  truncate(slot: number, tokens: number): void {
    const { pool, background } = this.#memory;
    background.attempt(() => this.#sharing.truncate(slot, tokens));
    pool.capacity.raise();
  }

  /**
   * Slots whose fence has passed become idle, and rows given up behind one are unmapped. Throws the first failure of
   * polling or unmapping, after all were tried; what failed stays behind its fence.
   */
  pollRetirement(): void {
    if (this.waiting === 0) return;
    this.#cached.tokens.pollCopies();
    try {
      this.#memory.fences.poll();
    } finally {
      for (const slot of this.#retiring) {
        if (this.#isBusy(slot)) continue;
        this.#retiring.delete(slot);
        this.#becomeIdle(slot);
      }
      try {
        this.#memory.windows?.slide();
      } finally {
        this.#cached.registry.unmapGivenUp();
      }
    }
  }

  /**
   * Before a refusal for want of pages stands, all caches of the pool ask their fences. Throws `error` unless one has
   * passed that pages were behind.
   */
  checkRetry(error: unknown): void {
    if (!isKvError(error, 'KV_OUT_OF_PAGES') || !this.#memory.pool.pollFences()) throw error;
  }

  #admit(request: AdmissionRequest): Admitted {
    try {
      return this.#admission.admit(request, this.#retiring.size);
    } catch (error) {
      this.checkRetry(error);
      return this.#admission.admit(request, this.#retiring.size);
    }
  }

  /** Asks every fence. True when pages may be free that were not. */
  pollFences(): boolean {
    const { background } = this.#memory;
    const { passes } = this.#memory.fences;
    const waiting = this.waiting;
    background.attempt(() => this.#memory.fences.poll());
    background.attempt(() => this.pollRetirement());
    return this.#memory.fences.passes > passes || this.waiting < waiting;
  }

  /** Whether a prepared batch or queued work may still use the slot, or rows of its side tensors are on their way. */
  #isBusy(slot: number): boolean {
    return this.#memory.slots.isComputing(slot) || this.#memory.fences.isPending(slot)
      || this.#cached.tokens.isArriving(slot);
  }

  #becomeIdle(slot: number): void {
    const { pool, slots, windows, background } = this.#memory;
    slots.becomeIdle(slot);
    background.attempt(() => this.#cached.retire(slot));
    background.attempt(() => windows?.vacate(slot));
    this.#cached.tokens.retire(slot);
    background.attempt(() => {
      this.#supply.keepToLimit();
      pool.keepToBudget();
    });
    pool.capacity.raise();
  }
}
