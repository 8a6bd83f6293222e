// Opens the side tensors of a cache: a page pool and a reservation for each, in the CPU's memory or on the cache's
// driver. When one cannot be opened, nothing stays.

import { type SideDtype, sideDtypeBytes, sideDtypes } from '../base/dtypes.js';
import { createError, isKvError } from '../base/errors.js';
import { type Field, integer, isOptionsObject, oneOf, optional, readOptions, withDefault } from '../base/options.js';
import { rowArithmetic } from '../base/row-arithmetic.js';
import type { BackgroundErrors, PolicyGuard } from '../device/cache-calls.js';
import { Driver } from '../device/driver.js';
import { native as addon, type NativeCache } from '../device/native.js';
import { PagePool } from '../device/page-pool.js';
import type { ChangeSignal } from '../device/wait.js';
import type { NodeTable } from '../prefix/prefix-tree.js';
import { SideBudget } from './side-budget.js';
import { SideCopies } from './side-copies.js';
import type { WithheldNodes } from './side-cover.js';
import { type SideMemory, SideSlots } from './side-slots.js';
import { SideTensor } from './side-tensor.js';
import { SideTensors, type SlotLengths } from './side-tensors.js';

// The options of a cache's side tensors: name, width, dtype and place of each, and how they are read.

/** What one side tensor keeps per token. */
export interface SideTensorShape {
  /** Elements of a token's row, 1 … 1,048,576. */
  readonly width: number;
  /** Type of the elements: as of K and V, or `int32` for codes and other whole numbers. */
  readonly dtype: SideDtype;
  /**
   * Where it is kept. `host`: in the CPU's memory, whatever the cache's driver, for a next stage that reads it there.
   * `device`: in the memory of the cache's driver, for one that runs on it. Default `host`.
   */
  readonly place?: 'host' | 'device' | undefined;
  /**
   * Bytes of a page, a multiple of the driver's granularity: what can be shared without a copy. Default: on host 256
   * KiB for rows of 1 KiB or more, 64 KiB for shorter ones; on another driver its own page size.
   */
  readonly pageBytes?: number | undefined;
}

/** Side tensors by name; at most 31. A name is any string that is not empty. */
export type SideTensorShapes = Readonly<Record<string, SideTensorShape>>;

export interface ReadSideTensor {
  readonly name: string;
  readonly width: number;
  readonly dtype: SideDtype;
  readonly place: 'host' | 'device';
  readonly pageBytes: number | undefined;
}

/** A set of them is a number's bits. */
const mostTensors = 31;

const shapeSpec = {
  width: integer({ min: 1, max: 2 ** 20 }), dtype: oneOf(sideDtypes),
  place: withDefault(oneOf(['host', 'device']), 'host'),
  pageBytes: optional(integer({ min: 1 })),
};

/** Throws KV_INVALID_OPTION and KV_UNKNOWN_OPTION. */
export const sideTensorsField: Field<readonly ReadSideTensor[]> = (value, place) => {
  if (value === undefined) return [];
  const refuse = (reason: 'type' | 'range', expected: string, received: unknown): Error =>
    createError('KV_INVALID_OPTION', { reason, ...place, expected, received });
  if (!isOptionsObject(value)) throw refuse('type', 'an object with one shape for each name', value);
  const names = Object.keys(value);
  if (names.length > mostTensors) {
    throw refuse('range', `an object of at most ${mostTensors} names`, `one of ${names.length}`);
  }
  return names.map((name) => {
    if (name === '') throw refuse('range', 'an object whose names are not empty', "''");
    const shape = (value as Readonly<Record<string, unknown>>)[name];
    return { name, ...readOptions(place.owner, shape, shapeSpec, `${place.option}.${name}`) };
  });
};

const kibibyte = 1024;

export interface SideTensorsToOpen {
  readonly tensors: readonly ReadSideTensor[];
  /** Bytes of all pages together; undefined: as many tokens as K and V have, and a page per slot and tensor. */
  readonly budgetBytes: number | undefined;
  readonly cachedTokens: number;
  readonly slots: number;
  readonly handOverSlots: number;
  readonly maxTokens: number;
  readonly isScrubbed: boolean;
  /** The cache's driver. */
  readonly driver: Driver;
  /** The one for tensors in the CPU's memory; undefined: one is opened. */
  readonly sideDriver: Driver | undefined;
}

export interface SideCollaborators {
  readonly nodes: NodeTable;
  readonly withheld: WithheldNodes;
  readonly lengths: SlotLengths;
  readonly background: BackgroundErrors;
  readonly capacity: ChangeSignal;
  readonly guard: PolicyGuard;
  readonly owner: object;
}

/** Side tensors, and what closes their memory: it does not refer to the cache. */
export interface OpenSide {
  readonly side: SideTensors;
  readonly closeMemory: () => void;
}

