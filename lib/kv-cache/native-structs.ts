// Native structs: a cache's tensors and a pass's sequences, written into arrays of the caller's as include/virtual_kv.h
// declares them, so that a native engine needs one call for each and no objects of JavaScript.

import { dtypes, type TensorSpec } from '../base/dtypes.js';
import { createError } from '../base/errors.js';
import { checkInteger } from '../base/options.js';
import { bytesOf, isInt32Array, lengthOf, typedArrayKind } from '../base/typed-arrays.js';
import { Batch } from '../cache/batch.js';
import type { SlotMemory } from '../cache/slots.js';

/** The sequences of a pass in arrays, as schedulers give them to an engine. Read during the call only. */
export interface PassArrays {
  /** Sequences in it: the first entries of each array count. */
  readonly length: number;
  /** [sequence]: its slot. */
  readonly slots: Int32Array;
  /** [sequence]: valid tokens, which is where the new ones go. */
  readonly positions: Int32Array;
  /** [sequence]: new tokens. */
  readonly tokenCounts: Int32Array;
  /** [sequence]: where its new tokens start in packed rows. */
  readonly starts: Int32Array;
}

/** Elements of a BigInt64Array that a `vkv_tensor` takes, and of these, those that are 64-bit numbers. */
const tensorWords = 8;
const longWords = 4;
/** Elements of an Int32Array that a `vkv_sequence` takes. */
const sequenceWords = 4;

const roles: readonly TensorSpec['role'][] = ['key', 'value', 'latent'];

/** Writes a `vkv_tensor` for each tensor; returns how many. Throws KV_INVALID_OPTION. */
export function writeTensors({ tensors }: SlotMemory, into: BigInt64Array): number {
  const words = tensors.length * tensorWords;
  const { buffer, byteOffset } = memoryOf('KvCache.writeTensors', into, 'BigInt64Array', words);
  const longs = new BigInt64Array(buffer, byteOffset, words);
  const ints = new Int32Array(buffer, byteOffset, 2 * words);
  tensors.forEach(({ address, strides, layer, role, heads, dim, dtype, shape: [slots, maxTokens] }, index) => {
    const { slotBytes, tokenBytes, headBytes, elementBytes } = strides;
    const inElements = [slotBytes, tokenBytes, headBytes].map((bytes) => BigInt(bytes / elementBytes));
    longs.set([address, ...inElements], index * tensorWords);
    ints.set(
      [layer, roles.indexOf(role), heads, dim, dtypes.indexOf(dtype), elementBytes, slots, maxTokens],
      2 * (index * tensorWords + longWords));
  });
  return tensors.length;
}

/**
 * Writes a `vkv_sequence` for each sequence of a prepared batch or of a pass; returns how many. Throws
 * KV_INVALID_OPTION and KV_BATCH_STATE.
 */
export function writeSequences({ slots: numbers }: SlotMemory, pass: Batch | PassArrays, into: Int32Array): number {
  if (Batch.isInstance(pass)) {
    Batch.check(pass, numbers, 'writeSequences', true);
    const { slots, tokens, lengths, length } = pass;
    const ints = intsOf(into, length);
    for (let index = 0, start = 0; index < length; index += 1) {
      const slot = slots[index]!;
      writeOne(ints, index, slot, lengths[slot]!, tokens[index]!, start);
      start += tokens[index]!;
    }
    return length;
  }
  const { slots, positions, tokenCounts, starts, length } = readPass(pass);
  const ints = intsOf(into, length);
  for (let index = 0; index < length; index += 1) {
    writeOne(ints, index, slots[index]!, positions[index]!, tokenCounts[index]!, starts[index]!);
  }
  return length;
}

function writeOne(ints: Int32Array, index: number, slot: number, position: number, count: number, start: number): void {
  const at = index * sequenceWords;
  ints[at] = slot;
  ints[at + 1] = position;
  ints[at + 2] = count;
  ints[at + 3] = start;
}

const sequencesOwner = 'KvCache.writeSequences';

function intsOf(into: Int32Array, sequences: number): Int32Array {
  const words = sequences * sequenceWords;
  const { buffer, byteOffset } = memoryOf(sequencesOwner, into, 'Int32Array', words);
  return new Int32Array(buffer, byteOffset, words);
}

/** Each member read once. */
function readPass(pass: PassArrays): PassArrays {
  const place = { owner: sequencesOwner, option: 'pass' };
  const wrong = (): Error => createError('KV_INVALID_OPTION', {
    reason: 'type', ...place, expected: 'a prepared batch, or a pass of a scheduler', received: pass,
  });
  if (typeof pass !== 'object' || pass === null || pass instanceof Batch) throw wrong(); // the prototype of batches
  const { length, slots, positions, tokenCounts, starts } = pass;
  const arrays = { slots, positions, tokenCounts, starts };
  if (!Object.values(arrays).every(isInt32Array)) throw wrong();
  const most = Math.min(...Object.values(arrays).map(lengthOf));
  checkInteger(sequencesOwner, 'pass.length', length, 0, most);
  return { length, ...arrays };
}

/** The memory of a caller's array that has room for so many elements. */
function memoryOf(
  owner: string, into: unknown, type: 'BigInt64Array' | 'Int32Array', elements: number,
): Uint8Array {
  const bytes = typedArrayKind(into) === type ? bytesOf(into) : undefined;
  const room = bytes && bytes.length / (type === 'Int32Array' ? 4 : 8);
  if (bytes !== undefined && room! >= elements) return bytes;
  throw createError('KV_INVALID_OPTION', {
    reason: bytes === undefined ? 'type' : 'range', owner, option: 'into',
    expected: `a ${type} of at least ${elements} elements`, received: room ?? into,
  });
}
