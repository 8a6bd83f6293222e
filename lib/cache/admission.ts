// Admission: how a request gets a slot, and in it as much of its prompt as is cached. Cheapest first: an idle slot that holds
// the start of the prompt already is adopted; else whole groups of rows are aliased; the tokens of the last, partly matching
// group are copied. What cannot be had is found out before anything changes.
//
// Owns no state. On failure nothing has changed but, where the driver refused, which idle slot has what mapped.

import { createError, isKvError } from '../base/errors.js';
import { cacheNews } from '../device/native.js';
import type { PrefixHit } from '../prefix/prefix-hit.js';
import type { PrefixPath } from '../prefix/prefix-path.js';
import type { CachedRows } from './cached-rows.js';
import type { Admitted, AdmissionRequest, CachedBy, Prompt } from './admission-request.js';
import type { SideTensors } from '../side/side-tensors.js';
import type { RowSharing } from './row-sharing.js';
import type { RowSupply } from './row-supply.js';
import type { SlotFences } from './slot-fences.js';
import type { SlotMemory } from './slot-memory.js';
import { noForeignRow, sharedTails } from './slots.js';

/** What is cached of a prompt, and the cheapest way to it. */
interface Plan {
  /** What the index found; undefined: it was not asked. */
  readonly hit: PrefixHit | undefined;
  readonly tokens: number;
  readonly pendingTokens: number;
  /** Shared groups that the slot gets: whole ones, and one more when the adopted slot ends inside one. */
  readonly groups: number;
  /** Slot to adopt, or -1, and how many of the groups it has. */
  readonly adoptedSlot: number;
  readonly adoptedGroups: number;
  /** Group from which the tokens behind the shared groups are copied, or -1. */
  readonly copiedId: number;
  /** Pages of the groups to have that running sequences use already. */
  readonly usedPages: number;
  /** Pages in no sequence's use that must stay while they are copied from. */
  readonly sourcePages: number;
  /** What was kept at the end of the prompt. */
  readonly keptValue: unknown;
}

const nothing: Plan = {
  hit: undefined, tokens: 0, pendingTokens: 0, groups: 0, adoptedSlot: -1, adoptedGroups: 0, copiedId: -1, usedPages: 0, sourcePages: 0,
  keptValue: undefined,
};

interface Copy {
  readonly source: () => number;
  readonly id: number;
  readonly tokens: number;
  /** On which it is queued; undefined: it is done when the slot is admitted. */
  readonly stream: bigint | undefined;
  /** Slots that a queued copy reads, and slots whose work it waits for. */
  readonly usedSlots: readonly number[];
}

const noCopy: Copy = { source: () => -1, id: -1, tokens: 0, stream: undefined, usedSlots: [] };

export class Admission {
  readonly #memory: SlotMemory;
  readonly #supply: RowSupply;
  readonly #cached: CachedRows;
  readonly #sharing: RowSharing;
  readonly #fences: SlotFences;
  readonly #side: SideTensors;
  #ids = new Int32Array(64);

  constructor(memory: SlotMemory, supply: RowSupply, cached: CachedRows, sharing: RowSharing, fences: SlotFences, side: SideTensors) {
    this.#memory = memory;
    this.#supply = supply;
    this.#cached = cached;
    this.#sharing = sharing;
    this.#fences = fences;
    this.#side = side;
  }

  /**
   * Commits have been flushed. Throws KV_NO_FREE_SLOT, for which `retiringSlots` is told, KV_OUT_OF_PAGES, KV_LENGTH_OUT_OF_RANGE or
   * what the driver throws.
   */
  admit(request: AdmissionRequest, retiringSlots: number): Admitted {
    const { prompt } = request;
    for (let maxTokens: number | undefined, hasReplaced = false; ; ) {
      const plan = prompt?.canRead === true ? this.#plan(this.#match(prompt, maxTokens, request.needs)) : nothing;
      try {
        return this.#admitAs(plan, request, retiringSlots);
      } catch (error) {
        if (!isKvError(error, 'KV_OUT_OF_PAGES')) throw error;
        if (!hasReplaced && this.#hasIdleGroups(plan)) { // running sequences may have the same in rows of their own
          hasReplaced = true;
          this.#cached.replaceDuplicates();
        } else if (plan.copiedId >= 0) {
          // The row that is copied from cannot make room meanwhile: a prompt that fits an empty cache does without it.
          maxTokens = this.#memory.groups.tokensIn(plan.groups);
        } else {
          throw error;
        }
      }
    }
  }

