// SideTensors: what a cache keeps beside K and V for each token, for a next stage: one reservation [slot, token, width]
// per tensor, shared by prefix as K and V are. It goes with the slots of the cache step by step: admitted with a
// sequence, grown when a batch is prepared, cached when the index hears of commits, released when the slot is idle. A
// cache without side tensors has none of its memory.

import type { DriverKind } from '../base/driver-kind.js';
import type { SideDtype } from '../base/dtypes.js';
import { createError } from '../base/errors.js';
import { formatList } from '../base/format.js';
import type { FieldPlace } from '../base/options.js';
import type { BackgroundErrors, PolicyGuard } from '../device/cache-calls.js';
import type { ChangeSignal } from '../device/wait.js';
import type { PrefixPath } from '../prefix/prefix-tree.js';
import type { SideBudget, SideCounts, SideNeed } from './side-budget.js';
import type { SideCopies } from './side-copies.js';
import type { CoverEnd } from './side-cover.js';
import type { SideClock } from './side-pages.js';
import type { SideSlots } from './side-slots.js';
import type { SideTensor } from './side-tensor.js';

// SideNames: the side tensors of a cache by their names, as callers give them, and which of them a sequence carries.

/** Some side tensors of a cache, in its order. */
export interface NamedTensors {
  readonly tensors: readonly SideTensor[];
  readonly names: readonly string[];
  readonly byName: ReadonlyMap<string, SideTensor>;
}

export class SideNames {
  readonly #tensors: readonly SideTensor[];
  readonly #byBits = new Map<number, NamedTensors>();
  readonly #sideSlots: SideSlots;

  constructor(tensors: readonly SideTensor[], sideSlots: SideSlots) {
    this.#tensors = tensors;
    this.#sideSlots = sideSlots;
  }

  /** The tensors that the bits name: the same object each time. */
  of(bits: number): NamedTensors {
    let named = this.#byBits.get(bits);
    if (named === undefined) {
      const tensors = this.#tensors.filter((_, index) => (bits & 2 ** index) !== 0);
      const byName = new Map(tensors.map((tensor) => [tensor.open.name, tensor]));
      named = { tensors, names: Object.freeze([...byName.keys()]), byName };
      this.#byBits.set(bits, named);
    }
    return named;
  }

