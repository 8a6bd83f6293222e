// Admission: how a request gets a slot, and in it as much of its prompt as is cached. Cheapest first: an idle slot that holds
// the start of the prompt already is adopted; else whole groups of rows are aliased; the tokens of the last, partly matching
// group are copied. What cannot be had is found out before anything changes.
//
// Owns no state. On failure nothing has changed but, where the driver refused, which idle slot has what mapped.

import { createError, isKvError } from '../base/errors.js';
import type { PlacementPolicy } from './placement.js';
import type { PrefixHit } from '../prefix/prefix-hit.js';
import type { PrefixIndex } from '../prefix/prefix-index.js';
import type { PrefixPath } from '../prefix/prefix-path.js';
import type { RowArithmetic } from '../layout/row-arithmetic.js';
import type { IdleSlots } from './idle-slots.js';
import type { IdlePrefixes } from './idle-prefixes.js';
import type { Layout } from '../layout/layout.js';
import type { LateErrors } from './late-errors.js';
import type { NativeCache } from '../device/native.js';
import type { PrefixSharing } from './prefix-sharing.js';
import type { CachedBy, Prompt } from './prompt.js';
import type { RowSupply } from './row-supply.js';
import type { SequenceTexts } from './sequence-texts.js';
import type { SharedRows } from './shared-rows.js';
import type { SlotFences } from './slot-fences.js';
import { noForeignRow, type SlotTable } from './slot-table.js';

export interface AdmissionParts {
  readonly native: NativeCache;
  readonly layout: Layout;
  readonly table: SlotTable;
  readonly supply: RowSupply;
  readonly index: PrefixIndex;
  readonly sharing: PrefixSharing;
  readonly idlePrefixes: IdlePrefixes;
  readonly shared: SharedRows;
  readonly texts: SequenceTexts;
  readonly groups: RowArithmetic;
  readonly late: LateErrors;
  readonly fences: SlotFences;
  readonly placement: PlacementPolicy;
}

export interface AdmissionRequest {
  readonly promptTokens: number;
  /** Whether pages for all of them are set aside. */
  readonly isPromised: boolean;
  /** Number of the tenant, for scrubbing. */
  readonly tenant: bigint;
  readonly prompt: Prompt | undefined;
  /** On which the sequence's work will be queued, if that was said. */
  readonly stream: bigint | undefined;
}

export interface Admitted {
  readonly slot: number;
  readonly cachedTokens: number;
  readonly cachedBy: CachedBy;
  /** Tokens of the prompt, from its start, that running sequences have computed or are computing; 0 if no more than cached ones. */
  readonly pendingTokens: number;
  /** What was kept at the end of the prompt; only when all of it is cached. */
  readonly keptValue: unknown;
}

/** What is cached of a prompt, and the cheapest way to it. */
interface Plan {
  /** What the index found; undefined: it was not asked. */
  readonly hit: PrefixHit | undefined;
  readonly tokens: number;
  readonly pendingTokens: number;
  /** Groups to have from others: whole ones, and one more when the adopted slot ends inside one. */
  readonly groups: number;
  /** Slot to adopt, or -1, and how many of the groups it has. */
  readonly adoptedSlot: number;
  readonly adoptedGroups: number;
  /** Group from which the tokens behind the others are copied, or -1. */
  readonly copiedId: number;
  /** Pages of the groups to have that running sequences use already. */
  readonly usedPages: number;
  /** Pages that nobody uses and that are needed while they are copied from. */
  readonly sourcePages: number;
  /** What was kept at the end of the prompt. */
  readonly keptValue: unknown;
}

const nothing: Plan = {
  hit: undefined, tokens: 0, pendingTokens: 0, groups: 0, adoptedSlot: -1, adoptedGroups: 0, copiedId: -1, usedPages: 0, sourcePages: 0,
  keptValue: undefined,
};

export class Admission {
  readonly #parts: AdmissionParts;
  #ids = new Int32Array(64);

  constructor(parts: AdmissionParts) {
    this.#parts = parts;
  }