  /** What is cached of the prompt in K, V and every side tensor that the sequence carries. */
  #match({ domain, text }: Prompt, maxTokens: number | undefined, needs: number): PrefixHit {
    const hit = this.#cached.index.match(domain, text, maxTokens);
    const covered = this.#side.covered(hit.node, hit.tokens, needs);
    if (covered < hit.tokens) hit.limitTo(covered);
    return hit;
  }

  #admitAs(plan: Plan, request: AdmissionRequest, retiringSlots: number): Admitted {
    const { layout, slots } = this.#memory;
    const { promptTokens, isPromised } = request;
    const promptRows = layout.rowsFor(promptTokens);
    if (isPromised && plan.tokens === 0) this.#evictFor(promptRows);
    const slot = plan.adoptedSlot >= 0 ? plan.adoptedSlot : this.#choose(plan, promptRows, retiringSlots);

    // What is ready may lack rows of its last group.
    const isReady = slots.foreignRow[slot] === noForeignRow && plan.adoptedGroups === plan.groups &&
      this.#cached.registry.namedGroups(slot) === plan.groups && (plan.groups > 0 || this.#cached.contentRows(slot) === 0);
    const neededRows = layout.rowsFor(Math.max(plan.tokens, isPromised ? promptTokens : 0));
    let pages = layout.pagesFor(neededRows) - plan.usedPages + plan.sourcePages;
    const { withheld } = this.#cached;
    if (withheld.isAny && plan.hit !== undefined && pages > 0 && !this.#supply.canObtain(pages)) {
      pages -= withheld.idlePagesIn(this.#ids, plan.hit, neededRows);
    }
    this.#supply.checkObtainable(pages, Math.ceil(pages / layout.pagesPerRow));

    if (!isReady) this.#cached.vacate(slot, plan.adoptedGroups);
    else this.#cached.take(slot);
    this.#attach(slot, plan, request);
    return {
      slot, cachedTokens: plan.tokens, cachedBy: this.#cachedBy(plan), pendingTokens: plan.pendingTokens, keptValue: plan.keptValue,
    };
  }

  /** Where a text of its own must displace cached ones, those go first that idle slots hold: it then gets one with their rows. */
  #evictFor(promptRows: number): void {
    const { layout, slots, news } = this.#memory;
    if (!slots.hasFree()) return;
    const fullest = this.#cached.choice.fullestBlank();
    const lackingPages = (): number => layout.pagesFor(promptRows) - layout.pagesFor(fullest < 0 ? 0 : Math.min(promptRows, slots.rows[fullest]!));
    if (lackingPages() <= news[cacheNews.availablePages]!) return;
    const missing = this.#supply.missingWithoutEviction(lackingPages, fullest);
    if (missing > 0) this.#cached.evictInPlace(missing);
  }

  #plan(hit: PrefixHit): Plan {
    const { registry, choice } = this.#cached;
    const { tokens, wholeRows, tailRow, isTailWhole, pendingTokens, value } = hit;
    if (tokens === 0) return { ...nothing, hit, pendingTokens };
    if (this.#ids.length < wholeRows) this.#ids = new Int32Array(2 * wholeRows);
    hit.fill(this.#ids);
    const sourcePages = tailRow >= 0 && registry.usersOf(tailRow) === 0 ? registry.pagesOf(tailRow) : 0;
    const usedPages = this.#usedPages(wholeRows);
    const plan = { hit, tokens, pendingTokens, groups: wholeRows, copiedId: tailRow, usedPages, sourcePages, keptValue: value };
    // A sequence that adopts a row that is not full writes on in it, so nothing may lie behind the match there.
    if (tailRow >= 0 && isTailWhole && registry.mappersOf(tailRow) === 1) {
      const slot = choice.freeEndingIn(tailRow);
      const groups = wholeRows + 1;
      if (slot >= 0) return { ...plan, groups, adoptedSlot: slot, adoptedGroups: groups, copiedId: -1, sourcePages: 0 };
    }
    // A copy cannot be put behind a step of the engine: what it may still be writing is not found yet.
    if (tailRow >= 0 && this.#sharing.copies.writersOf(tailRow).some((writer) => this.#fences.writtenStep(writer) >= 0)) {
      hit.limitTo(this.#memory.groups.tokensIn(wholeRows));
      return this.#plan(hit);
    }
    let adoptedGroups = wholeRows;
    let adoptedSlot = -1;
    for (; adoptedGroups > 0 && adoptedSlot < 0; adoptedGroups -= adoptedSlot < 0 ? 1 : 0) adoptedSlot = choice.freeEndingIn(this.#ids[adoptedGroups - 1]!);
    const longer = this.#longerSlot(wholeRows, this.#rowsOf(wholeRows) - this.#rowsOf(adoptedGroups));
    return longer < 0 ? { ...plan, adoptedSlot, adoptedGroups } : { ...plan, adoptedSlot: longer, adoptedGroups: wholeRows };
  }

  /**
   * An idle slot that maps all these groups of the match and goes on with another text, where unmapping that, which stays cached, is less
   * work than mapping the `lackingRows` rows of the match that the next best slot lacks; or -1.
   */
  #longerSlot(groups: number, lackingRows: number): number {
    const { registry, choice } = this.#cached;
    const { slots } = this.#memory;
    let longer = -1;
    let fewest = lackingRows + this.#rowsOf(groups);
    if (lackingRows === 0) return longer;
    for (const slot of registry.slotsOf(this.#ids[groups - 1]!)) {
      if (!choice.has(slot) || !slots.isFree(slot) || slots.rows[slot]! >= fewest) continue;
      longer = slot;
      fewest = slots.rows[slot]!;
    }
    return longer;
  }

  #hasIdleGroups({ groups, usedPages }: Plan): boolean {
    return groups > 0 && usedPages < this.#memory.layout.pagesFor(this.#rowsOf(groups));
  }

  /** Of the first `groups` groups of the match, pages that running sequences need: those of its start, as a rule. */
  #usedPages(groups: number): number {
    return this.#cached.pagesInUse(this.#ids, groups);
  }

  /** An idle slot for what no slot has ready. */
  #choose({ groups }: Plan, promptRows: number, retiringSlots: number): number {
    const { choice } = this.#cached;
    const slot = groups === 0 ? choice.forText(promptRows) : choice.forSharedRows();
    if (slot >= 0) return slot;
    throw createError('KV_NO_FREE_SLOT', { slots: this.#memory.slots.sequences, retiringSlots });
  }

  /** Gives the slot what the plan says, and sets the prompt's pages aside. When that fails, the slot is idle again as it was. */
  #attach(slot: number, plan: Plan, { promptTokens, isPromised, tenant, prompt, needs, stream, isTransfer }: AdmissionRequest): void {
    const { layout, slots, late } = this.#memory;
    const { registry, tokens, index } = this.#cached;
    let path: PrefixPath | undefined;
    let isBorrowing = false;
    try {
      path = this.#open(slot, plan, prompt, isTransfer);
      registry.start(slot);
      registry.join(slot, plan.groups); // before room is made, which leaves alone what a sequence uses
      isBorrowing = plan.copiedId >= 0;
      if (isBorrowing) registry.borrow(plan.copiedId);
      this.#side.admit(slot, { node: path?.node ?? -1, tokens: plan.tokens, promisedTokens: isPromised ? promptTokens : 0, needs, tenant });
      this.#fences.setStream(slot, stream);
      if (path !== undefined) this.#orderBehindWriters(slot, plan.groups);
      const copy = this.#copyFor(slot, plan);
      this.#supply.admit(slot, tenant, {
        ids: registry.idsOf(slot), from: plan.adoptedGroups, to: plan.groups, sharedRows: registry.rowsOfLast(slot), copy,
        rows: copy.tokens > 0 ? layout.rowsFor(plan.tokens) : 0, promisedRows: isPromised ? layout.rowsFor(promptTokens) : 0,
      });
      if (copy.tokens > 0) registry.hasCopied(plan.copiedId, slot, plan.tokens);
      if (copy.stream !== undefined) this.#sharing.copies.hasQueuedCopy(slot, copy.usedSlots, copy.stream);
    } catch (error) {
      this.#side.retire(slot, 0);
      registry.leave(slot, plan.adoptedGroups);
      registry.stop(slot);
      this.#cached.list(slot, plan.adoptedGroups);
      if (path !== undefined) index.release(path);
      late.attempt(() => {
        this.#cached.settle();
      });
      throw error;
    } finally {
      if (isBorrowing) registry.giveBack(plan.copiedId);
    }
    slots.lease(slot, { tokens: plan.tokens, promisedTokens: isPromised ? promptTokens : 0, tenant, sharedTail: sharedTails.none, isTransfer });
    if (path === undefined || prompt === undefined) return;
    tokens.open(slot, { path, buffer: prompt.text, count: prompt.text.length });
    if (prompt.canWrite) index.announce(path, prompt.text, prompt.text.length);
    late.attempt(() => {
      this.#cached.settle();
    });
  }

  #open(slot: number, plan: Plan, prompt: Prompt | undefined, isTransfer: boolean): PrefixPath | undefined {
    if (prompt === undefined) return undefined;
    const { index, registry } = this.#cached;
    const { domain, text, canWrite, priority } = prompt;
    const hit = plan.hit ?? index.match(domain, text, 0);
    return index.open(hit, { rows: registry.idsOf(slot), isStored: canWrite, level: priority, isTransfer, promptTokens: text.length });
  }

  /**
   * How the matching tokens of a group that goes on differently are copied: queued behind the work that is queued on the group, which is
   * ordered for it, or at once, when that work is over.
   */
  #copyFor(slot: number, { tokens, copiedId }: Plan): Copy {
    if (copiedId < 0) return noCopy;
    const { copies } = this.#sharing;
    const fences = this.#fences;
    const rows = this.#memory.layout.rowsFor(tokens);
    const writers = copies.writersOf(copiedId);
    const source = copies.sourceOf(copiedId, slot, rows);
    const stream = fences.streamOf(slot);
    if (writers.length === 0 || source < 0 || stream === undefined) {
      for (const writer of writers) fences.waitWritten(writer, 'copy from');
      return { source: () => this.#cached.registry.slotOf(copiedId, rows), id: copiedId, tokens, stream: undefined, usedSlots: [] };
    }
    fences.ensure(stream);
    for (const writer of writers) fences.order(stream, writer);
    return { source: () => source, id: copiedId, tokens, stream, usedSlots: [source, ...writers] };
  }

  /** What will be queued for the slot runs after work on other streams that may still write what it shares. */
  #orderBehindWriters(slot: number, groups: number): void {
    const { layout, slots } = this.#memory;
    const { registry } = this.#cached;
    const fences = this.#fences;
    const stream = fences.streamOf(slot);
    if (groups === 0 || stream === undefined) return;
    const ids = registry.idsOf(slot);
    for (let other = 0; other < slots.count; other += 1) {
      if (other === slot || !fences.isPendingBeside(other, stream)) continue;
      const isForeign = slots.foreignRow[other]! < groups * layout.groupRows;
      if (isForeign || registry.isSharing(other, ids, groups)) fences.order(stream, other);
    }
  }

  #cachedBy({ tokens, groups, adoptedGroups }: Plan): CachedBy {
    const { groups: arithmetic } = this.#memory;
    const adoptedTokens = Math.min(tokens, arithmetic.tokensIn(adoptedGroups));
    const aliasedTokens = Math.min(tokens, arithmetic.tokensIn(groups)) - adoptedTokens;
    return { adoptedTokens, aliasedTokens, copiedTokens: tokens - adoptedTokens - aliasedTokens };
  }

  #rowsOf(groups: number): number {
    return Math.min(groups * this.#memory.layout.groupRows, this.#memory.layout.maxRows);
  }
}