  /** The tensor of that name. Throws KV_INVALID_OPTION. */
  named(owner: string, option: string, name: string): { readonly tensor: SideTensor; readonly bit: number } {
    const index = this.#tensors.findIndex(({ open }) => open.name === name);
    if (index >= 0) return { tensor: this.#tensors[index]!, bit: 2 ** index };
    const names = this.#tensors.map(({ open }) => `'${open.name}'`);
    throw createError('KV_INVALID_OPTION', {
      reason: 'range', owner, option, received: name,
      expected: names.length === 0 ? 'left out: this cache has no side tensors'
        : `the name of a side tensor: ${formatList(names)}`,
    });
  }

  /** The tensors of those names, as bits; undefined: all. Throws KV_INVALID_OPTION. */
  bitsOf(owner: string, option: string, names: readonly string[] | undefined): number {
    if (names === undefined) return 2 ** this.#tensors.length - 1;
    return names.reduce((bits, name, index) => bits | this.named(owner, `${option}[${index}]`, name).bit, 0);
  }

  /** The tensor of that name, which the slot's sequence carries. Throws KV_INVALID_OPTION, KV_SIDE_STATE. */
  carriedBy(slot: number, { owner, option }: FieldPlace, name: string, operation: string): SideTensor {
    const { tensor, bit } = this.named(owner, option, name);
    if ((this.#sideSlots.carried[slot]! & bit) !== 0) return tensor;
    throw createError('KV_SIDE_STATE', {
      operation, sideTensor: name, problem: `the sequence in slot ${slot} does not carry it`,
      hint: 'Name it in `acquire({ needs })`.',
    });
  }

  /**
   * Those tensors of the slot's sequence, as bits; undefined: all that it carries. Throws KV_INVALID_OPTION,
   * KV_SIDE_STATE when there is none.
   */
  carriedBits(owner: string, slot: number, names: readonly string[] | undefined, operation: string): number {
    if (names !== undefined) {
      const bits = this.bitsOf(owner, 'names', names);
      this.#tensors.forEach(({ open: { name } }, index) => {
        if ((bits & 2 ** index) !== 0) this.carriedBy(slot, { owner, option: 'names' }, name, operation);
      });
      if (bits !== 0) return bits;
    } else if (this.#sideSlots.carried[slot] !== 0) {
      return this.#sideSlots.carried[slot]!;
    }
    throw createError('KV_SIDE_STATE', {
      operation, sideTensor: '', problem: `none is named, or the sequence in slot ${slot} carries none`,
      hint: 'Name some in `acquire({ needs })`.',
    });
  }
}

/** What is said of the cache's slots, by slot. */
export interface SlotLengths {
  /** Tokens that were committed. */
  readonly length: { readonly [slot: number]: number };
  /** Tokens that a prepared batch computes. */
  readonly prepared: { readonly [slot: number]: number };
  /** How often it was released. */
  readonly generation: { readonly [slot: number]: number };
}

export interface SideTensorsParts {
  readonly tensors: readonly SideTensor[];
  readonly sideSlots: SideSlots;
  readonly budget: SideBudget;
  readonly copies: SideCopies;
  readonly clock: SideClock;
  readonly slots: SlotLengths;
  readonly background: BackgroundErrors;
  /** Wakes callers that wait for slots or pages of the cache. */
  readonly capacity: ChangeSignal;
  /** Of the cache's pool. */
  readonly guard: PolicyGuard;
}

/** Of a slot without side tensors: nothing is ever lacking. */
export const alwaysReady = 2 ** 31 - 1;

/** What a sequence begins with. */
export interface SideRequest {
  /** The node in which the text ends that it starts with, or -1. */
  readonly node: number;
  /** Its tokens, covered in all tensors of `needs`. */
  readonly tokens: number;
  readonly earmarkedTokens: number;
  /** Tensors that the sequence carries, as bits. */
  readonly needs: number;
  readonly tenant: bigint;
}

/** Sequences by slot, and how many tokens more each is to write. */
export interface SideBatch {
  readonly slots: Int32Array;
  readonly tokens: Int32Array;
  /** How many of both count. */
  readonly length: number;
}

/** A side tensor of a cache. */
export interface SideTensorInfo {
  /** As in the options. */
  readonly name: string;
  /** Elements of a token's row. */
  readonly width: number;
  /** Type of the elements. */
  readonly dtype: SideDtype;
  /** Bytes of one token. */
  readonly tokenBytes: number;
  /** Bytes of a page: texts share whole ones. */
  readonly pageBytes: number;
  /** The driver in whose memory it is. */
  readonly driver: DriverKind;
}

export class SideTensors {
  readonly all: readonly SideTensor[];
  /** All tensors, as bits; 0 where the cache has none, and nothing here needs to be called then. */
  readonly everything: number;
  readonly infos: readonly SideTensorInfo[];
  readonly names: SideNames;
  readonly sideSlots: SideSlots;
  readonly budget: SideBudget;
  readonly copies: SideCopies;
  readonly slots: SlotLengths;
  /** By slot: tokens up to which its sequence may write now, in all tensors that it carries. Read only. */
  readonly ready: Int32Array;
  readonly #background: BackgroundErrors;
  readonly #capacity: ChangeSignal;
  readonly #guard: PolicyGuard;
  /** By side slot: tokens up to which views have been handed out. */
  readonly #handed: Int32Array;
  readonly #clock: SideClock;
  #isClosed = false;

  constructor({ tensors, sideSlots, budget, copies, clock, slots, background, capacity, guard }: SideTensorsParts) {
    this.all = tensors;
    this.everything = 2 ** tensors.length - 1;
    this.infos = Object.freeze(tensors.map(({ open: { name, width, dtype, tokenBytes, pool } }) =>
      Object.freeze({ name, width, dtype, tokenBytes, pageBytes: pool.pageBytes, driver: pool.driver.kind })));
    this.names = new SideNames(tensors, sideSlots);
    this.sideSlots = sideSlots;
    this.budget = budget;
    this.copies = copies;
    this.#clock = clock;
    this.slots = slots;
    this.#background = background;
    this.#capacity = capacity;
    this.#guard = guard;
    this.ready = new Int32Array(sideSlots.of.length).fill(alwaysReady);
    this.#handed = new Int32Array(sideSlots.count);
  }

  /** Whether it is SideTensors that a cache made. */
  static isInstance(value: unknown): value is SideTensors {
    return typeof value === 'object' && value !== null && #background in value;
  }

