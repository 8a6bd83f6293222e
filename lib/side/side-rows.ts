// SideRows: what callers write to side tensors, and how it is checked: the right elements, as many as the tokens, for
// tokens that are being computed and behind what was written before. Nothing counts as written unless all of it is
// right.

import { arrayNameOf, bytesIfOf, type SideView } from '../base/dtypes.js';
import { createError } from '../base/errors.js';
import {
  checkInteger, type Field, isAddress, isOptionsObject, readOptions, streamField, withDefault,
} from '../base/options.js';
import { lengthOf, typedArrayKind } from '../base/typed-arrays.js';
import { DeviceMemory } from '../device/device-memory.js';
import type { Driver } from '../device/driver.js';
import type { DeviceBytes, SideTensor } from './side-tensor.js';
import type { SideTensors } from './side-tensors.js';

// DeviceRows: rows that lie in the memory of the cache's driver, as callers name them, and how that is read.

/** Rows of a side tensor in the memory of the cache's driver, packed as an array of them would be. */
export interface DeviceRows {
  /**
   * Where the first row begins: memory of the cache's driver, or an address of it, which must stay valid until the copy
   * is over (on host an address in memory that this package has mapped).
   */
  readonly memory: DeviceMemory | bigint;
  /** Byte of `memory` where the first row begins, at least 0. Default 0. */
  readonly atByte?: number | undefined;
  /**
   * The stream (a CUstream) that computes the rows. They are copied behind all that was queued on it, and what is
   * queued on it later runs behind the copy. Default: the default stream. On host all is done when a call returns.
   */
  readonly stream?: bigint | undefined;
}

export interface ReadDeviceRows {
  readonly memory: DeviceMemory | undefined;
  /** Of the first row. */
  readonly address: bigint;
  readonly atByte: number;
  readonly stream: bigint;
}

const memoryField: Field<DeviceMemory | bigint> = (value, place) => {
  if (DeviceMemory.isInstance(value) || (isAddress(value) && value > 0n)) return value;
  throw createError('KV_INVALID_OPTION', {
    reason: 'type', ...place, expected: 'a DeviceMemory or an address (a bigint above 0)', received: value,
  });
};

const atByteField: Field<number> = (value, { owner, option }) => {
  checkInteger(owner, option, value as number);
  return value as number;
};

const spec = { memory: memoryField, atByte: withDefault(atByteField, 0), stream: withDefault(streamField, 0n) };

/**
 * What a caller gave for rows, if it names memory of a device: a DeviceMemory, an address, or DeviceRows; undefined for
 * anything else. Throws KV_INVALID_OPTION, KV_UNKNOWN_OPTION.
 */
export function readDeviceRows(owner: string, option: string, value: unknown): ReadDeviceRows | undefined {
  const isMemory = typeof value === 'bigint' || DeviceMemory.isInstance(value);
  if (!isMemory && !(isOptionsObject(value) && !ArrayBuffer.isView(value) && 'memory' in value)) return undefined;
  const { memory, atByte, stream } = isMemory ? { memory: memoryField(value, { owner, option }), atByte: 0, stream: 0n }
    : readOptions(owner, value, spec, option);
  const isAddressOnly = typeof memory === 'bigint';
  return {
    memory: isAddressOnly ? undefined : memory, address: (isAddressOnly ? memory : memory.address) + BigInt(atByte),
    atByte, stream,
  };
}

/**
 * So many bytes of them. Throws KV_INVALID_OPTION where there are not so many, or it is another driver's memory, and
 * KV_CLOSED.
 */
export function deviceBytes(
  owner: string, option: string, { memory, address, atByte }: ReadDeviceRows, driver: Driver, bytes: number,
): DeviceBytes {
  if (memory !== undefined) {
    if (memory.driver !== driver) {
      throw createError('KV_INVALID_OPTION', {
        reason: 'range', owner, option, expected: 'memory of the driver of the cache', received: memory,
      });
    }
    if (memory.isClosed) throw createError('KV_CLOSED', { operation: 'read', owner: 'DeviceMemory' });
    if (atByte + bytes > memory.bytes) {
      throw createError('KV_INVALID_OPTION', {
        reason: 'range', owner, option, expected: `memory of at least ${atByte + bytes} bytes`, received: memory.bytes,
        hint: 'It holds the rows of all tokens of the batch, packed.',
      });
    }
  }
  return { driver, address, bytes };
}

/**
 * Rows by name of the side tensor, each [tokens, width]: as a typed array of its dtype, which is copied at once, or in
 * memory of the cache's driver (`DeviceRows`, or only its `memory`), from which it is copied behind what is queued
 * there.
 */
export type SideRowsByName = Readonly<Record<string, SideView | DeviceRows | DeviceMemory | bigint>>;

/** Names and what was given under each: device rows as they were read, anything else not checked. */
export type ReadSideRows = readonly (readonly [name: string, rows: unknown, onDevice: ReadDeviceRows | undefined])[];

