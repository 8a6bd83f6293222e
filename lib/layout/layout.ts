// Layout: where each tensor of each token lies, and how many pages a number of tokens needs. Pure arithmetic from a
// model's shape; it reserves and maps nothing. It counts bytes, never whole tokens per page, so a slot may be smaller
// than a page or no multiple of it, and a page may end inside a token. Each layer set has reservations and rows of its
// own (set-layout.ts); sets in which nothing grows have bytes alone.

import { driverKinds, type DriverKind } from '../base/driver-kind.js';
import { createError } from '../base/errors.js';
import { checkInteger, integer, oneOf, optional, readOptions, withDefault, type Field } from '../base/options.js';
import { dtypeBytes, type TensorSpec } from '../base/dtypes.js';
import { workerShape, type ConstantSet, type ModelShape } from './model-shape.js';
import {
  chooseFullLayout, chooseLayout, groupByReservation, layoutChoices, needLayout, reservationsOf, rowLayout,
  type ChosenLayout, type LayerSetLayout, type LayoutKind, type ReservationSpec, type RowLayout, type SlotShape,
} from './set-layout.js';

export { layoutChoices, layoutKinds } from './set-layout.js';
export type { LayerSetLayout, LayoutKind, LayoutReason, ReservationSpec, RowLayout } from './set-layout.js';

