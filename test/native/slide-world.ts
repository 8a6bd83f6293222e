// SlideWorld: several native caches over one pool under random operations, and a small model of what they must hold: the rows that
// each slot maps and shares, their content, and the pages set aside. Every operation is checked against the model as it happens.
//
// The mapper, where it runs, may map what was asked for between any two calls: the world takes those rows over once it is quiet.

import { isKvError } from 'virtual-kv';
import type { MockCall } from 'virtual-kv/testing';

import { countPages } from '#internal/device/native.js';
import type { Random } from '#internal/base/random.js';

import { maxRows, rowTokens, type NativeCaches, type NativeSet } from '../helpers/native-caches.js';

/** A row's pages: how many slots and kept groups refer to them, and what was stamped at their place. */
interface Row {
  references: number;
  key: bigint | undefined;
}

interface SlotModel {
  first: number;
  /** From `first` on. */
  rows: Row[];
  earmarkedRows: number;
  /** The mapper may map rows before this one. */
  wanted: number;
}

interface SetModel {
  readonly set: NativeSet;
  readonly slots: readonly SlotModel[];
  /** By number: of which row, and its pages. */
  readonly kept: Map<number, { readonly at: number; readonly row: Row }>;
}

/** Calls that are refused at times; what is left in the scratch slot where unmapping is refused there is not in the model. */
const failing: readonly MockCall[] = ['cuMemCreate', 'cuMemMap', 'cuMemSetAccess', 'cuMemcpyDtoDAsync', 'cuMemsetD8Async'];

export class SlideWorld {
  readonly #bench: NativeCaches;
  readonly #random: Random;
  readonly #budget: number;
  readonly #mapper: boolean;
  readonly #models: readonly SetModel[];
  #keys = 0n;
  #ids = 0;
  readonly counts: Record<string, number> = {};

