// GgufCursor: reads the header of a GGUF file from its start on, a piece of the file at a time. What is not there is an error that
// names the file; no length is believed that the file cannot hold.

import { modelError } from '../model-error.js';
import type { WeightFile } from '../weight-file.js';

const pieceBytes = 2 ** 20;
/** Of a name or a text; a tokenizer.json has some million bytes. */
const longestText = 2 ** 26;

const widths = { u8: 1, i8: 1, u16: 2, i16: 2, u32: 4, i32: 4, f32: 4, bool: 1, u64: 8, i64: 8, f64: 8 } as const;

/** A number as the file has it; 64 bits only up to 2⁵³ − 1. */
export type NumberKind = Exclude<keyof typeof widths, 'bool'>;

export class GgufCursor {
  readonly #file: WeightFile;
  #piece = Buffer.alloc(0);
  #pieceAt = 0;
  #at = 0;

  constructor(file: WeightFile) {
    this.#file = file;
  }

  /** Bytes from the file's start. */
  get at(): number {
    return this.#at;
  }

  /** Throws KV_MODEL_INVALID: the file does something that no such file does. */
  fail(what: string): never {
    throw modelError(`${this.#file.path} is no GGUF file that can be read: at byte ${this.#at} it ${what}.`);
  }

  /** The next bytes, until the next call. */
  bytes(count: number): Buffer {
    if (count > this.#file.bytes - this.#at) this.fail(`ends: it has ${this.#file.bytes} bytes`);
    if (this.#at + count > this.#pieceAt + this.#piece.length) {
      this.#piece = Buffer.alloc(Math.min(Math.max(count, pieceBytes), this.#file.bytes - this.#at));
      this.#file.read(this.#piece, this.#at, 'its header');
      this.#pieceAt = this.#at;
    }
    const from = this.#at - this.#pieceAt;
    this.#at += count;
    return this.#piece.subarray(from, from + count);
  }

  number(kind: NumberKind): number {
    const bytes = this.bytes(widths[kind]);
    switch (kind) {
      case 'u8': return bytes.readUInt8();
      case 'i8': return bytes.readInt8();
      case 'u16': return bytes.readUInt16LE();
      case 'i16': return bytes.readInt16LE();
      case 'u32': return bytes.readUInt32LE();
      case 'i32': return bytes.readInt32LE();
      case 'f32': return bytes.readFloatLE();
      case 'f64': return bytes.readDoubleLE();
      case 'u64': return this.#safe(bytes.readBigUInt64LE());
      case 'i64': return this.#safe(bytes.readBigInt64LE());
    }
  }

  text(): string {
    const length = this.number('u64');
    if (length > longestText) this.fail(`has a text of ${length} bytes`);
    return this.bytes(length).toString('utf8');
  }

  /** Passes over a value. */
  skip(kind: NumberKind | 'bool' | 'string'): void {
    if (kind === 'string') this.bytes(this.number('u64'));
    else this.bytes(widths[kind]);
  }

  /** `count`, where the rest of the file can hold so many things of `leastBytes`. */
  atMost(count: number, leastBytes: number, what: string): number {
    if (count * leastBytes > this.#file.bytes - this.#at) this.fail(`announces ${count} ${what}, and has ${this.#file.bytes - this.#at} bytes left`);
    return count;
  }

  #safe(value: bigint): number {
    const number = Number(value);
    return Number.isSafeInteger(number) ? number : this.fail(`has the number ${value}`);
  }
}