/** Options of `computeLayout`. */
export interface LayoutOptions {
  /** The whole model; `model.parallel` says which part of it this worker holds. */
  readonly model: ModelShape;
  /**
   * How tensors of full attention share reservations; other layer sets choose by a rule of their own. `auto`:
   * `per-layer` while a row has at most 512 tokens (a quarter of a typical prompt of 2,048; of `maxTokens`, where that
   * is less), and the first rows of all slots take at most a quarter of `memoryBudgetBytes`; else `fused`. On a GPU
   * `per-layer` while a row has at most two such prompts. `kind` says which it is, and `sets[0].layoutReason` why.
   */
  readonly layout: LayoutKind | 'auto';
  /** Slots of the cache, at least 1. */
  readonly slots: number;
  /** Tokens that a slot has addresses for, at least 1. */
  readonly maxTokens: number;
  /** Bytes of a physical page, at least 1. The driver's granularity is not checked here. */
  readonly pageBytes: number;
  /** Bytes of physical memory, at least 1, which `auto` takes into account. Default: not known. */
  readonly memoryBudgetBytes?: number | undefined;
  /** The driver, for `auto`: `host` is the CPU, both others are a GPU. Default `host`. */
  readonly driverKind?: DriverKind | undefined;
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

/**
 * Layers in which nothing grows with a sequence. A face is one copy of what they keep of a sequence: of a state set
 * there are two or more; a fixed set has one; a shared set keeps nothing.
 */
export interface ConstantSetLayout {
  /** What its layers keep. */
  readonly kind: 'state' | 'fixed' | 'shared';
  /** Its layers on this worker, ascending. */
  readonly layers: readonly number[];
  /** Of a shared set: the layer whose K and V each of `layers` reads. */
  readonly owners?: readonly number[] | undefined;
  /** Faces of a sequence. */
  readonly faces: number;
  /** Bytes of a face on this worker. */
  readonly faceBytes: number;
  /** Pages of a face, which begins on a page of its own. */
  readonly facePages: number;
}

/**
 * Where tensors, slots and rows lie in a cache's reservations. Pure arithmetic; frozen. Tensors and reservations are of
 * all layer sets; the arithmetic of rows is that of `sets[0]`.
 */
export interface Layout extends RowLayout {
  /** How tensors of `sets[0]` share reservations. */
  readonly kind: LayoutKind;
  /** Bytes of a page. */
  readonly pageBytes: number;
  /** Slots of the cache. */
  readonly slots: number;
  /** Tokens a slot has addresses for. */
  readonly maxTokens: number;
  /** Every tensor on this worker, in layer order, K before V. */
  readonly tensors: readonly TensorPlacement[];
  /** The address ranges of the cache, those of `sets[0]` first. */
  readonly reservations: readonly ReservationSpec[];
  /** Bytes of addresses of all reservations. */
  readonly virtualBytes: number;
  /** Layer sets with rows: the full set first, where there is one; one full set where the model names none. */
  readonly sets: readonly LayerSetLayout[];
  /** Layer sets without rows: their memory does not grow with a sequence. */
  readonly constantSets: readonly ConstantSetLayout[];
}

const positive = integer({ min: 1 });
const unchecked: Field<ModelShape> = (value) => value as ModelShape; // tensorsOf checks it

const spec = {
  model: unchecked,
  layout: oneOf(layoutChoices),
  slots: positive,
  maxTokens: positive,
  pageBytes: positive,
  memoryBudgetBytes: optional(positive),
  driverKind: withDefault(oneOf(driverKinds), 'host'),
};

/**
 * Computes a layout. Throws KV_INVALID_OPTION, KV_INVALID_SHAPE, and KV_OUT_OF_ADDRESS_SPACE where sizes exceed 2⁵³
 * bytes.
 */
export function computeLayout(options: LayoutOptions): Layout {
  const { model, layout, memoryBudgetBytes, driverKind, ...slot } = readOptions('computeLayout', options, spec);
  const { tensors: specs, sets, constantSets } = workerShape(model);
  const reservations: ReservationSpec[] = [];
  const groups: (readonly number[])[] = [];
  const laidOut = sets.map((set) => {
    const { need, tensors } = set;
    const chosen: ChosenLayout = need.kind === 'full'
      ? chooseFullLayout(set.layout ?? layout, tensors, specs, slot, { driverKind, memoryBudgetBytes })
      : chooseLayout(set.layout ?? 'auto', need, tensors, specs, slot);
    const own = groupByReservation(chosen.layout, set.tensors, specs);
    const first = groups.length;
    for (const group of own) groups.push(group);
    for (const reservation of reservationsOf(own, specs, slot)) reservations.push(reservation);
    return { set, chosen, first, count: own.length };
  });
  const virtualBytes = sum(reservations.map(({ bytes }) => bytes));
  checkSize(virtualBytes + sum(constantSets.map(({ faces, faceBytes }) => faces * faceBytes)), groups.length, slot);
  const all = laidOut.map(({ set: { need, layers, tensors }, chosen, first, count }): LayerSetLayout => {
    const rows = rowLayout(reservations.slice(first, first + count), first, slot);
    return {
      ...need, layers, ...chosen, tensors, reservations: { first, count }, ...rows,
      ...needLayout(need, rows.commonTokenBytes, slot),
    };
  });

  // Frozen all through: a cache's kernels and its addon copy these numbers.
  return deepFreeze({
    kind: all[0]!.layout, ...slot,
    tensors: placeTensors(specs, groups, reservations, slot),
    reservations,
    ...rowLayout(reservations.slice(0, laidOut[0]!.count), 0, slot),
    virtualBytes, sets: all,
    constantSets: constantSets.map((set) => faceLayout(set, slot.pageBytes)),
  });
}

/** Smallest pages that are chosen, and most of them in a budget: a process has 65,530 kernel mappings. */
const smallPageBytes = 2 ** 16;
const mostSmallPages = 2 ** 14;

/** Bytes of a page by which a budget has at most 16,384: a power of two from 64 KiB to 2 MiB. */
export function pageBytesWithin(memoryBudgetBytes: number): number {
  return Math.min(2 ** 21, Math.max(smallPageBytes, 2 ** Math.ceil(Math.log2(memoryBudgetBytes / mostSmallPages))));
}

/** Fewest tokens of a row of `fused` in smaller pages. */
const fewestRowTokens = 16;

/** Page sizes of a driver; small pages would be no huge pages. */
export interface PageSizes {
  readonly info: { readonly granularityBytes: number; readonly defaultPageBytes: number };
  readonly hasHugePages?: boolean;
}

/**
 * Bytes of a page where no option says them: the driver's; on a CPU smaller ones where `auto` finds no layout whose
 * rows are short and small enough in those: as `pageBytesWithin` the budget, and so that rows of `fused` have 16 tokens
 * or more. Throws as `computeLayout`.
 */
export function choosePageBytes(
  options: Omit<LayoutOptions, 'pageBytes'>, { info: { granularityBytes, defaultPageBytes }, hasHugePages }: PageSizes,
): number {
  const { layout, driverKind = 'host', memoryBudgetBytes = 1 } = options;
  if (layout !== 'auto' || driverKind !== 'host' || hasHugePages === true) return defaultPageBytes;
  const { layoutReason, usedBytes } = computeLayout({ ...options, pageBytes: defaultPageBytes }).sets[0]!;
  if (layoutReason !== 'smallest') return defaultPageBytes;
  const rowBytes = 2 ** Math.ceil(Math.log2(fewestRowTokens * usedBytes(1)));
  return Math.min(defaultPageBytes, Math.max(granularityBytes, pageBytesWithin(memoryBudgetBytes), rowBytes));
}

function checkSize(bytes: number, reservations: number, { slots, maxTokens }: SlotShape): void {
  if (Number.isSafeInteger(bytes)) return;
  throw createError('KV_OUT_OF_ADDRESS_SPACE', {
    bytes, reservations, slots, maxTokens, limitBytes: Number.MAX_SAFE_INTEGER,
  });
}

function faceLayout({ kind, layers, owners, faces, faceBytes }: ConstantSet, pageBytes: number): ConstantSetLayout {
  return { kind, layers, owners, faces, faceBytes, facePages: Math.ceil(faceBytes / pageBytes) };
}

function deepFreeze<T extends object>(value: T): T {
  for (const member of Object.values(value)) {
    if (typeof member === 'object' && member !== null) deepFreeze(member as object);
  }
  return Object.freeze(value);
}

/** The layer whose K and V a layer of a shared set reads; undefined for any other. */
export function ownerOf({ constantSets }: Layout, layer: number): number | undefined {
  const set = constantSets.find(({ kind, layers }) => kind === 'shared' && layers.includes(layer));
  return set?.owners?.[set.layers.indexOf(layer)];
}

/**
 * Bytes from the start of a tensor's reservation to one of its tokens. Throws KV_INVALID_OPTION; checks no upper
 * bounds.
 */
export function byteOffset(tensor: TensorPlacement, slot: number, token: number): number {
  checkInteger('byteOffset', 'slot', slot);
  checkInteger('byteOffset', 'token', token);
  const { offsetBytes, strides } = ofLayout(tensor, 'tensor');
  const { slotBytes, tokenBytes } = ofLayout(strides, 'tensor.strides');
  checkInteger('byteOffset', 'tensor.offsetBytes', offsetBytes);
  checkInteger('byteOffset', 'tensor.strides.slotBytes', slotBytes);
  checkInteger('byteOffset', 'tensor.strides.tokenBytes', tokenBytes);
  return offsetBytes + slot * slotBytes + token * tokenBytes;
}

function ofLayout<T>(object: T, option: string): T {
  if (typeof object === 'object' && object !== null) return object;
  throw createError('KV_INVALID_OPTION', {
    reason: 'type', owner: 'byteOffset', option, expected: 'a tensor of a layout', received: object,
  });
}

function placeTensors(
  specs: readonly TensorSpec[], groups: readonly (readonly number[])[], reservations: readonly ReservationSpec[],
  { slots, maxTokens }: SlotShape,
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

function sum(values: readonly number[]): number {
  return values.reduce((total, value) => total + value, 0);
}