  /** Of a text's first `tokens` tokens, which end in `node`, how many all tensors of `needs` have. */
  covered(node: number, tokens: number, needs: number): number {
    let covered = tokens;
    for (const tensor of this.#in(needs)) covered = tensor.cover.tokensOf(node, covered);
    return covered;
  }

  /**
   * The tensor of `needs` that has least of the text's first `tokens` tokens, and why it has no more; undefined: all
   * have them all.
   */
  lacking(
    node: number, tokens: number, needs: number,
  ): { readonly tensor: string; readonly tokens: number; readonly reason: CoverEnd } | undefined {
    let least: SideTensor | undefined;
    let covered = tokens;
    for (const tensor of this.#in(needs)) {
      const has = tensor.cover.tokensOf(node, tokens);
      if (has >= covered) continue;
      least = tensor;
      covered = has;
    }
    return least && { tensor: least.open.name, tokens: covered, reason: least.cover.reasonAt(node, tokens) };
  }

  /**
   * Throws as `admit` what is no driver's, before anything is done for the sequence: KV_NO_FREE_SLOT, KV_OUT_OF_PAGES.
   * Takes and evicts nothing.
   */
  checkAdmission(request: SideRequest): void {
    if (request.needs === 0) return;
    this.#choose(0, request.needs, false);
    try {
      this.budget.check(this.#find(request));
    } finally {
      this.#forget(request.needs);
    }
  }

  /**
   * Gives a slot's new sequence what its tensors have of its text. Throws KV_NO_FREE_SLOT when leases keep too many
   * side slots, KV_OUT_OF_PAGES, or what the driver says; then nothing of it stays.
   */
  admit(slot: number, request: SideRequest): void {
    const { tokens, earmarkedTokens, needs, tenant } = request;
    if (needs === 0) return;
    this.#clock.now += 1;
    const admitted: SideTensor[] = [];
    let side = -1;
    this.#background.attempt(() => {
      this.endDropped();
    });
    try {
      const pages = this.#find(request);
      side = this.#choose(slot, needs, true);
      this.budget.makeRoom(pages);
      this.sideSlots.take(slot, side, needs);
      for (const tensor of this.#in(needs)) {
        tensor.admit(side, { tenant, tokens, earmarkedTokens });
        admitted.push(tensor);
      }
    } catch (error) {
      for (const tensor of admitted) tensor.release(side);
      if (side >= 0) this.sideSlots.leave(slot);
      throw error;
    } finally {
      this.#forget(needs);
    }
    this.#handed[side] = 0;
    this.ready[slot] = 0;
  }

  /** Throws as `fork` what is no driver's, before anything is done for the copy: KV_NO_FREE_SLOT. */
  checkFork(from: number): void {
    const needs = this.sideSlots.carried[from]!;
    if (needs !== 0) this.#choose(0, needs, false);
  }

  /** Another sequence starts with all that one in slot `from` has. Throws as `admit`. */
  fork(from: number, to: number, tenant: bigint): void {
    const needs = this.sideSlots.carried[from]!;
    if (needs === 0) return;
    const forked: SideTensor[] = [];
    const source = this.sideSlots.of[from]!;
    const side = this.#choose(to, needs, false);
    this.sideSlots.take(to, side, needs);
    this.ready[from] = 0;
    try {
      for (const tensor of this.#in(needs)) {
        tensor.fork(source, side, tenant);
        forked.push(tensor);
      }
    } catch (error) {
      for (const tensor of forked) tensor.release(side);
      this.sideSlots.leave(to);
      throw error;
    }
    this.#handed[side] = 0;
    this.ready[to] = 0;
  }

  /**
   * Throws KV_OUT_OF_PAGES unless all sequences of a batch may write its tokens, KV_SLOT_BUSY, or what the driver says.
   * Takes and evicts nothing.
   */
  check(batch: SideBatch): void {
    const { firm, all } = this.#needsOf(batch);
    if (this.budget.hasRoom(all)) return;
    this.budget.check(firm);
  }

  /** Gives the sequences of a batch memory to write its tokens, or changes nothing. Throws as `check`. */
  ensure(batch: SideBatch): void {
    const { slots, tokens, length } = batch;
    const { firm, all } = this.#needsOf(batch);
    const isShort = !this.budget.hasRoom(all);
    this.budget.makeRoom(isShort ? firm : all);
    const mapped: [tensor: SideTensor, side: number, pages: number][] = [];
    try {
      for (let index = 0; index < length; index += 1) {
        const slot = slots[index]!;
        const end = this.slots.length[slot]! + tokens[index]!;
        if (this.ready[slot]! >= end) continue;
        const side = this.sideSlots.of[slot]!;
        let ready = alwaysReady;
        for (const tensor of this.#in(this.sideSlots.carried[slot]!)) {
          mapped.push([tensor, side, tensor.mappedPages(side)]);
          ready = Math.min(ready, tensor.ensure(side, end, isShort));
        }
        this.ready[slot] = ready;
      }
    } catch (error) {
      for (const [tensor, side, pages] of mapped) this.#background.attempt(() => { tensor.undo(side, pages); });
      for (let index = 0; index < length; index += 1) {
        if (this.sideSlots.of[slots[index]!]! >= 0) this.ready[slots[index]!] = 0;
      }
      throw error;
    }
  }

