// SideNames: the side tensors of a cache by their names, as callers give them, and which of them a sequence carries.

import { createError } from '../base/errors.js';
import { formatList } from '../base/format.js';
import type { FieldPlace } from '../base/options.js';
import type { SideSlots } from './side-slots.js';
import type { SideTensor } from './side-tensor.js';

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