  constructor(bench: NativeCaches, random: Random, mapper: boolean) {
    this.#bench = bench;
    this.#random = random;
    this.#mapper = mapper;
    this.#budget = countPages(bench.pool).budgetPages;
    this.#models = bench.sets.map((set) => ({
      set, kept: new Map(),
      slots: Array.from({ length: set.rows.length }, () => ({ first: 0, rows: [], earmarkedRows: 0, wanted: 0 })),
    }));
  }

  /** One random operation, and what it must have done. */
  operate(): void {
    const model = this.#models[this.#random.integer(this.#models.length)]!;
    const slot = this.#random.integer(model.slots.length);
    const roll = this.#random.next();
    if (this.#mapper && this.#random.chance(0.5)) this.#request();
    if (roll < 0.25) this.#slide(model);
    else if (roll < 0.46) this.#grow(model);
    else if (roll < 0.56) this.#shrink(model, slot);
    else if (roll < 0.66) this.#earmark(model, slot);
    else if (roll < 0.82) this.#share(model, slot);
    else if (roll < 0.92) this.#detach(model, slot);
    else if (roll < 0.95) this.#keep(model, slot);
    else if (roll < 0.97) this.#drop(model);
    else this.#alias(model, slot);
    this.#settle();
    this.#check(model);
  }

  /** Empties everything. */
  end(): void {
    for (const { set: { cache }, slots, kept } of this.#models) {
      cache.drop(Int32Array.from(kept.keys()), kept.size);
      for (const slot of slots.keys()) cache.earmark(slot, 0);
    }
  }

  #count(what: string): void {
    this.counts[what] = (this.counts[what] ?? 0) + 1;
  }

  #request(): void {
    for (const { set, slots } of this.#models) {
      const slot = this.#random.integer(slots.length);
      this.#requestOf(set, slot, slots[slot]!);
    }
  }

  #requestOf({ cache }: NativeSet, slot: number, model: SlotModel): void {
    model.wanted = this.#within(endOf(model), 3);
    cache.request(Int32Array.of(slot, model.wanted), 1);
  }

  /** From here on the slot's rows are those of the model. */
  #hold({ cache, rows }: NativeSet, slot: number, model: SlotModel): void {
    if (!this.#mapper) return;
    cache.cancel(slot);
    this.#extend(model, rows[slot]!);
    model.wanted = 0;
  }

  // —— operations: each calls, and changes the model where that succeeded ——

  #grow({ set, slots }: SetModel): void {
    const chosen = this.#some(slots).map((slot) => [slot, this.#within(endOf(slots[slot]!), 3)] as const);
    const lacking = (): number => {
      let pages = 0;
      for (const [slot, rows] of chosen) {
        const model = slots[slot]!;
        const beyond = Math.max(0, rows - Math.max(endOf(model), Math.min(maxRows, model.first + model.earmarkedRows)));
        pages += beyond * set.tensors;
      }
      return pages;
    };
    const isDone = this.#attempt('grow', lacking() > this.#available(), () => {
      set.cache.grow(Int32Array.from(chosen.flat()), chosen.length);
    });
    if (isDone) for (const [slot, rows] of chosen) this.#extend(slots[slot]!, rows);
  }

  #shrink({ set, slots }: SetModel, slot: number): void {
    const model = slots[slot]!;
    this.#hold(set, slot, model);
    const rows = this.#random.chance(0.5) ? 0 : this.#random.integer(endOf(model) + 1);
    if (!this.#attempt('shrink', false, () => { set.cache.shrink(slot, rows); })) return;
    for (const row of model.rows.splice(Math.max(0, rows - model.first))) row.references -= 1;
    model.first = Math.min(model.first, rows);
    model.earmarkedRows = 0;
  }

  #earmark({ set, slots }: SetModel, slot: number): void {
    const model = slots[slot]!, rows = this.#random.chance(0.3) ? 0 : this.#random.integer(7);
    const more = (outstanding({ ...model, earmarkedRows: rows }) - outstanding(model)) * set.tensors;
    if (this.#attempt('earmark', more > this.#available(), () => { set.cache.earmark(slot, rows); })) model.earmarkedRows = rows;
  }

  #slide({ set, slots }: SetModel): void {
    // What is set aside is cut where there is too little, and with a mapper the pool alone knows by how much: of one slot.
    const chosen = (this.#mapper ? [this.#random.integer(slots.length)] : this.#some(slots)).map((slot) => {
      const model = slots[slot]!;
      this.#hold(set, slot, model);
      const first = this.#within(model.first, 4), rows = this.#within(endOf(model), 3);
      if (this.#mapper && first < endOf(model)) this.#requestOf(set, slot, model);
      return [slot, first, rows] as const;
    });
    const slid = set.cache.counters().slidRows;
    const isDone = this.#attempt('slide', false, () => {
      set.cache.slide(Int32Array.from(chosen.flat()), chosen.length);
    });
    let behind = 0;
    for (const [slot, wanted, rows] of chosen) {
      const model = slots[slot]!;
      const first = model.rows.length === 0 ? wanted : Math.max(wanted, model.first);
      if (!isDone && set.first[slot] !== first) break; // refused here
      behind += this.#slideOne(set, slot, model, first, rows);
    }
    this.#bench.t.is(set.cache.counters().slidRows - slid, behind);
  }

  /** What a slide did to one slot, whose array says how many rows were handed over; returns how many rows went. */
  #slideOne(set: NativeSet, slot: number, model: SlotModel, first: number, rows: number): number {
    const { t } = this.#bench;
    const before = outstanding(model), end = model.rows.length === 0 ? first : Math.max(first, endOf(model));
    const gone = model.rows.splice(0, first - model.first);
    const own = gone.filter(({ references }) => references === 1).length;
    for (const row of gone) row.references -= 1;
    const most = Math.max(end, Math.min(rows, end + own)); // with the pages that were the slot's own
    const mapped = set.rows[slot]!;
    if (this.#mapper) t.true(mapped >= end && mapped <= Math.max(most, rows, model.wanted), `slot ${slot} ends at ${mapped}`);
    else t.true(mapped === most || (this.#hasRefused && mapped === end), `slot ${slot} ends at ${mapped}, not ${most}`);
    model.first = first;
    if (mapped > end) this.#count('handed over');
    this.#extend(model, mapped);
    const wish = model.earmarkedRows;
    if (this.#mapper) this.#learnEarmark(set, model);
    else this.#moveEarmark(set, model, before, own - (mapped - end));
    if (model.earmarkedRows < wish) {
      this.#count('cut short');
      t.true(own < gone.length, 'others refer to a page that went');
    }
    return gone.length;
  }

  /** `before` rows were set aside, and the pages of `freed` rows go to the pool. */
  #moveEarmark(set: NativeSet, model: SlotModel, before: number, freed: number): void {
    let kept = Math.min(outstanding(model), before + freed);
    const available = this.#available() + (outstanding(model) - kept) * set.tensors;
    if ((outstanding(model) - kept) * set.tensors <= available) kept = outstanding(model);
    while (outstanding(model) > kept) model.earmarkedRows -= 1;
  }

  /** What is set aside for a slot, as the pool counts it: at most what it was. */
  #learnEarmark(set: NativeSet, model: SlotModel): void {
    this.#takeOver();
    const others = this.#earmarked() - outstanding(model) * set.tensors;
    const pages = countPages(this.#bench.pool).earmarkedPages - others;
    while (outstanding(model) * set.tensors > pages) model.earmarkedRows -= 1;
  }

  #share({ set, slots }: SetModel, slot: number): void {
    const from = this.#random.integer(slots.length), source = slots[from]!, model = slots[slot]!;
    for (const held of [from, slot]) this.#hold(set, held, slots[held]!);
    if (model.rows.length > 0 || from === slot) return;
    const rows = source.first + this.#random.integer(source.rows.length + 1);
    const shared: SlotModel = { ...model, first: source.first, rows: source.rows.slice(0, rows - source.first) };
    const more = (outstanding(shared) - outstanding(model)) * set.tensors;
    const isDone = this.#attempt('share', more > this.#available(), () => { set.cache.shareRows(from, slot, rows); });
    if (isDone) this.#take(model, shared);
  }

  #take(model: SlotModel, shared: SlotModel): void {
    for (const row of shared.rows) row.references += 1;
    model.first = shared.first;
    model.rows = shared.rows;
  }

  #detach({ set, slots }: SetModel, slot: number): void {
    const model = slots[slot]!;
    this.#hold(set, slot, model);
    if (model.rows.length === 0) return;
    const shared = model.rows.findIndex(({ references }) => references > 1);
    const index = shared >= 0 && this.#random.chance(0.8) ? shared : this.#random.integer(model.rows.length);
    const row = model.rows[index]!, at = model.first + index;
    const isShared = row.references > 1;
    const isDone = this.#attempt(isShared ? 'detach' : 'detach of its own', isShared && set.tensors > this.#available(), () => {
      set.cache.detach(slot, at, (at + 1) * rowTokens, -1, 0n);
    });
    if (!isDone || !isShared) return;
    row.references -= 1;
    model.rows[index] = { references: 1, key: row.key };
  }

  #keep({ set, slots, kept }: SetModel, slot: number): void {
    const model = slots[slot]!;
    if (model.rows.length === 0) return;
    const index = this.#random.integer(model.rows.length), row = model.rows[index]!, at = model.first + index;
    const id = this.#ids++ % 64;
    if (kept.has(id)) return;
    set.cache.keep(Int32Array.of(slot, at, id), 1);
    row.references += 1;
    kept.set(id, { at, row });
    this.#count('keep');
  }

  #drop({ set, kept }: SetModel): void {
    const id = [...kept.keys()][this.#random.integer(kept.size)];
    if (id === undefined) return;
    set.cache.drop(Int32Array.of(id), 1);
    kept.get(id)!.row.references -= 1;
    kept.delete(id);
    this.#count('drop');
  }

  /** Maps a kept row in an empty slot, at its place. */
  #alias({ set, slots, kept }: SetModel, slot: number): void {
    const [id, { at, row }] = [...kept][this.#random.integer(kept.size)] ?? [-1, { at: 0, row: undefined }];
    const model = slots[slot]!;
    this.#hold(set, slot, model);
    if (row === undefined || model.rows.length > 0) return;
    const shared: SlotModel = { ...model, first: at, rows: [row] };
    const more = (outstanding(shared) - outstanding(model)) * set.tensors;
    const isDone = this.#attempt('alias', more > this.#available(), () => {
      set.cache.alias(slot, new Int32Array(at + 1).fill(id, at), at, at + 1);
    });
    if (isDone) this.#take(model, shared);
  }

  // —— calls, some of which are refused ——

  /** Whether the driver refused the latest call. */
  #hasRefused = false;

  /**
   * Says whether the call succeeded. `lacksPages`: whether the model says that there are too few, which is certain unless the mapper
   * runs.
   */
  #attempt(what: string, lacksPages: boolean, call: () => void): boolean {
    const { t, device } = this.#bench;
    this.#hasRefused = false;
    if (device !== undefined && this.#random.chance(0.1)) {
      device.resetCallCounts();
      const kinds = what === 'slide' ? [...failing, 'cuMemUnmap'] as const : failing;
      const kind = kinds[this.#random.integer(kinds.length)]!;
      device.failCall(kind, { nth: 1 + this.#random.integer(5), result: 999 });
    }
    let error: unknown;
    try {
      call();
    } catch (thrown) {
      error = thrown;
    }
    if (this.#mapper) this.#quiet(); // before failures are withdrawn: the mapper may meet one
    device?.clearFailures();
    if (error === undefined) {
      t.true(!lacksPages || this.#mapper, `${what} took pages that are not there`);
      this.#count(what);
      return true;
    }
    if (isKvError(error, 'KV_OUT_OF_PAGES')) {
      t.true(lacksPages || this.#mapper, `${what}: ${String(error)}`);
      this.#count(`${what}: too few pages`);
      return false;
    }
    t.true(device !== undefined && isKvError(error, 'KV_DRIVER_CALL_FAILED'), `${what}: ${String(error)}`);
    this.#hasRefused = true;
    this.#count(`${what}: refused`);
    return false;
  }

  #quiet(): void {
    for (const { set } of this.#models) set.cache.quiesce();
  }

  /** Takes over the rows that the mapper mapped. */
  #settle(): void {
    if (!this.#mapper) return;
    this.#quiet();
    this.#takeOver();
    for (const { slots } of this.#models) for (const model of slots) model.wanted = 0;
  }

  #takeOver(): void {
    for (const { set, slots } of this.#models) {
      for (const [slot, model] of slots.entries()) {
        const rows = set.rows[slot]!;
        this.#bench.t.true(rows <= Math.max(endOf(model), model.wanted), `the mapper mapped ${rows} rows of slot ${slot}`);
        if (rows > endOf(model)) this.#count('mapped in the background');
        this.#extend(model, rows);
      }
    }
  }

  #extend(model: SlotModel, rows: number): void {
    while (endOf(model) < rows) model.rows.push({ references: 1, key: undefined });
  }

  // —— what must hold ——

  #check({ set, slots }: SetModel): void {
    const { t } = this.#bench;
    for (const { set: { rows, first, isQuarantined }, slots: models } of this.#models) {
      t.deepEqual([...first], models.map((model) => model.first));
      t.deepEqual([...rows], models.map(endOf));
      t.deepEqual(isQuarantined.indexOf(1), -1);
    }
    const { mappedPages, earmarkedPages } = countPages(this.#bench.pool);
    t.deepEqual({ mappedPages, earmarkedPages }, { mappedPages: this.#used(), earmarkedPages: this.#earmarked() });
    this.#bench.verify();
    for (const [slot, { first, rows }] of slots.entries()) {
      for (const [index, row] of rows.entries()) {
        const token = (first + index) * rowTokens;
        if (row.key === undefined && row.references === 1) {
          row.key = ++this.#keys;
          set.cache.stamp(slot, token, 1, row.key);
          set.cache.stamp(slot, token + rowTokens - 1, 1, row.key);
        } else if (row.key !== undefined) {
          const wrong = set.cache.check(slot, token, 1, row.key) + set.cache.check(slot, token + rowTokens - 1, 1, row.key);
          t.is(wrong, 0, `row ${first + index} of slot ${slot}`);
        }
      }
    }
  }

  #used(): number {
    let pages = 0;
    for (const { set, slots, kept } of this.#models) {
      const rows = new Set(slots.flatMap((model) => model.rows));
      for (const { row } of kept.values()) rows.add(row);
      pages += rows.size * set.tensors;
    }
    return pages;
  }

  #earmarked(): number {
    let pages = 0;
    for (const { set, slots } of this.#models) for (const model of slots) pages += outstanding(model) * set.tensors;
    return pages;
  }

  #available(): number {
    return this.#budget - this.#used() - this.#earmarked();
  }

  /** Some slots, in any order. */
  #some(slots: readonly SlotModel[]): readonly number[] {
    const chosen = [...slots.keys()].filter(() => this.#random.chance(0.5));
    return this.#random.chance(0.5) ? chosen : chosen.reverse();
  }

  /** A row up to `more` behind this one. */
  #within(row: number, more: number): number {
    return Math.min(maxRows, row + this.#random.integer(more + 1));
  }
}

function endOf({ first, rows }: SlotModel): number {
  return first + rows.length;
}

/** Rows whose pages are set aside. */
function outstanding(model: SlotModel): number {
  return Math.max(0, Math.min(maxRows, model.first + model.earmarkedRows) - endOf(model));
}
