// Layout of one layer set: how its tensors share reservations, which rows hold which tokens, which rows a length needs,
// and how many it holds at most. Pure arithmetic; it counts bytes, never whole tokens per page.
//
// A row, the unit of growth and of sharing, is the fewest pages that end at the same token in every reservation of the
// set: one of each where all tokens have the same size; where they differ, one of tokens of s bytes has s / c pages, c
// being the greatest common divisor. A row is never more than a slot.

import type { TensorSpec } from '../base/dtypes.js';
import { createError } from '../base/errors.js';
import type { DriverKind } from '../base/driver-kind.js';
import { checkInteger } from '../base/options.js';
import { greatestCommonDivisor } from '../base/row-arithmetic.js';

/**
 * `per-layer`: a reservation per tensor, `[slot, token, head, dim]`. `sliced`: one for all K and one for all V,
 * `[slot, token, layer, head, dim]`. `fused`: one for everything, `[slot, token, layer, kv, head, dim]`.
 */
export type LayoutKind = 'per-layer' | 'sliced' | 'fused';

/** All layouts. */
export const layoutKinds: readonly LayoutKind[] = ['per-layer', 'sliced', 'fused'];

/** One range of addresses, `[slot, token]`. */
export interface ReservationSpec {
  /** Bytes of one token in all tensors of the reservation. */
  readonly tokenBytes: number;
  /** maxTokens · tokenBytes. */
  readonly slotBytes: number;
  /** Pages of a row in this reservation: 1 where the tokens of all have the same size. */
  readonly rowPages: number;
  /** Bytes from one slot to the next: slotBytes rounded up to whole rows. */
  readonly slotStrideBytes: number;
  /** slots · slotStrideBytes. */
  readonly bytes: number;
}

/** Rows of one set's reservations. */
export interface RowLayout {
  /** Greatest common divisor of the reservations' `tokenBytes`, which sets the pace of rows. */
  readonly commonTokenBytes: number;
  /** Pages of a row, over all reservations. */
  readonly pagesPerRow: number;
  /** pagesPerRow · pageBytes. */
  readonly rowBytes: number;
  /**
   * pageBytes / commonTokenBytes: an exact ratio, possibly a fraction, also below 1. To be shown; count with `rowsFor`.
   */
  readonly tokensPerRow: number;
  /** Rows of a full slot: `rowsFor(maxTokens)`. */
  readonly maxRows: number;
  /** Rows that `tokens` tokens of one slot need. Throws KV_LENGTH_OUT_OF_RANGE above `maxTokens`. */
  rowsFor(tokens: number): number;
  /** Whole tokens that `rows` rows hold, at most `maxTokens`. */
  tokensIn(rows: number): number;
  /** Pages that `rows` rows of one slot have, over all reservations. `rows` is 0 … maxRows. */
  pagesFor(rows: number): number;
  /**
   * Pages of a slot's rows [from, to), over all reservations; 0 where `to` is not above `from`. Both are 0 … maxRows.
   */
  pagesBetween(from: number, to: number): number;
  /** Pages that `rows` rows of one slot have in one reservation. */
  pagesIn(reservation: number, rows: number): number;
  /** Bytes of K and V of `tokens` tokens of one slot, over all reservations: what is used of their pages. */
  usedBytes(tokens: number): number;
}

/** A layout, or the rule that chooses one. */
export type LayoutChoice = LayoutKind | 'auto';

/** All layouts, and the rule. */
export const layoutChoices: readonly LayoutChoice[] = [...layoutKinds, 'auto'];

/**
 * Why a set has its layout. `given`: an option says so. Of a window or chunk set by `auto`: `small`: at most 1.5 times
 * the bytes of its tokens; `smallest`: no layout takes so few. Of a full set by `auto`: `short-rows`: the first whose
 * rows have few enough tokens; `budget`: the first that takes little enough of the budget, too, behind one with short
 * rows; `smallest`: no layout is both.
 */
export type LayoutReason = 'given' | 'small' | 'smallest' | 'short-rows' | 'budget';

