// Floats: rows of K and V as a store has them, in the floats that engines compute with.

import { createError } from '../base/errors.js';
import { dtypeBytes, type Dtype } from '../layout/model-shape.js';

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

/** The numbers that the bytes are, least significant byte first, in memory that cannot be detached: every one of them exact. */
export function floatsOf(bytes: Uint8Array, dtype: Dtype): Float32Array {
  const count = bytes.length / dtypeBytes(dtype);
  const floats = new Float32Array(new SharedArrayBuffer(4 * count));
  if (dtype === 'float32') {
    new Uint8Array(floats.buffer).set(bytes);
    return floats;
  }
  if (dtype !== 'float16' && dtype !== 'bfloat16') throw createError('KV_INTERNAL', { problem: `rows of ${dtype} are no floats` });
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
