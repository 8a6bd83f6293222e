// Floats of 16 bits for tests, by the definition of rounding and not by anything in native code: a number is a whole multiple
// of its last place, and the nearest multiple is taken, the even one when two are as near.

import type { RowDtype } from 'virtual-kv';

const formats = {
  float16: { fractionBits: 10, leastExponent: -14, mostExponent: 15, bias: 15 },
  bfloat16: { fractionBits: 7, leastExponent: -126, mostExponent: 127, bias: 127 },
} as const;

/** The nearest value that the type has. */
export function roundTo(dtype: RowDtype, value: number): number {
  if (dtype === 'float32' || value === 0 || !Number.isFinite(value)) return Math.fround(value);
  const { fractionBits, leastExponent, mostExponent } = formats[dtype];
  const exponent = Math.max(leastExponent, Math.floor(Math.log2(Math.abs(value))));
  const place = 2 ** (exponent - fractionBits);
  const multiple = value / place;
  const below = Math.floor(multiple);
  const fraction = multiple - below;
  const rounded = fraction > 0.5 || (fraction === 0.5 && below % 2 !== 0) ? below + 1 : below;
  const result = rounded * place;
  return Math.abs(result) >= 2 ** (mostExponent + 1) ? Math.sign(value) * Infinity : result;
}

/** The value of 16 bits. */
export function valueOf(dtype: 'float16' | 'bfloat16', bits: number): number {
  const { fractionBits, leastExponent, mostExponent, bias } = formats[dtype];
  const sign = bits & 0x8000 ? -1 : 1;
  const exponent = ((bits & 0x7fff) >> fractionBits) - bias;
  const fraction = (bits & (2 ** fractionBits - 1)) / 2 ** fractionBits;
  if (exponent > mostExponent) return fraction === 0 ? sign * Infinity : NaN;
  return exponent < leastExponent ? sign * fraction * 2 ** leastExponent : sign * (1 + fraction) * 2 ** exponent;
}

/** The bits of a value that the type has. */
export function bitsOf(dtype: 'float16' | 'bfloat16', value: number): number {
  const { fractionBits, leastExponent, bias } = formats[dtype];
  const sign = value < 0 || Object.is(value, -0) ? 0x8000 : 0;
  const magnitude = Math.abs(value);
  if (magnitude === 0) return sign;
  const exponent = Math.max(leastExponent, Math.floor(Math.log2(magnitude)));
  const fraction = magnitude / 2 ** exponent;
  const field = fraction < 1 ? 0 : exponent + bias;
  return sign | (field << fractionBits) | ((fraction - (fraction < 1 ? 0 : 1)) * 2 ** fractionBits);
}

/** Values as an engine would pass them. */
export function toRows(dtype: RowDtype, values: readonly number[]): Float32Array | Uint16Array {
  return dtype === 'float32' ? Float32Array.from(values) : Uint16Array.from(values, (value) => bitsOf(dtype, value));
}

export function fromRows(dtype: RowDtype, rows: ArrayLike<number>): number[] {
  return Array.from(rows, (bits) => (dtype === 'float32' ? bits : valueOf(dtype, bits)));
}