  /** Throws KV_NO_FREE_SLOT, KV_OUT_OF_PAGES, KV_LENGTH_OUT_OF_RANGE or what the driver throws. */
  admit(request: AdmissionRequest, retiringSlots: number): Admitted {
    const { sharing, idlePrefixes, groups } = this.#parts;
    const { prompt } = request;
    sharing.tell();
    for (let maxTokens: number | undefined, hasReplaced = false; ; ) {
      const plan = prompt?.canRead === true ? this.#plan(this.#parts.index.match(prompt.domain, prompt.text, maxTokens)) : nothing;
      try {
        return this.#admitAs(plan, request, retiringSlots);
      } catch (error) {
        if (!isKvError(error, 'KV_OUT_OF_PAGES')) throw error;
        if (!hasReplaced && this.#hasIdleGroups(plan)) { // running sequences may have the same in rows of their own
          hasReplaced = true;
          idlePrefixes.replaceDuplicates();
        } else if (plan.copiedId >= 0) {
          // The row that is copied from cannot make room meanwhile: a prompt that fits an empty cache does without it.
          maxTokens = groups.tokensIn(plan.groups);
        } else {
          throw error;
        }
      }
    }
  }

  #admitAs(plan: Plan, request: AdmissionRequest, retiringSlots: number): Admitted {
    const { layout, table, supply, idlePrefixes } = this.#parts;
    const { promptTokens, isPromised } = request;
    const promptRows = layout.rowsFor(promptTokens);
    if (isPromised && plan.tokens === 0) this.#evictFor(promptRows);
    const slot = plan.adoptedSlot >= 0 ? plan.adoptedSlot : this.#choose(plan, promptRows, retiringSlots);

    // Rows that are there after aliasing, and those that must be there or set aside in the end. What is ready may lack rows of
    // its last group. Counting stops a mapper that may just have finished a row of the slot: its rows are looked at behind that.
    const isReady = table.foreignRow[slot] === noForeignRow && plan.adoptedGroups === plan.groups &&
      (plan.groups > 0 || idlePrefixes.contentRows(slot) === 0);
    const neededRows = layout.rowsFor(Math.max(plan.tokens, isPromised ? promptTokens : 0));
    const pages = layout.pagesFor(neededRows) - plan.usedPages + plan.sourcePages;
    supply.checkObtainable(pages, Math.ceil(pages / layout.pagesPerRow));
    const aliasedRows = isReady ? table.rows[slot]! : this.#rowsOf(plan.groups);
    const copiedRows = plan.copiedId >= 0 ? layout.rowsFor(plan.tokens) : 0;
    const rows = Math.max(aliasedRows, copiedRows, isPromised ? promptRows : 0);

