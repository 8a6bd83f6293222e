// Random floats for device memory that kernels are timed over: between 2⁻⁵ and 1 in magnitude, of either sign, in the bits of each
// type. Timed over zeros, memory and arithmetic are faster than over what an engine has.

const mostBytes = 4 * 2 ** 20;
const bits = {
  float32: { Words: Uint32Array, keep: 0x807f_ffff, exponent: 122, shift: 23 },
  float16: { Words: Uint16Array, keep: 0x83ff, exponent: 10, shift: 10 },
  bfloat16: { Words: Uint16Array, keep: 0x807f, exponent: 122, shift: 7 },
};

function pattern(dtype, bytes) {
  const { Words, keep, exponent, shift } = bits[dtype];
  const words = new Words(bytes / Words.BYTES_PER_ELEMENT);
  let state = 1;
  for (let at = 0; at < words.length; at += 1) {
    state = (Math.imul(state, 1_664_525) + 1_013_904_223) >>> 0;
    const random = (state ^ (state >>> 15)) >>> 0;
    words[at] = ((random & keep) | ((exponent + (random >>> 8) % 5) << shift)) >>> 0;
  }
  return new Uint8Array(words.buffer);
}

/** Fills [address, address + bytes) on the default stream; it repeats after a few MiB. `bytes` is whole elements. */
export function fillRandomly(driver, address, bytes, dtype) {
  const first = Math.min(bytes, mostBytes);
  driver.native.write(address, pattern(dtype, first));
  for (let filled = first; filled < bytes; filled *= 2) {
    driver.native.copy(address + BigInt(filled), address, Math.min(filled, bytes - filled), 0n);
  }
}
