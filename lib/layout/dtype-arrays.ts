// Typed arrays by dtype: which class holds the elements of a dtype in JavaScript (16-bit floats and float8 come as their bits), and
// how a caller's array is copied. Pure.

import type { Dtype } from './model-shape.js';
import { bytesOf, typedArrayKind } from '../base/typed-arrays.js';

/** Elements as JavaScript can hold them: 16-bit floats come as their bits. */
export type TensorView = Float32Array | Uint16Array | Uint8Array | Int8Array;

const arrays = {
  float32: Float32Array, float16: Uint16Array, bfloat16: Uint16Array, float8: Uint8Array, int8: Int8Array,
} as const satisfies Record<Dtype, unknown>;

/** The class name of the typed array that holds elements of `dtype`. */
export function arrayNameOf(dtype: Dtype): string {
  return arrays[dtype].name;
}

/** `length` elements of `dtype` in `buffer`, from byte `offset` on. */
export function arrayOver(dtype: Dtype, buffer: ArrayBuffer, offset: number, length: number): TensorView {
  return new arrays[dtype](buffer, offset, length);
}

/** The bytes of an array of the class that holds `dtype`, which are the caller's; undefined for anything else, or once it is detached. */
export function bytesIfOf(dtype: Dtype, value: unknown): Uint8Array | undefined {
  return typedArrayKind(value) === arrayNameOf(dtype) ? bytesOf(value) : undefined;
}