/** Sequences and their new tokens, in the order of the rows. */
export interface RowPlaces {
  readonly slots: Int32Array;
  readonly tokens: Int32Array;
  /** Generations of the slots' sequences; one that was released since is passed over. Undefined: all are alive. */
  readonly generations: Uint32Array | undefined;
  readonly length: number;
  /**
   * Whether sequences of which earlier rows were not written are passed over: none of theirs behind those can be.
   * Default: refused.
   */
  readonly skipsGaps?: boolean;
}

/** Checked rows of one tensor. */
interface PackedRows {
  readonly tensor: SideTensor;
  readonly bytes: Uint8Array | undefined;
  /** Where they are instead, and the stream that computes them. */
  readonly onDevice: { readonly from: DeviceBytes; readonly stream: bigint } | undefined;
  readonly quads: Int32Array;
  /** Of the cache, as the quads name those of the tensor. */
  readonly slots: Int32Array;
  readonly count: number;
}

/** Scratch of a tensor. */
interface Lists {
  readonly quads: Int32Array;
  readonly slots: Int32Array;
}

export class SideRows {
  readonly tensors: SideTensors;
  /** The cache's. */
  readonly #driver: Driver;
  #places = new Int32Array(0);
  /** By tensor, used again. */
  readonly #lists = new Map<SideTensor, Lists>();
  readonly #one = { slots: new Int32Array(1), tokens: new Int32Array(1), generations: undefined, length: 1 };

  constructor(tensors: SideTensors, driver: Driver) {
    this.tensors = tensors;
    this.#driver = driver;
  }

  /**
   * Writes the rows of a prepared batch, packed in its order, to the sequences that carry the tensor. Throws
   * KV_INVALID_OPTION, KV_SIDE_STATE, or what the driver says; then nothing counts as written.
   */
  writeBatch(owner: string, places: RowPlaces, rows: ReadSideRows): void {
    this.#write(owner, places, undefined, rows);
  }

  /** The same for tokens of one sequence from `from` on, which carries every tensor that is named. */
  writeTo(owner: string, slot: number, from: number, rows: ReadSideRows): void {
    const tensors =
      rows.map(([name]) => this.tensors.names.carriedBy(slot, { owner, option: `rows.${name}` }, name, 'write'));
    if (tensors.length === 0) return;
    this.#one.slots[0] = slot;
    this.#one.tokens[0] = this.#tokensOf(slot, from, rows[0]!, tensors[0]!);
    this.#write(owner, this.#one, from, rows);
  }