/** A layout, and why that one. */
export interface ChosenLayout {
  readonly layout: LayoutKind;
  readonly layoutReason: LayoutReason;
}

/** Layers that keep the same part of a text, with rows of their own. Frozen. */
export interface LayerSetLayout extends RowLayout {
  /** Which part of a text its layers keep. */
  readonly kind: 'full' | 'window' | 'chunk';
  /** Its layers on this worker, ascending, by their numbers in the whole model. */
  readonly layers: readonly number[];
  /** Tokens that a token of a window set sees, itself included. */
  readonly windowTokens?: number | undefined;
  /** Tokens of a chunk. */
  readonly chunkTokens?: number | undefined;
  /** How its tensors share reservations. */
  readonly layout: LayoutKind;
  /** Why that one. */
  readonly layoutReason: LayoutReason;
  /** Positions of its tensors in `Layout.tensors`. */
  readonly tensors: readonly number[];
  /** Positions of its reservations in `Layout.reservations`: `count` of them from `first` on. */
  readonly reservations: { readonly first: number; readonly count: number };
  /** The first token that the next token of a sequence of `length` tokens sees; `length` where it sees itself alone. */
  firstToken(length: number): number;
  /** The row that holds `firstToken(length)`: rows before it are needed no more. */
  firstRow(length: number): number;
  /**
   * Most rows that hold what `newTokens` tokens at once read and write, wherever the length lies in its row;
   * `rollbackTokens` is how many of the last tokens may be taken back. Rows mapped ahead are not among them.
   */
  mostRows(newTokens: number, rollbackTokens?: number): number;
}

/** Which tokens a set needs, apart from where they lie. */
export type SetNeed =
  | { readonly kind: 'full' }
  | { readonly kind: 'window'; readonly windowTokens: number }
  | { readonly kind: 'chunk'; readonly chunkTokens: number };

/** What the arithmetic of a set's rows needs to know of its cache. */
export interface SlotShape {
  readonly slots: number;
  readonly maxTokens: number;
  readonly pageBytes: number;
}

/** The reservations of tensors `group[0]`, `group[1]`, … of `specs`, one for each group. */
export function reservationsOf(
  groups: readonly (readonly number[])[], specs: readonly TensorSpec[], { slots, maxTokens, pageBytes }: SlotShape,
): ReservationSpec[] {
  const sizes = groups.map((group) => sum(group.map((index) => specs[index]!.tokenBytes)));
  const commonBytes = sizes.reduce(greatestCommonDivisor, 0);
  const maxRows = Math.ceil((maxTokens * commonBytes) / pageBytes);
  return sizes.map((tokenBytes) => {
    const slotBytes = maxTokens * tokenBytes;
    const rowPages = maxRows === 1 ? Math.ceil(slotBytes / pageBytes) : tokenBytes / commonBytes;
    const slotStrideBytes = maxRows * rowPages * pageBytes;
    return { tokenBytes, slotBytes, rowPages, slotStrideBytes, bytes: slots * slotStrideBytes };
  });
}

/** Groups tensors (positions in `specs`) that share a reservation, in their order within one token. */
export function groupByReservation(
  kind: LayoutKind, indices: readonly number[], specs: readonly TensorSpec[],
): readonly (readonly number[])[] {
  switch (kind) {
    case 'per-layer':
      return indices.map((index) => [index]);
    case 'sliced': {
      const values = indices.filter((index) => specs[index]!.role === 'value');
      const others = indices.filter((index) => specs[index]!.role !== 'value');
      return values.length === 0 ? [others] : [others, values];
    }
    case 'fused':
      return [indices];
  }
}

