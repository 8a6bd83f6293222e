// Layout: where each tensor of each token lies, and how many pages a number of tokens needs. Pure arithmetic from a
// model's shape; it reserves and maps nothing. It counts bytes, never whole tokens per page, so a slot may be smaller
// than a page or no multiple of it, and a page may end inside a token.
//
// A row is the pages behind the same range of tokens in every reservation. Where tokens of different reservations
// differ in size, the largest (S bytes) sets the pace: after r rows its reservation has r pages, one with tokens of s
// bytes ⌈r · s / S⌉.

import { createError } from '../base/errors.js';
import { checkInteger, integer, oneOf, readOptions, withoutRevoked, type Field } from '../base/options.js';
import { dtypeBytes, type TensorSpec } from '../base/dtypes.js';
import { tensorsOf, type ModelShape } from './model-shape.js';
import { greatestCommonDivisor } from '../base/row-arithmetic.js';

/**
 * `per-layer`: a reservation per tensor, `[slot, token, head, dim]`. `sliced`: one for all K and one for all V,
 * `[slot, token, layer, head, dim]`. `fused`: one for everything, `[slot, token, layer, kv, head, dim]`.
 */
export type LayoutKind = 'per-layer' | 'sliced' | 'fused';

/** All layouts. */
export const layoutKinds: readonly LayoutKind[] = ['per-layer', 'sliced', 'fused'];

/** Options of `computeLayout`. */
export interface LayoutOptions {
  /** The whole model; `model.parallel` says which part of it this worker holds. */
  readonly model: ModelShape;
  /** How tensors share reservations. Default `per-layer`. */
  readonly layout: LayoutKind;
  /** Slots of the cache, at least 1. */
  readonly slots: number;
  /** Tokens that a slot has addresses for, at least 1. */
  readonly maxTokens: number;
  /** Bytes of a physical page, at least 1. The driver's granularity is not checked here. */
  readonly pageBytes: number;
}

/** One range of addresses, `[slot, token]`. */
export interface ReservationSpec {
  /** Bytes of one token in all tensors of the reservation. */
  readonly tokenBytes: number;
  /** maxTokens · tokenBytes. */
  readonly slotBytes: number;
  /** Bytes from one slot to the next: slotBytes rounded up to whole pages. */
  readonly slotStrideBytes: number;
  /** slots · slotStrideBytes. */
  readonly bytes: number;
}

/** Distances in bytes between neighbours along each axis of a tensor. */
export interface TensorStrides {
  /** Bytes from a slot to the next. */
  readonly slotBytes: number;
  /** Bytes from a token to the next. */
  readonly tokenBytes: number;
  /** Bytes from a head to the next. */
  readonly headBytes: number;
  /** Bytes of an element. */
  readonly elementBytes: number;
}

/**
 * A tensor and where it lies: element [slot, token, head, i] is at offsetBytes plus the four indices times their
 * strides.
 */
export interface TensorPlacement extends TensorSpec {
  /** Position in `Layout.tensors`. */
  readonly index: number;
  /** Position in `Layout.reservations`. */
  readonly reservation: number;
  /** Bytes from the start of the reservation to element [0, 0, 0, 0]. */
  readonly offsetBytes: number;
  /** Bytes from one slot, token, head and element to the next. */
  readonly strides: TensorStrides;
  /** [slots, maxTokens, heads, dim]. */
  readonly shape: readonly [slots: number, maxTokens: number, heads: number, dim: number];
}

