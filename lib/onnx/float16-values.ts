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