    this.#parts.native.cancel(slot);
    if (!isReady) idlePrefixes.vacate(slot, plan.adoptedGroups);
    else idlePrefixes.take(slot);
    this.#attach(slot, plan, request, rows > aliasedRows ? rows : 0);
    return {
      slot, cachedTokens: plan.tokens, cachedBy: this.#cachedBy(plan), pendingTokens: plan.pendingTokens, keptValue: plan.keptValue,
    };
  }

  /** Where a text of its own must displace cached ones, those go first that idle slots hold: it then gets one with their rows. */
  #evictFor(promptRows: number): void {
    const { layout, table, supply, idlePrefixes } = this.#parts;
    const { slots, count } = supply.collectFree();
    let largest = -1;
    for (let at = 0; at < count; at += 1) {
      const slot = slots[at]!;
      if (idlePrefixes.contentRows(slot) === 0 && (largest < 0 || table.rows[slot]! > table.rows[largest]!)) largest = slot;
    }
    const missing = count === 0 ? 0 : supply.missingWithoutEviction(() => {
      const rows = largest < 0 ? 0 : Math.min(table.rows[largest]!, promptRows);
      return layout.pagesFor(promptRows) - layout.pagesFor(rows);
    }, largest);
    if (missing > 0) idlePrefixes.evictInPlace(missing);
  }

  #plan(hit: PrefixHit): Plan {
    const { shared, sharing, fences } = this.#parts;
    const { tokens, wholeRows, tailRow, isTailWhole, pendingTokens, value } = hit;
    if (tokens === 0) return { ...nothing, hit, pendingTokens };
    if (this.#ids.length < wholeRows) this.#ids = new Int32Array(2 * wholeRows);
    hit.fill(this.#ids);
    const sourcePages = tailRow >= 0 && shared.usersOf(tailRow) === 0 ? shared.pagesOf(tailRow) : 0;
    const usedPages = this.#usedPages(wholeRows);
    const plan = { hit, tokens, pendingTokens, groups: wholeRows, copiedId: tailRow, usedPages, sourcePages, keptValue: value };
    // Whoever adopts a row that is not full writes on in it, so nothing may lie behind the match there.
    if (tailRow >= 0 && isTailWhole && shared.mappersOf(tailRow) === 1) {
      const slot = this.#freeSlotEndingIn(tailRow);
      const groups = wholeRows + 1;
      if (slot >= 0) return { ...plan, groups, adoptedSlot: slot, adoptedGroups: groups, copiedId: -1, sourcePages: 0 };
    }
    // A copy cannot be put behind a step of the engine: what it may still be writing is not found yet.
    if (tailRow >= 0 && sharing.copies.writersOf(tailRow).some((writer) => fences.writtenStep(writer) >= 0)) {
      hit.limitTo(this.#parts.groups.tokensIn(wholeRows));
      return this.#plan(hit);
    }
    for (let group = wholeRows - 1; group >= 0; group -= 1) {
      const slot = this.#freeSlotEndingIn(this.#ids[group]!);
      if (slot >= 0) return { ...plan, adoptedSlot: slot, adoptedGroups: group + 1 };
    }
    return { ...plan, adoptedSlot: -1, adoptedGroups: 0 };
  }

  #hasIdleGroups({ groups, usedPages }: Plan): boolean {
    return groups > 0 && usedPages < this.#parts.layout.pagesFor(this.#rowsOf(groups));
  }

  /** Of the first `groups` groups of the match, pages that running sequences use: those of its start, as a rule. */
  #usedPages(groups: number): number {
    const { shared } = this.#parts;
    let pages = 0;
    for (let group = 0; group < groups; group += 1) {
      const id = this.#ids[group]!;
      if (shared.usersOf(id) > 0) pages += shared.pagesOf(id);
    }
    return pages;
  }

  #freeSlotEndingIn(id: number): number {
    const slot = this.#parts.idlePrefixes.endingIn(id);
    return slot >= 0 && this.#parts.table.isFree(slot) ? slot : -1;
  }

  /** A slot that nobody will adopt if there is one: for a new text as the placement policy says, for aliases the emptiest. */
  #choose({ groups }: Plan, promptRows: number, retiringSlots: number): number {
    const { table, supply, idlePrefixes } = this.#parts;
    const idle = supply.collectFree();
    if (idle.count === 0) throw createError('KV_NO_FREE_SLOT', { slots: table.count, retiringSlots });
    const { slots, rows, lastUsed } = idle;
    let blanks = 0;
    let oldest = slots[0]!;
    for (let at = 0; at < idle.count; at += 1) {
      const slot = slots[at]!;
      if (lastUsed[slot]! < lastUsed[oldest]!) oldest = slot;
      if (idlePrefixes.contentRows(slot) > 0) continue;
      slots[at] = slots[blanks]!;
      slots[blanks] = slot;
      blanks += 1;
    }
    if (blanks === 0) return oldest;
    idle.count = blanks;
    if (groups === 0) return this.#place(idle, promptRows);
    let emptiest = slots[0]!;
    for (let at = 1; at < blanks; at += 1) if (rows[slots[at]!]! < rows[emptiest]!) emptiest = slots[at]!;
    return emptiest;
  }

  #place(idle: IdleSlots, promptRows: number): number {
    const slot = this.#parts.placement(idle, promptRows);
    if (idle.slots.subarray(0, idle.count).includes(slot)) return slot;
    throw createError('KV_INVALID_OPTION', {
      reason: 'range', owner: 'KvCache', option: 'placement', expected: 'a function that returns one of the candidates',
      received: slot, isReturned: true,
    });
  }

  /** Gives the slot what the plan says, and sets pages aside up to `promisedRows` rows. Undoes what it did when it fails. */
  #attach(slot: number, plan: Plan, { promptTokens, isPromised, tenant, prompt, stream }: AdmissionRequest, rows: number): void {
    const { native, table, supply, idlePrefixes, shared, texts, late, fences } = this.#parts;
    const path = this.#open(slot, plan, prompt);
    shared.start(slot);
    if (plan.copiedId >= 0) shared.borrow(plan.copiedId);
    try {
      native.assign(slot, tenant);
      fences.setStream(slot, stream);
      if (path !== undefined && plan.groups > plan.adoptedGroups) {
        supply.alias(slot, shared.idsOf(slot), plan.adoptedGroups, plan.groups);
        shared.join(slot, plan.groups);
      }
      if (rows > 0) supply.promise(slot, rows);
      if (path !== undefined) this.#orderBehindWriters(slot, plan.groups);
      if (plan.copiedId >= 0) this.#copy(slot, plan);
      if (!isPromised) native.promise(slot, 0);
    } catch (error) {
      this.#undo(slot, plan, path);
      throw error;
    } finally {
      if (plan.copiedId >= 0) shared.giveBack(plan.copiedId);
    }
    table.length[slot] = plan.tokens;
    table.promisedTokens[slot] = isPromised ? promptTokens : 0;
    table.sharedTail[slot] = 0;
    if (path === undefined || prompt === undefined) return;
    texts.open(slot, { path, buffer: prompt.text, tokens: prompt.text.length });
    if (prompt.canWrite) this.#parts.index.announce(path, prompt.text, prompt.text.length);
    late.attempt(() => idlePrefixes.settle());
  }

  #open(slot: number, plan: Plan, prompt: Prompt | undefined): PrefixPath | undefined {
    if (prompt === undefined) return undefined;
    const { index, shared } = this.#parts;
    const { domain, text, canWrite, priority } = prompt;
    const hit = plan.hit ?? index.match(domain, text, 0);
    return index.open(hit, { rows: shared.idsOf(slot), isStored: canWrite, level: priority });
  }

  /** Copies the matching tokens of a group that goes on differently: behind the work that is queued on it, or at once. */
  #copy(slot: number, { tokens, groups, copiedId }: Plan): void {
    const { native, layout, supply, shared, sharing, fences } = this.#parts;
    const rows = layout.rowsFor(tokens);
    supply.growOne(slot, rows);
    const writers = sharing.copies.writersOf(copiedId);
    const source = sharing.copies.sourceOf(copiedId, slot, rows);
    const stream = fences.streamOf(slot);
    if (writers.length === 0 || source < 0 || stream === undefined) {
      for (const writer of writers) fences.waitWritten(writer, 'copy from');
      native.copyGroup(slot, groups, shared.slotOf(copiedId, rows), copiedId, tokens, undefined);
      return;
    }
    fences.ensure(stream);
    for (const writer of writers) fences.order(stream, writer);
    native.copyGroup(slot, groups, source, copiedId, tokens, stream);
    sharing.copies.hasQueuedCopy(slot, [source, ...writers], stream);
  }

  /** What will be queued for the slot runs after work on other streams that may still write what it shares. */
  #orderBehindWriters(slot: number, groups: number): void {
    const { layout, table, shared, fences } = this.#parts;
    const stream = fences.streamOf(slot);
    if (groups === 0 || stream === undefined) return;
    const ids = shared.idsOf(slot);
    for (let other = 0; other < table.count; other += 1) {
      if (other === slot || !fences.isPendingBeside(other, stream)) continue;
      const isForeign = table.foreignRow[other]! < groups * layout.groupRows;
      if (isForeign || shared.isSharing(other, ids, groups)) fences.order(stream, other);
    }
  }

  /** The slot is idle again and holds what it held when it was chosen. */
  #undo(slot: number, { groups, adoptedGroups, copiedId }: Plan, path: PrefixPath | undefined): void {
    const { native, index, shared, idlePrefixes, late } = this.#parts;
    native.promise(slot, 0);
    shared.stop(slot);
    late.attempt(() => {
      if (groups > adoptedGroups || copiedId >= 0) idlePrefixes.vacate(slot, adoptedGroups);
      idlePrefixes.putBack(slot, adoptedGroups);
    });
    if (path !== undefined) index.release(path);
    late.attempt(() => idlePrefixes.settle());
  }

  #cachedBy({ tokens, groups, adoptedGroups }: Plan): CachedBy {
    const adoptedTokens = Math.min(tokens, this.#parts.groups.tokensIn(adoptedGroups));
    const aliasedTokens = Math.min(tokens, this.#parts.groups.tokensIn(groups)) - adoptedTokens;
    return { adoptedTokens, aliasedTokens, copiedTokens: tokens - adoptedTokens - aliasedTokens };
  }

  #rowsOf(groups: number): number {
    return Math.min(groups * this.#parts.layout.groupRows, this.#parts.layout.maxRows);
  }
}