/** Throws KV_INVALID_OPTION, KV_OUT_OF_ADDRESS_SPACE, and what the driver throws. */
export function openSideTensors(
  given: SideTensorsToOpen, { nodes, withheld, lengths, background, capacity, guard, owner }: SideCollaborators,
): OpenSide {
  const { tensors: shapes, slots, driver, handOverSlots } = given;
  const { sideDriver } = given;
  const isOnHost = shapes.some(({ place }) => place === 'host');
  const own = isOnHost && sideDriver === undefined
    ? Driver.open('host', { populate: true, hugePages: shapes.some(isHuge) })
    : undefined;
  const host = sideDriver ?? own;
  const tensors: SideTensor[] = [];
  const clock = { now: 0 };
  const memories: SideMemory[] = [];
  const copies = new SideCopies(driver, isOnHost ? host : undefined, slots + handOverSlots);
  const closeMemory = closingOf(memories, copies, own);
  try {
    const sideSlots = new SideSlots(slots, shapes.length === 0 ? 0 : handOverSlots);
    const budget = new SideBudget(tensors, budgetOf(given, host ?? driver), withheld);
    for (const shape of shapes) {
      const on = shape.place === 'host' ? host ?? driver : driver;
      const makeRoom = (tensor: SideTensor, pages: number): void => {
        budget.makeRoom([{ tensor, pages: Math.max(0, pages) }]);
      };
      const open = openTensor(shape, on, given, budget.bytes);
      memories.push(open);
      tensors.push(new SideTensor(open, { nodes, withheld, clock, background, owner, copies, makeRoom }));
    }
    return {
      side: new SideTensors({
        tensors, sideSlots, budget, copies, clock, slots: lengths, background, capacity, guard,
      }),
      closeMemory,
    };
  } catch (error) {
    closeMemory();
    throw error;
  }
}

/** Idempotent; after a failure of the driver call it again. */
function closingOf(memories: readonly SideMemory[], copies: SideCopies, driver: Driver | undefined): () => void {
  return () => {
    copies.close();
    for (const { native, pool } of memories) {
      native.close();
      pool.close();
    }
    driver?.close();
  };
}

function openTensor(
  { name, width, dtype, pageBytes }: ReadSideTensor, driver: Driver, given: SideTensorsToOpen, budgetBytes: number,
): SideMemory {
  const { maxTokens, slots, handOverSlots, isScrubbed } = given;
  const tokenBytes = width * sideDtypeBytes(dtype);
  const pool = new PagePool({
    driver, pageBytes: pageBytes ?? defaultPageBytes(driver, tokenBytes), memoryBudgetBytes: budgetBytes,
    headroomBytes: 0, readyBytes: 0,
  });
  const count = slots + handOverSlots;
  const rows = new Int32Array(count);
  const isQuarantined = new Uint8Array(count);
  try {
    const native: NativeCache = new (addon().NativeCache)(pool.native, {
      pageBytes: pool.pageBytes, slots: count, maxTokens, scrub: isScrubbed, mapper: false,
      tokenBytes: Float64Array.of(tokenBytes), tensors: Float64Array.of(0, 0, tokenBytes),
    }, rows, isQuarantined);
    const arithmetic = rowArithmetic({ tokenBytes, pageBytes: pool.pageBytes });
    return {
      name, width, dtype, tokenBytes, arithmetic, slotPages: arithmetic.rowsFor(maxTokens), pool, native, rows,
      isQuarantined,
    };
  } catch (error) {
    pool.close();
    if (!isKvError(error, 'KV_OUT_OF_ADDRESS_SPACE')) throw error;
    const bytes = Math.ceil(maxTokens * tokenBytes / pool.pageBytes) * pool.pageBytes * count;
    throw createError('KV_OUT_OF_ADDRESS_SPACE', { bytes, reservations: 1, slots: count, maxTokens }, { cause: error });
  }
}

const hugePageBytes = 2 ** 21;

function isHuge({ place, pageBytes }: ReadSideTensor): boolean {
  return place === 'host' && pageBytes !== undefined && pageBytes % hugePageBytes === 0;
}

/** Small enough that a short text shares something, large enough that a long one is few pages. */
function defaultPageBytes(driver: Driver, tokenBytes: number): number {
  const { granularityBytes, defaultPageBytes: own } = driver.info;
  if (driver.kind !== 'host') return own;
  const wanted = tokenBytes >= kibibyte ? 256 * kibibyte : 64 * kibibyte;
  return Math.ceil(wanted / granularityBytes) * granularityBytes;
}

function budgetOf({ tensors, budgetBytes, cachedTokens, slots }: SideTensorsToOpen, driver: Driver): number {
  const pages =
    tensors.map(({ width, dtype, pageBytes }) => pageBytes ?? defaultPageBytes(driver, width * sideDtypeBytes(dtype)));
  const largest = pages.reduce((most, bytes) => Math.max(most, bytes), 1);
  if (budgetBytes !== undefined) {
    if (budgetBytes >= largest) return budgetBytes;
    throw createError('KV_INVALID_OPTION', {
      reason: 'range', owner: 'KvCache', option: 'sideBudgetBytes', expected: `at least ${largest}`,
      received: budgetBytes,
      hint: 'That is the largest page of a side tensor.',
    });
  }
  const bytes = tensors.reduce(
    (sum, { width, dtype }, index) => sum + cachedTokens * width * sideDtypeBytes(dtype) + slots * pages[index]!, 0);
  return Math.max(largest, driver.kind === 'mock' ? bytes : Math.min(bytes, driver.memory().totalBytes));
}
