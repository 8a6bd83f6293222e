// SideRows: what callers write to side tensors, and how it is checked: the right elements, as many as the tokens, for tokens that are
// being computed and behind what was written before. Nothing counts as written unless all of it is right.

import { createError } from '../base/errors.js';
import { isOptionsObject, withoutRevoked } from '../base/options.js';
import { lengthOf, typedArrayKind } from '../base/typed-arrays.js';
import { arrayNameOf, bytesIfOf, type TensorView } from '../layout/dtype-arrays.js';
import type { SideTensor } from './side-tensor.js';
import type { SideTensors } from './side-tensors.js';

/** Rows by name of the side tensor, each [tokens, width] as a typed array of its dtype. */
export type SideRowsByName = Readonly<Record<string, TensorView>>;

/** Names and what was given under each, not checked. */
export type ReadSideRows = readonly (readonly [string, unknown])[];

/** Sequences and their new tokens, in the order of the rows. */
export interface RowPlaces {
  readonly slots: Int32Array;
  readonly tokens: Int32Array;
  /** Generations of the slots' sequences; one that was released since is passed over. Undefined: all are alive. */
  readonly generations: Uint32Array | undefined;
  readonly length: number;
  /** Whether sequences of which earlier rows were not written are passed over: none of theirs behind those can be. Default: refused. */
  readonly skipsGaps?: boolean;
}

/** Checked rows of one tensor. */
interface PackedRows {
  readonly tensor: SideTensor;
  readonly bytes: Uint8Array;
  readonly quads: Int32Array;
  readonly count: number;
}

export class SideRows {
  readonly #side: SideTensors;
  /** By tensor, used again. */
  readonly #quads = new Map<SideTensor, Int32Array>();
  readonly #one = { slots: new Int32Array(1), tokens: new Int32Array(1), generations: undefined, length: 1 };

  constructor(side: SideTensors) {
    this.#side = side;
  }

  /**
   * Writes the rows of a prepared batch, packed in its order, to the sequences that carry the tensor. Throws KV_INVALID_OPTION,
   * KV_SIDE_STATE, or what the driver says; then nothing counts as written.
   */
  writeBatch(owner: string, places: RowPlaces, rows: ReadSideRows): void {
    this.#write(owner, places, undefined, rows);
  }

  /** The same for tokens of one sequence from `from` on, which carries every tensor that is named. */
  writeTo(owner: string, slot: number, from: number, rows: ReadSideRows): void {
    const tensors = rows.map(([name]) => this.#side.names.carriedBy(slot, { owner, option: `rows.${name}` }, name, 'write'));
    if (tensors.length === 0) return;
    const [, first] = rows[0]!;
    this.#one.slots[0] = slot;
    this.#one.tokens[0] = typedArrayKind(first) === undefined ? 0 : Math.floor(lengthOf(first as Float32Array) / tensors[0]!.open.width);
    this.#write(owner, this.#one, from, rows);
  }

  #write(owner: string, places: RowPlaces, from: number | undefined, rows: ReadSideRows): void {
    const packed = rows.map(([name, given]) => this.#pack(owner, name, given, places, from));
    for (const { tensor, quads, count, bytes } of packed) tensor.put(quads, count, bytes);
    for (const { tensor, quads, count } of packed) {
      for (let at = 0; at < 4 * count; at += 4) tensor.written[quads[at]!] = quads[at + 1]! + quads[at + 2]!;
    }
  }

  #pack(owner: string, name: string, rows: unknown, { slots, tokens, generations, length, skipsGaps = false }: RowPlaces, from: number | undefined): PackedRows {
    const { tensor, bit } = this.#side.names.named(owner, `rows.${name}`, name);
    let total = 0;
    for (let index = 0; index < length; index += 1) total += tokens[index]!;
    const bytes = rowBytes(owner, tensor, rows, total);
    const { sideSlots, slots: numbers } = this.#side;
    let quads = this.#quads.get(tensor);
    if (quads === undefined || quads.length < 4 * length) this.#quads.set(tensor, quads = new Int32Array(8 * length));
    let count = 0;
    let at = 0;
    for (let index = 0; index < length; index += 1) {
      const slot = slots[index]!;
      const isAlive = generations === undefined || generations[index] === numbers.generation[slot];
      if (isAlive && (sideSlots.carried[slot]! & bit) !== 0) {
        const first = from ?? numbers.length[slot]!;
        if (!skipsGaps || first <= tensor.written[sideSlots.of[slot]!]!) {
          this.#check(tensor, slot, first, tokens[index]!);
          quads[4 * count] = sideSlots.of[slot]!;
          quads[4 * count + 1] = first;
          quads[4 * count + 2] = tokens[index]!;
          quads[4 * count + 3] = at;
          count += 1;
        }
      }
      at += tokens[index]!;
    }
    return { tensor, bytes, quads, count };
  }

  #check(tensor: SideTensor, slot: number, from: number, tokens: number): void {
    const { sideSlots, slots } = this.#side;
    const length = slots.length[slot]!;
    const end = length + slots.prepared[slot]!;
    const written = tensor.written[sideSlots.of[slot]!]!;
    if (from >= length && from + tokens <= end && from <= written) return;
    const refuse = (problem: string, hint: string): Error =>
      createError('KV_SIDE_STATE', { operation: 'write', sideTensor: tensor.open.name, problem: `slot ${slot}: ${problem}`, hint });
    if (from < length) {
      throw refuse(`token ${from} was committed, as were all before ${length}`, 'Write the rows of a batch after `prepare` and before `commit`.');
    }
    if (from + tokens > end) {
      throw refuse(`its prepared tokens end at ${end}, the rows at ${from + tokens}`, 'Prepare a batch with the tokens that the rows belong to.');
    }
    throw refuse(
      `the rows of tokens ${written} to ${from - 1} were not written`,
      'Write all rows in order, or let the sequence not carry the tensor (`acquire({ needs })`).',
    );
  }
}

/**
 * Reads names and rows, each once. Getters may run: what they could change must be checked behind it. Throws KV_INVALID_OPTION, and what a
 * getter throws.
 */
export function readSideRows(owner: string, rows: unknown): ReadSideRows {
  const place = { owner, option: 'rows' };
  if (isOptionsObject(rows)) return withoutRevoked(rows, place, () => Object.entries(rows));
  throw createError('KV_INVALID_OPTION', { reason: 'type', ...place, expected: 'an object with a typed array for each name', received: rows });
}

function rowBytes(owner: string, { open: { name, dtype, width } }: SideTensor, rows: unknown, tokens: number): Uint8Array {
  const bytes = bytesIfOf(dtype, rows);
  const elements = bytes === undefined ? -1 : lengthOf(rows as Float32Array);
  if (bytes !== undefined && elements === tokens * width) return bytes;
  throw createError('KV_INVALID_OPTION', {
    reason: bytes === undefined ? 'type' : 'range', owner, option: `rows.${name}`, received: bytes === undefined ? rows : elements,
    expected: `a ${arrayNameOf(dtype)} of ${tokens} × ${width} elements`, hint: `The tensor is ${dtype}; rows are packed in the order of the batch.`,
  });
}