/** Where tensors, slots and rows lie in a cache's reservations. Pure arithmetic; frozen. */
export interface Layout {
  /** How tensors share reservations. */
  readonly kind: LayoutKind;
  /** Bytes of a page. */
  readonly pageBytes: number;
  /** Slots of the cache. */
  readonly slots: number;
  /** Tokens a slot has addresses for. */
  readonly maxTokens: number;
  /** Every tensor on this worker, in layer order, K before V. */
  readonly tensors: readonly TensorPlacement[];
  /** The address ranges of the cache. */
  readonly reservations: readonly ReservationSpec[];
  /** Largest `tokenBytes` of a reservation, which sets the pace of rows. */
  readonly maxTokenBytes: number;
  /** Most pages of a row: one per reservation. Exact when all reservations have tokens of the same size. */
  readonly pagesPerRow: number;
  /** pagesPerRow · pageBytes. */
  readonly rowBytes: number;
  /**
   * pageBytes / maxTokenBytes: an exact ratio, possibly a fraction, also below 1. To be shown; count with `rowsFor`.
   */
  readonly tokensPerRow: number;
  /** Rows of a full slot: `rowsFor(maxTokens)`. */
  readonly maxRows: number;
  /**
   * Rows of a group, the unit of sharing: the fewest that end at the same token in every reservation. 1 where tokens
   * have the same size everywhere, as in most models.
   */
  readonly groupRows: number;
  /** Bytes of addresses of all reservations. */
  readonly virtualBytes: number;
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
  /**
   * Pages that `rows` rows of one slot have in one reservation: ⌈rows · its tokenBytes / maxTokenBytes⌉ within the
   * slot.
   */
  pagesIn(reservation: number, rows: number): number;
  /** Bytes of K and V of `tokens` tokens of one slot, over all reservations: what is used of their pages. */
  usedBytes(tokens: number): number;
}

const positive = integer({ min: 1 });
const unchecked: Field<ModelShape> = (value) => value as ModelShape; // tensorsOf checks it

const spec = {
  model: unchecked,
  layout: oneOf(layoutKinds),
  slots: positive,
  maxTokens: positive,
  pageBytes: positive,
};

/**
 * Computes a layout. Throws KV_INVALID_OPTION, KV_INVALID_SHAPE, and KV_OUT_OF_ADDRESS_SPACE where sizes exceed 2⁵³
 * bytes.
 */
export function computeLayout(options: LayoutOptions): Layout {
  const { model, layout: kind, slots, maxTokens, pageBytes } = readOptions('computeLayout', options, spec);
  const specs = tensorsOf(model);
  const groups = groupByReservation(kind, specs);
  const reservations = groups.map((group): ReservationSpec => {
    const tokenBytes = sum(group.map((index) => specs[index]!.tokenBytes));
    const slotBytes = maxTokens * tokenBytes;
    const slotStrideBytes = Math.ceil(slotBytes / pageBytes) * pageBytes;
    return { tokenBytes, slotBytes, slotStrideBytes, bytes: slots * slotStrideBytes };
  });
  const virtualBytes = sum(reservations.map(({ bytes }) => bytes));
  if (!Number.isSafeInteger(virtualBytes)) {
    throw createError('KV_OUT_OF_ADDRESS_SPACE', {
      bytes: virtualBytes, reservations: reservations.length, slots, maxTokens, limitBytes: Number.MAX_SAFE_INTEGER,
    });
  }
  const maxTokenBytes = reservations.reduce((largest, { tokenBytes }) => Math.max(largest, tokenBytes), 0);
  const totalTokenBytes = sum(reservations.map(({ tokenBytes }) => tokenBytes));
  const maxRows = Math.ceil((maxTokens * maxTokenBytes) / pageBytes);
  const kinds = countAlike(reservations);
  const commonBytes = reservations.reduce((divisor, { tokenBytes }) => greatestCommonDivisor(divisor, tokenBytes), 0);

  // Where tokens are smaller, a slot's last page may come before the last row: its stride bounds its pages.
  const pagesOf = ({ tokenBytes, slotStrideBytes }: ReservationSpec, rows: number): number =>
    Math.min(Math.ceil((rows * tokenBytes) / maxTokenBytes), slotStrideBytes / pageBytes);
  const pagesFor = (rows: number): number => {
    let pages = 0;
    for (const { reservation, count } of kinds) pages += count * pagesOf(reservation, rows);
    return pages;
  };

  // Frozen all through: a cache's kernels and its addon copy these numbers.
  return deepFreeze({
    kind, pageBytes, slots, maxTokens,
    tensors: placeTensors(specs, groups, reservations, slots, maxTokens),
    reservations,
    maxTokenBytes,
    pagesPerRow: reservations.length,
    rowBytes: reservations.length * pageBytes,
    tokensPerRow: pageBytes / maxTokenBytes,
    maxRows,
    groupRows: Math.min(maxTokenBytes / commonBytes, maxRows),
    virtualBytes,
    rowsFor(tokens) {
      checkTokens(tokens, maxTokens);
      return Math.ceil((tokens * maxTokenBytes) / pageBytes);
    },
    tokensIn(rows) {
      if (!isCount(rows)) checkInteger('Layout', 'rows', rows);
      return Math.min(Math.floor((rows * pageBytes) / maxTokenBytes), maxTokens);
    },
    pagesFor(rows) {
      checkRows(rows, maxRows);
      return pagesFor(rows);
    },
    pagesBetween(from, to) {
      checkRows(from, maxRows);
      checkRows(to, maxRows);
      return to > from ? pagesFor(to) - pagesFor(from) : 0;
    },
    pagesIn(reservation, rows) {
      checkInteger('Layout', 'reservation', reservation, 0, reservations.length - 1);
      checkInteger('Layout', 'rows', rows, 0, maxRows);
      return pagesOf(reservations[reservation]!, rows);
    },
    usedBytes(tokens) {
      checkTokens(tokens, maxTokens);
      return tokens * totalTokenBytes;
    },
  });
}

