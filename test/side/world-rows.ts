// The rows that SideWorld writes, and how it compares them: a number for each prefix of a text in a domain, and rows made of it, in which
// every element is another number. So a row of another text, domain, token or tensor shows, and one that was moved by some elements, and
// memory that was never written.

import { mix32 } from '#internal/base/random.js';

const values = 2 ** 22;
const mostElements = 2 ** 15;
/** A float32 holds each of them exactly. */
const ramp = Float32Array.from({ length: values + mostElements }, (_, index) => index + 1);

/** By token: a number for the text up to it. */
export function hashesOf(text: readonly number[], domain: string): number[] {
  let hash = [...domain].reduce((sum, letter) => mix32(sum, letter.charCodeAt(0)), 7);
  return text.map((token) => hash = mix32(hash, token + 1));
}

/** The row of a tensor for the text up to a token: first + 0, first + 1 … Read only. */
export function rowOf(hash: number, tensor: string, width: number): Float32Array {
  const first = [...tensor].reduce((sum, letter) => mix32(sum, letter.charCodeAt(0)), hash) % values;
  return ramp.subarray(first, first + width);
}

/** Throws unless the rows are those of the tokens that have these hashes; `from` is the number of the first. */
export function checkRows(rows: Float32Array, { hashes, tensor, width, from }: {
  readonly hashes: readonly number[]; readonly tensor: string; readonly width: number; readonly from: number;
}): void {
  hashes.forEach((hash, index) => {
    const row = rows.subarray(index * width, (index + 1) * width);
    const expected = rowOf(hash, tensor, width);
    if (Buffer.compare(bytesOf(row), bytesOf(expected)) === 0) return;
    const element = expected.findIndex((value, at) => row[at] !== value);
    throw new Error(`element ${element} of token ${from + index} of ${tensor} is ${row[element]}, not ${expected[element]}`);
  });
}

function bytesOf({ buffer, byteOffset, byteLength }: Float32Array): Uint8Array {
  return new Uint8Array(buffer, byteOffset, byteLength);
}
