// Typed arrays by dtype: which class holds the elements of a dtype in JavaScript (16-bit floats and float8 come as their bits), and
// how a caller's array is copied. Pure.

import { dtypeBytes, dtypes, type Dtype } from './model-shape.js';
import { bytesOf, typedArrayKind } from '../base/typed-arrays.js';

/** Elements as JavaScript can hold them: 16-bit floats come as their bits. */
export type TensorView = Float32Array | Uint16Array | Uint8Array | Int8Array;

/** Type of one element of rows that are not K or V: also whole numbers, such as codes. */
export type SideDtype = Dtype | 'int32';

/** Every one of them. */
export const sideDtypes: readonly SideDtype[] = [...dtypes, 'int32'];

/** As `TensorView`, of rows that may be `int32`. */
export type SideView = TensorView | Int32Array;

const arrays = {
  float32: Float32Array, float16: Uint16Array, bfloat16: Uint16Array, float8: Uint8Array, int8: Int8Array, int32: Int32Array,
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
export function arrayOver<D extends SideDtype>(dtype: D, buffer: ArrayBuffer, offset: number, length: number): InstanceType<typeof arrays[D]> {
  return new arrays[dtype](buffer, offset, length) as InstanceType<typeof arrays[D]>;
}

/** The bytes of an array of the class that holds `dtype`, which are the caller's; undefined for anything else, or once it is detached. */
export function bytesIfOf(dtype: SideDtype, value: unknown): Uint8Array | undefined {
  return typedArrayKind(value) === arrayNameOf(dtype) ? bytesOf(value) : undefined;
}