/** The arithmetic of reservations whose positions begin at `first`. */
export function rowLayout(
  reservations: readonly ReservationSpec[], first: number, { maxTokens, pageBytes }: SlotShape,
): RowLayout {
  const commonTokenBytes =
    reservations.reduce((divisor, { tokenBytes }) => greatestCommonDivisor(divisor, tokenBytes), 0);
  const totalTokenBytes = sum(reservations.map(({ tokenBytes }) => tokenBytes));
  const pagesPerRow = sum(reservations.map(({ rowPages }) => rowPages));
  const maxRows = Math.ceil((maxTokens * commonTokenBytes) / pageBytes);
  return {
    commonTokenBytes,
    pagesPerRow,
    rowBytes: pagesPerRow * pageBytes,
    tokensPerRow: pageBytes / commonTokenBytes,
    maxRows,
    rowsFor(tokens) {
      checkTokens(tokens, maxTokens);
      return Math.ceil((tokens * commonTokenBytes) / pageBytes);
    },
    tokensIn(rows) {
      if (!isCount(rows)) checkInteger('Layout', 'rows', rows);
      return Math.min(Math.floor((rows * pageBytes) / commonTokenBytes), maxTokens);
    },
    pagesFor(rows) {
      checkRows(rows, maxRows);
      return rows * pagesPerRow;
    },
    pagesBetween(from, to) {
      checkRows(from, maxRows);
      checkRows(to, maxRows);
      return to > from ? (to - from) * pagesPerRow : 0;
    },
    pagesIn(reservation, rows) {
      checkInteger('Layout', 'reservation', reservation, first, first + reservations.length - 1);
      checkInteger('Layout', 'rows', rows, 0, maxRows);
      return rows * reservations[reservation - first]!.rowPages;
    },
    usedBytes(tokens) {
      checkTokens(tokens, maxTokens);
      return tokens * totalTokenBytes;
    },
  };
}

/** The part of a set's arithmetic that says which rows a length needs. */
export function needLayout(
  need: SetNeed, commonTokenBytes: number, { maxTokens, pageBytes }: SlotShape,
): Pick<LayerSetLayout, 'firstToken' | 'firstRow' | 'mostRows'> {
  const firstToken = firstTokenOf(need);
  return {
    firstToken(length) {
      checkTokens(length, maxTokens);
      return firstToken(length);
    },
    firstRow(length) {
      checkTokens(length, maxTokens);
      return Math.floor((firstToken(length) * commonTokenBytes) / pageBytes);
    },
    mostRows(newTokens, rollbackTokens = 0) {
      checkInteger('Layout', 'newTokens', newTokens);
      checkInteger('Layout', 'rollbackTokens', rollbackTokens);
      return mostRowsOf(need, commonTokenBytes, { maxTokens, pageBytes }, newTokens + rollbackTokens);
    },
  };
}

function firstTokenOf(need: SetNeed): (length: number) => number {
  switch (need.kind) {
    case 'full':
      return () => 0;
    case 'window':
      return (length) => Math.max(0, length - need.windowTokens + 1);
    case 'chunk':
      return (length) => length - length % need.chunkTokens;
  }
}

/**
 * Most rows of `extraTokens` tokens and those before them that the set needs: a range of so many bytes that begins
 * anywhere where a range can begin, which is at multiples of the common divisor with a page.
 */
function mostRowsOf(
  need: SetNeed, tokenBytes: number, { maxTokens, pageBytes }: Omit<SlotShape, 'slots'>, extraTokens: number,
): number {
  const maxRows = Math.ceil((maxTokens * tokenBytes) / pageBytes);
  if (need.kind === 'full') return maxRows;
  const tokens = (need.kind === 'window' ? need.windowTokens : need.chunkTokens) - 1 + extraTokens;
  if (tokens >= maxTokens) return maxRows;
  if (tokens === 0) return 0;
  const stepBytes = greatestCommonDivisor((need.kind === 'window' ? 1 : need.chunkTokens) * tokenBytes, pageBytes);
  return Math.min(Math.ceil((tokens * tokenBytes - stepBytes) / pageBytes) + 1, maxRows);
}

/** A layout that takes at most so many times the bytes of a set's tokens is small enough. */
const mostOverhead = 1.5;