  /**
   * Only the sequence's first `tokens` tokens count. Throws what the driver says, at the end; then they do not count,
   * and stay mapped.
   */
  truncate(slot: number, tokens: number): void {
    const side = this.sideSlots.of[slot]!;
    if (side < 0) return;
    this.ready[slot] = 0;
    const isHanded = this.#handed[side]! > tokens;
    if (isHanded) this.#handed[side] = tokens;
    this.#inEach(this.sideSlots.carried[slot]!, (tensor) => {
      if (isHanded) tensor.views.revoke(side);
      tensor.truncate(side, tokens);
    });
  }

  /** What was written for a batch that was not committed does not count. */
  discard(slot: number): void {
    const side = this.sideSlots.of[slot]!;
    const tokens = this.slots.length[slot]!;
    for (const { writes } of this.#in(this.sideSlots.carried[slot]!)) writes.cut(side, tokens);
  }

  /** Whether copies from the device may still write to what the slot's sequence has, as far as was heard. */
  isCopying(slot: number): boolean {
    const side = this.sideSlots.of[slot]!;
    return side >= 0 && this.copies.isCopying(side);
  }

  /** Hears what has arrived from the device. Never throws: what fails is reported in the background. */
  pollCopies(): void {
    if (this.copies.isIdle) return;
    this.#background.attempt(() => { this.copies.poll(); });
  }

  /** The index has heard of the path's commits: what the slot has written of them is cached. */
  publish(slot: number, path: PrefixPath): void {
    const side = this.sideSlots.of[slot]!;
    for (const tensor of this.#in(this.sideSlots.carried[slot]!)) tensor.publish(side, path.node, path.length);
  }

  /** The sequence is released: it gets no more tokens. */
  finish(slot: number): void {
    this.sideSlots.finish(slot, this.slots.length[slot]!);
  }

  /** No sequence has the slot any more, nor any queued work. */
  retire(slot: number): void {
    this.#clock.now += 1;
    const carried = this.sideSlots.carried[slot]!;
    this.ready[slot] = alwaysReady;
    const leased = this.sideSlots.of[slot]!;
    const side = this.sideSlots.leave(slot);
    if (side >= 0) this.#giveBack(side, carried);
    else if (leased >= 0) this.#keepLeased(leased);
  }

  /** Keeps tensors of a side slot, whatever becomes of its sequence. */
  lease(side: number, tensors: number): void {
    this.sideSlots.lease(side, tensors);
  }

  endLease(side: number, tensors: number): void {
    if (this.#isClosed) return;
    this.#clock.now += 1;
    if (this.sideSlots.endLease(side, tensors)) this.#giveBack(side, this.sideSlots.tensorsIn(side));
    else this.#keepLeased(side);
    this.#capacity.raise();
  }

  /** Views of the side slot's first `tokens` tokens have been handed out. */
  handed(side: number, tokens: number): void {
    this.#handed[side] = Math.max(this.#handed[side]!, tokens);
  }

  /**
   * Ends what no text and no sequence needs, and what a lowered bound does not leave room for. Throws the driver's
   * first refusal, at the end.
   */
  endDropped(): void {
    try {
      this.#inEach(this.everything, (tensor) => {
        tensor.endDropped();
      });
    } finally {
      this.budget.keep();
    }
  }

  counts(): SideCounts {
    const { bytes: budgetBytes, usedBytes, unevictableBytes, quarantinedBytes } = this.budget;
    const heldBytes = Math.max(0, unevictableBytes - quarantinedBytes);
    return {
      budgetBytes, usedBytes, heldBytes, quarantinedBytes, leasedSlots: this.sideSlots.leased, ...this.copies.counts(),
    };
  }

  verify(): void {
    for (const tensor of this.all) tensor.verify();
  }

  /** Detaches all views: the cache closes. */
  close(): void {
    this.#isClosed = true;
    for (const { views } of this.all) views.revokeAll();
  }

  /** Throws KV_POLICY_REENTRY while a policy of the cache decides. */
  checkUndecided(operation: string): void {
    this.#guard.check(operation);
  }

  /** Throws KV_CLOSED. */
  checkOpen(operation: string): void {
    if (this.#isClosed) throw createError('KV_CLOSED', { operation: `${operation} side tensors`, owner: 'KvCache' });
  }

  /** An idle side slot: one that has most of what was found, else one that maps little. */
  #choose(slot: number, needs: number, isFound: boolean): number {
    const side = this.sideSlots.choose(slot, (candidate) => {
      let shared = 0;
      let mapped = 0;
      for (const tensor of this.#in(needs)) {
        if (tensor.isQuarantined(candidate)) return -Infinity;
        if (isFound) shared += tensor.found.sharedPages(candidate);
        mapped += tensor.mappedPages(candidate);
      }
      return shared > 0 ? shared : -mapped;
    });
    if (side >= 0 && !this.#in(needs).some((tensor) => tensor.isQuarantined(side))) return side;
    throw createError('KV_NO_FREE_SLOT', {
      slots: this.sideSlots.count, retiringSlots: 0, leasedSlots: this.sideSlots.leased,
    });
  }

  /**
   * Finds what the tensors have of the request's text, which is not evicted until `forget`. Returns the pages that it
   * needs besides.
   */
  #find({ node, tokens, earmarkedTokens, needs }: SideRequest): readonly SideNeed[] {
    return this.#in(needs).map((tensor) => {
      const { arithmetic } = tensor.open;
      const found = arithmetic.rowsFor(tokens);
      tensor.found.find(node, tokens, found);
      return { tensor, pages: Math.max(0, arithmetic.rowsFor(earmarkedTokens) - found) };
    });
  }

  #forget(needs: number): void {
    for (const tensor of this.#in(needs)) tensor.found.forget();
  }

  /**
   * Pages that the sequences of a batch need to write its tokens, and these with the copies that can be done without.
   */
  #needsOf({ slots, tokens, length }: SideBatch): {
    readonly firm: readonly SideNeed[]; readonly all: readonly SideNeed[];
  } {
    const firm: SideNeed[] = [];
    const all: SideNeed[] = [];
    this.all.forEach((tensor, number) => {
      const copied = new Map<number, number>();
      let most = 0;
      let spared = 0;
      for (let index = 0; index < length; index += 1) {
        const slot = slots[index]!;
        const end = this.slots.length[slot]! + tokens[index]!;
        if (this.ready[slot]! >= end || (this.sideSlots.carried[slot]! & 2 ** number) === 0) continue;
        const need = tensor.pagesFor(this.sideSlots.of[slot]!, end, copied);
        most += need.pages;
        spared += need.spared;
      }
      if (most === 0) return;
      firm.push({ tensor, pages: most - spared });
      all.push({ tensor, pages: most });
    });
    return { firm, all };
  }

  /** A side slot that only leases keep has memory for no more than they read. */
  #keepLeased(side: number): void {
    const leases = this.sideSlots.leasesOf(side);
    if (leases === undefined) return;
    const ends = leases.map((tensors) =>
      this.#in(tensors).reduce(
        (least, { writes }) => Math.min(least, writes.written[side]!), this.sideSlots.finalTokens[side]!));
    const hasViews = this.#handed[side]! > 0;
    this.all.forEach((tensor, number) => {
      if ((this.sideSlots.tensorsIn(side) & 2 ** number) === 0) return;
      const tokens = leases.reduce(
        (most, tensors, index) => ((tensors & 2 ** number) === 0 ? most : Math.max(most, ends[index]!)), 0);
      this.#background.attempt(() => { tensor.keepFirst(side, tokens, hasViews); });
    });
    this.#background.attempt(() => { this.endDropped(); });
  }

  #giveBack(side: number, tensors: number): void {
    for (const tensor of this.#in(tensors)) tensor.release(side);
    this.#background.attempt(() => {
      this.endDropped();
    });
  }

  /** Does it for all of them, and throws the first failure then. */
  #inEach(tensors: number, work: (tensor: SideTensor) => void): void {
    const failures: unknown[] = [];
    for (const tensor of this.#in(tensors)) {
      try {
        work(tensor);
      } catch (error) {
        failures.push(error);
      }
    }
    if (failures.length > 0) throw failures[0];
  }

  #in(tensors: number): readonly SideTensor[] {
    return tensors === this.everything ? this.all : this.all.filter((_, index) => (tensors & 2 ** index) !== 0);
  }
}
