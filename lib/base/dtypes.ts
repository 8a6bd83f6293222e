// Dtypes: the types of elements of K, V and rows beside them: their bytes, which typed array holds them in JavaScript
// (16-bit floats and float8 come as their bits), how a caller's array is copied, and the floats that stored bytes are.
// Pure.

import { createError } from './errors.js';
import { oneOf } from './options.js';
import { bytesOf, sharedFloats, typedArrayKind } from './typed-arrays.js';

const dtypeSizes = { float32: 4, float16: 2, bfloat16: 2, float8: 1, int8: 1 } as const;

/** Type of one element of K and V. */
export type Dtype = keyof typeof dtypeSizes;

/** Types of activations, and of caches with attention. */
export type RowDtype = 'float32' | 'float16' | 'bfloat16';

/** Every dtype, widest first. */
export const dtypes = Object.keys(dtypeSizes) as readonly Dtype[];

/** Bytes of one element. Throws KV_INVALID_OPTION. */
export function dtypeBytes(dtype: Dtype): number {
  return dtypeSizes[dtypeField(dtype, { owner: 'dtypeBytes', option: 'dtype' })];
}

const dtypeField = oneOf(dtypes);

/** Elements as JavaScript can hold them: 16-bit floats come as their bits. */
export type TensorView = Float32Array | Uint16Array | Uint8Array | Int8Array;

/** Type of one element of rows that are not K or V: also whole numbers, such as codes. */
export type SideDtype = Dtype | 'int32';

/** Every one of them. */
export const sideDtypes: readonly SideDtype[] = [...dtypes, 'int32'];

/** As `TensorView`, of rows that may be `int32`. */
export type SideView = TensorView | Int32Array;

const arrays = {
  float32: Float32Array, float16: Uint16Array, bfloat16: Uint16Array, float8: Uint8Array, int8: Int8Array,
  int32: Int32Array,
} as const satisfies Record<SideDtype, unknown>;

/** Bytes of one element. */
export function sideDtypeBytes(dtype: SideDtype): number {
  return dtype === 'int32' ? Int32Array.BYTES_PER_ELEMENT : dtypeBytes(dtype);
}

/** The class name of the typed array that holds elements of `dtype`. */
export function arrayNameOf(dtype: SideDtype): string {
  return arrays[dtype].name;
}

/** `length` elements of `dtype` in `buffer`, from byte `offset` on. */
export function arrayOver<D extends SideDtype>(
  dtype: D, buffer: ArrayBuffer, offset: number, length: number,
): InstanceType<typeof arrays[D]> {
  return new arrays[dtype](buffer, offset, length) as InstanceType<typeof arrays[D]>;
}

/**
 * The bytes of an array of the class that holds `dtype`, which are the caller's; undefined for anything else, or once
 * it is detached.
 */
export function bytesIfOf(dtype: SideDtype, value: unknown): Uint8Array | undefined {
  return typedArrayKind(value) === arrayNameOf(dtype) ? bytesOf(value) : undefined;
}

/** By the bits of a float16. Made when it is first needed. */
let float16Values: Float32Array | undefined;

function float16Table(): Float32Array {
  return float16Values ??= Float32Array.from({ length: 2 ** 16 }, (_, bits) => {
    const sign = bits >= 0x8000 ? -1 : 1;
    const exponent = (bits >> 10) & 31;
    const fraction = bits & 1023;
    if (exponent === 31) return fraction === 0 ? sign * Infinity : Number.NaN;
    return sign * (exponent === 0 ? fraction * 2 ** -24 : (1024 + fraction) * 2 ** (exponent - 25));
  });
}

/**
 * The numbers that the bytes are, least significant byte first, in memory that cannot be detached: every one of them
 * exact.
 */
export function floatsOf(bytes: Uint8Array, dtype: Dtype): Float32Array {
  const count = bytes.length / dtypeBytes(dtype);
  const floats = sharedFloats(count);
  if (dtype === 'float32') {
    new Uint8Array(floats.buffer).set(bytes);
    return floats;
  }
  if (dtype !== 'float16' && dtype !== 'bfloat16') {
    throw createError('KV_INTERNAL', { problem: `rows of ${dtype} are no floats` });
  }
  const halves = new Uint16Array(count);
  new Uint8Array(halves.buffer).set(bytes);
  if (dtype === 'bfloat16') {
    const bits = new Uint32Array(floats.buffer);
    for (let index = 0; index < count; index += 1) bits[index] = halves[index]! << 16;
    return floats;
  }
  const table = float16Table();
  for (let index = 0; index < count; index += 1) floats[index] = table[halves[index]!]!;
  return floats;
}

/** One tensor of this worker: `[heads, dim]` of every token of one layer. */
export interface TensorSpec {
  /** `layer.0.key`: the layer's number in the whole model. */
  readonly name: string;
  /** Number of the layer in the whole model, also on a pipeline worker that does not start at 0. */
  readonly layer: number;
  /** What it holds: keys, values, the latent of MLA, or the keys of an index that chooses among its tokens. */
  readonly role: 'key' | 'value' | 'latent' | 'index';
  /** Heads on this worker. */
  readonly heads: number;
  /** Elements of a head. */
  readonly dim: number;
  /** Type of its elements. */
  readonly dtype: Dtype;
  /** heads · dim · bytes of an element. */
  readonly tokenBytes: number;
}