/** The layout of a window or chunk set. */
export function chooseLayout(
  asked: LayoutChoice, need: Exclude<SetNeed, { kind: 'full' }>, indices: readonly number[],
  specs: readonly TensorSpec[], slot: SlotShape,
): ChosenLayout {
  if (asked !== 'auto') return { layout: asked, layoutReason: 'given' };
  const tokens = Math.min(need.kind === 'window' ? need.windowTokens : need.chunkTokens, slot.maxTokens);
  const small = layoutKinds.find((kind) => {
    const { commonTokenBytes, rowBytes, usedBytes } = rowsIn(kind, indices, specs, slot);
    return mostRowsOf(need, commonTokenBytes, slot, 1) * rowBytes <= mostOverhead * usedBytes(tokens);
  });
  return small === undefined ? { layout: 'fused', layoutReason: 'smallest' } : { layout: small, layoutReason: 'small' };
}

/** The arithmetic of a set in a layout. */
function rowsIn(
  kind: LayoutKind, indices: readonly number[], specs: readonly TensorSpec[], slot: SlotShape,
): RowLayout {
  return rowLayout(reservationsOf(groupByReservation(kind, indices, specs), specs, slot), 0, slot);
}

/** Tokens of a typical prompt: of the Azure trace of 2023 a request has 2,076. */
const promptTokens = 2_048;

/** What `auto` knows besides the tensors. */
export interface AutoFacts {
  /** Where kernels read: `host` is the CPU, the others a GPU. */
  readonly driverKind: DriverKind;
  /** Undefined: not known. */
  readonly memoryBudgetBytes?: number | undefined;
}

/**
 * Most tokens of a row of a full set by `auto`. On a CPU a quarter of a prompt. On a GPU, where other layouts were not
 * timed, two prompts: a prompt in a longer row leaves more than half of it unused.
 */
export function mostRowTokens(driverKind: DriverKind, maxTokens: number): number {
  return Math.min(promptTokens, maxTokens) * (driverKind === 'host' ? 1 / 4 : 2);
}

/** Most bytes that the first rows of all slots take by `auto`: on a CPU a quarter of the budget. */
function mostFirstBytes({ driverKind, memoryBudgetBytes = Infinity }: AutoFacts): number {
  return driverKind === 'host' ? memoryBudgetBytes / 4 : Infinity;
}

/**
 * What `auto` chooses from for a full set. `sliced` is taken by name alone: reading it takes a CPU 1.07 to 1.3 times as
 * long as reading `per-layer`, and `fused`, whose rows are shorter, 0.98 to 1.13 times (docs/benchmarks.md).
 */
const autoLayouts = ['per-layer', 'fused'] as const satisfies readonly LayoutKind[];

/** The layout of a full set. `auto`: the first of `autoLayouts` within both bounds; else `fused`. */
export function chooseFullLayout(
  asked: LayoutChoice, indices: readonly number[], specs: readonly TensorSpec[], slot: SlotShape, facts: AutoFacts,
): ChosenLayout {
  if (asked !== 'auto') return { layout: asked, layoutReason: 'given' };
  let isOverBudget = false;
  for (const layout of autoLayouts) {
    const { tokensPerRow, rowBytes } = rowsIn(layout, indices, specs, slot);
    if (tokensPerRow > mostRowTokens(facts.driverKind, slot.maxTokens)) continue;
    if (slot.slots * rowBytes <= mostFirstBytes(facts)) {
      return { layout, layoutReason: isOverBudget ? 'budget' : 'short-rows' };
    }
    isOverBudget = true;
  }
  return { layout: 'fused', layoutReason: 'smallest' };
}

function checkTokens(tokens: number, maxTokens: number): void {
  if (!isCount(tokens)) checkInteger('Layout', 'tokens', tokens);
  if (tokens > maxTokens) throw createError('KV_LENGTH_OUT_OF_RANGE', { tokens, maxTokens });
}

function checkRows(rows: number, maxRows: number): void {
  if (!isCount(rows) || rows > maxRows) checkInteger('Layout', 'rows', rows, 0, maxRows);
}

/** What the cache's own loops ask for, so that only a wrong number costs a call. */
function isCount(value: number): boolean {
  return Number.isSafeInteger(value) && value >= 0;
}

function sum(values: readonly number[]): number {
  return values.reduce((total, value) => total + value, 0);
}
