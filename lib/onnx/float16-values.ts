// Values of 16-bit IEEE floats, as the bits of a typed array.

export function float16Values(bits: Uint16Array): Float32Array {
  return Float32Array.from(bits, (value) => {
    const sign = (value & 0x8000) === 0 ? 1 : -1;
    const exponent = value >> 10 & 31;
    const fraction = value & 1023;
    if (exponent === 31) return fraction === 0 ? sign * Infinity : NaN;
    return sign * (exponent === 0 ? fraction * 2 ** -24 : (1 + fraction / 1024) * 2 ** (exponent - 15));
  });
}

/** The bits of the nearest one. */
export function float16Bits(value: number): number {
  const sign = value < 0 ? 0x8000 : 0;
  const size = Math.abs(value);
  if (!(size < 65_520)) return Number.isNaN(value) ? 0x7e00 : sign | 0x7c00;
  if (size < 2 ** -14) return sign | Math.round(size * 2 ** 24);
  const exponent = Math.floor(Math.log2(size));
  return sign | ((exponent + 15 << 10) + Math.round((size / 2 ** exponent - 1) * 1024)); // what is rounded up to 1024 is the next exponent
}