  /** Rows on the device do not say how many they are: those of all tokens that are being computed from there on. */
  #tokensOf(slot: number, from: number, [, rows, onDevice]: ReadSideRows[number], tensor: SideTensor): number {
    const { length, prepared } = this.tensors.slots;
    if (onDevice !== undefined) return Math.max(0, length[slot]! + prepared[slot]! - from);
    return typedArrayKind(rows) === undefined ? 0 : Math.floor(lengthOf(rows as Float32Array) / tensor.open.width);
  }

  #write(owner: string, places: RowPlaces, from: number | undefined, rows: ReadSideRows): void {
    const packed = rows.map((given) => this.#pack(owner, given, places, from));
    const { hasStreams } = this.#driver.info;
    // what is written again does not count until all of it is
    for (const { tensor: { writes }, quads, count } of packed) {
      for (let at = 0; at < 4 * count; at += 4) {
        if (quads[at + 1]! < writes.written[quads[at]!]!) writes.cut(quads[at]!, quads[at + 1]!);
      }
    }
    for (const { tensor: { writes }, quads, count, bytes, onDevice } of packed) {
      if (bytes !== undefined) writes.put(quads, count, bytes);
      else if (!hasStreams) writes.fetch(quads, count, onDevice!.from, onDevice!.stream);
    }
    if (hasStreams) this.#queue(packed.filter(({ onDevice }) => onDevice !== undefined));
    for (const { tensor: { writes }, quads, count, onDevice } of packed) {
      writes.count(quads, count, onDevice === undefined || !hasStreams);
    }
  }

  /** Queues copies, those of each stream together. Where the driver refuses one stream's, no row of any counts. */
  #queue(packed: readonly PackedRows[]): void {
    try {
      for (const stream of new Set(packed.map(({ onDevice }) => onDevice!.stream))) {
        const together = packed.filter(({ onDevice }) => onDevice!.stream === stream);
        const count = this.#placesOf(together);
        this.tensors.copies.run(stream, { places: this.#places, count }, (own) => {
          for (const { tensor: { writes }, quads, count: rows, onDevice } of together) {
            writes.fetch(quads, rows, onDevice!.from, own);
          }
        });
      }
    } catch (error) {
      for (const { tensor: { writes }, quads, count } of packed) {
        for (let at = 0; at < 4 * count; at += 4) writes.cut(quads[at]!, quads[at + 1]!);
      }
      throw error;
    }
  }

  /** Writes where copies go, as `SideCopies` has places. */
  #placesOf(packed: readonly PackedRows[]): number {
    const total = packed.reduce((sum, { count }) => sum + count, 0);
    if (this.#places.length < 4 * total) this.#places = new Int32Array(8 * total);
    let at = 0;
    for (const { tensor: { writes }, quads, slots, count } of packed) {
      for (let index = 0; index < count; index += 1, at += 4) {
        this.#places[at] = writes.number;
        this.#places[at + 1] = quads[4 * index]!;
        this.#places[at + 2] = slots[index]!;
        this.#places[at + 3] = quads[4 * index + 1]! + quads[4 * index + 2]!;
      }
    }
    return total;
  }

  #pack(
    owner: string, [name, rows, deviceRows]: ReadSideRows[number],
    { slots, tokens, generations, length, skipsGaps = false }: RowPlaces,
    from: number | undefined,
  ): PackedRows {
    const { tensor, bit } = this.tensors.names.named(owner, `rows.${name}`, name);
    let total = 0;
    for (let index = 0; index < length; index += 1) total += tokens[index]!;
    const bytes = deviceRows === undefined ? rowBytes(owner, tensor, rows, total) : undefined;
    const onDevice = deviceRows === undefined ? undefined : {
      from: deviceBytes(owner, `rows.${name}`, deviceRows, this.#driver, total * tensor.open.tokenBytes),
      stream: deviceRows.stream,
    };
    const { sideSlots, slots: numbers } = this.tensors;
    const { quads, slots: written } = this.#listsOf(tensor, length);
    let count = 0;
    let at = 0;
    for (let index = 0; index < length; index += 1) {
      const slot = slots[index]!;
      const isAlive = generations === undefined || generations[index] === numbers.generation[slot];
      if (isAlive && (sideSlots.carried[slot]! & bit) !== 0) {
        const first = from ?? numbers.length[slot]!;
        if (!skipsGaps || first <= tensor.writes.written[sideSlots.of[slot]!]!) {
          this.#check(tensor, slot, first, tokens[index]!);
          quads[4 * count] = sideSlots.of[slot]!;
          quads[4 * count + 1] = first;
          quads[4 * count + 2] = tokens[index]!;
          quads[4 * count + 3] = at;
          written[count] = slot;
          count += 1;
        }
      }
      at += tokens[index]!;
    }
    return { tensor, bytes, onDevice, quads, slots: written, count };
  }

  #listsOf(tensor: SideTensor, length: number): Lists {
    let lists = this.#lists.get(tensor);
    if (lists === undefined || lists.slots.length < length) {
      this.#lists.set(tensor, lists = { quads: new Int32Array(8 * length), slots: new Int32Array(2 * length) });
    }
    return lists;
  }

  #check(tensor: SideTensor, slot: number, from: number, tokens: number): void {
    const { sideSlots, slots } = this.tensors;
    const length = slots.length[slot]!;
    const end = length + slots.prepared[slot]!;
    const written = tensor.writes.written[sideSlots.of[slot]!]!;
    if (from >= length && from + tokens <= end && from <= written) return;
    const refuse = (problem: string, hint: string): Error =>
      createError('KV_SIDE_STATE', {
        operation: 'write', sideTensor: tensor.open.name, problem: `slot ${slot}: ${problem}`, hint,
      });
    if (from < length) {
      throw refuse(
        `token ${from} was committed, as were all before ${length}`,
        'Write the rows of a batch after `prepare` and before `commit`.');
    }
    if (from + tokens > end) {
      throw refuse(
        `its prepared tokens end at ${end}, the rows at ${from + tokens}`,
        'Prepare a batch with the tokens that the rows belong to.');
    }
    throw refuse(
      `the rows of tokens ${written} to ${from - 1} were not written`,
      'Write all rows in order, or let the sequence not carry the tensor (`acquire({ needs })`).',
    );
  }
}

/**
 * Reads names and rows, each once. Getters may run: what they could change must be checked behind it. Throws
 * KV_INVALID_OPTION, KV_UNKNOWN_OPTION, and what a getter throws.
 */
export function readSideRows(owner: string, rows: unknown): ReadSideRows {
  const place = { owner, option: 'rows' };
  if (isOptionsObject(rows)) {
    return Object.entries(rows).map((
      [name, given],
    ) => [name, given, readDeviceRows(owner, `rows.${name}`, given)] as const);
  }
  throw createError('KV_INVALID_OPTION', {
    reason: 'type', ...place, expected: 'an object with rows for each name', received: rows,
  });
}

function rowBytes(
  owner: string, { open: { name, dtype, width } }: SideTensor, rows: unknown, tokens: number,
): Uint8Array {
  const bytes = bytesIfOf(dtype, rows);
  const elements = bytes === undefined ? -1 : lengthOf(rows as Float32Array);
  if (bytes !== undefined && elements === tokens * width) return bytes;
  throw createError('KV_INVALID_OPTION', {
    reason: bytes === undefined ? 'type' : 'range', owner, option: `rows.${name}`,
    received: bytes === undefined ? rows : elements,
    expected: `a ${arrayNameOf(dtype)} of ${tokens} × ${width} elements`,
    hint: `The tensor is ${dtype}; rows are packed in the order of the batch.`,
  });
}