function deepFreeze<T extends object>(value: T): T {
  for (const member of Object.values(value)) {
    if (typeof member === 'object' && member !== null) deepFreeze(member as object);
  }
  return Object.freeze(value);
}

/**
 * Bytes from the start of a tensor's reservation to one of its tokens. Throws KV_INVALID_OPTION; checks no upper
 * bounds.
 */
export function byteOffset(tensor: TensorPlacement, slot: number, token: number): number {
  checkInteger('byteOffset', 'slot', slot);
  checkInteger('byteOffset', 'token', token);
  const { offsetBytes, strides } = members(tensor, 'tensor', ({ offsetBytes, strides }) => ({ offsetBytes, strides }));
  const { slotBytes, tokenBytes } =
    members(strides, 'tensor.strides', ({ slotBytes, tokenBytes }) => ({ slotBytes, tokenBytes }));
  checkInteger('byteOffset', 'tensor.offsetBytes', offsetBytes);
  checkInteger('byteOffset', 'tensor.strides.slotBytes', slotBytes);
  checkInteger('byteOffset', 'tensor.strides.tokenBytes', tokenBytes);
  return offsetBytes + slot * slotBytes + token * tokenBytes;
}

function members<T, M>(object: T, option: string, read: (object: T) => M): M {
  const place = { owner: 'byteOffset', option };
  if (typeof object === 'object' && object !== null) return withoutRevoked(object, place, () => read(object));
  throw createError('KV_INVALID_OPTION', {
    reason: 'type', ...place, expected: 'a tensor of a layout', received: object,
  });
}

/** Groups tensors (by index) that share a reservation, in their order within one token. */
function groupByReservation(kind: LayoutKind, specs: readonly TensorSpec[]): readonly (readonly number[])[] {
  const indices = specs.map((_, index) => index);
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

function placeTensors(
  specs: readonly TensorSpec[], groups: readonly (readonly number[])[], reservations: readonly ReservationSpec[],
  slots: number, maxTokens: number,
): readonly TensorPlacement[] {
  const placed = new Array<TensorPlacement>(specs.length);
  groups.forEach((group, reservation) => {
    const { tokenBytes, slotStrideBytes } = reservations[reservation]!;
    let offsetBytes = 0;
    for (const index of group) {
      const tensor = specs[index]!;
      const elementBytes = dtypeBytes(tensor.dtype);
      placed[index] = {
        ...tensor, index, reservation, offsetBytes,
        strides: { slotBytes: slotStrideBytes, tokenBytes, headBytes: tensor.dim * elementBytes, elementBytes },
        shape: [slots, maxTokens, tensor.heads, tensor.dim],
      };
      offsetBytes += tensor.tokenBytes;
    }
  });
  return placed;
}

interface AlikeReservations {
  readonly reservation: ReservationSpec;
  count: number;
}

/**
 * Counts reservations with tokens of equal size: most models have one size, so counting pages does not loop over
 * layers.
 */
function countAlike(reservations: readonly ReservationSpec[]): readonly AlikeReservations[] {
  const byTokenBytes = new Map<number, AlikeReservations>();
  for (const reservation of reservations) {
    const alike = byTokenBytes.get(reservation.tokenBytes);
    if (alike === undefined) byTokenBytes.set(reservation.tokenBytes, { reservation, count: 1 });
    else alike.count += 1;
  }
  return [...byTokenBytes.values()];
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
