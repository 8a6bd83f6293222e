// The sum that files of stores have, by a table: slow, and not the one under test.

const table = Int32Array.from({ length: 256 }, (_, value) => {
  let sum = value;
  for (let bit = 0; bit < 8; bit += 1) sum = (sum & 1) === 0 ? sum >>> 1 : (sum >>> 1) ^ 0x82f63b78;
  return sum;
});

/** Of `bytes`, behind others whose sum is `before`. */
export function crc32c(bytes: Uint8Array, before = 0): number {
  let sum = ~before;
  for (const byte of bytes) sum = table[(sum ^ byte) & 255]! ^ (sum >>> 8);
  return ~sum >>> 0;
}
