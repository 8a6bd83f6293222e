// What a GGUF file has before its tensors: keys with their values, and where each tensor lies; version 3, little-endian. It writes no
// file, and checks nothing. https://github.com/ggml-org/ggml/blob/master/docs/gguf.md

/** Numbers of the types of values. */
export const valueType = { u32: 4, i32: 5, f32: 6, bool: 7, string: 8, list: 9 } as const;

/** A value by the number of its type; of a list with that of its elements. */
export type GgufEntry = readonly [key: string, type: 4 | 5 | 6 | 7 | 8, value: number | boolean | string]
  | readonly [key: string, type: 9, element: 8, value: readonly string[]] | readonly [key: string, type: 9, element: 5, value: readonly number[]];

/** A tensor as the header names it. */
export interface GgufPlace {
  readonly name: string;
  /** Outputs first. */
  readonly shape: readonly number[];
  /** The number of its ggml type. */
  readonly type: number;
  readonly bytes: number;
}

export const ggufAlignment = 32;

/**
 * The header of a file whose tensors follow in this order, each padded to a multiple of `alignment`, a power of two. `copied`: entries as
 * another file has them, key, type and value.
 */
export function ggufHeader(entries: readonly GgufEntry[], tensors: readonly GgufPlace[], alignment = ggufAlignment, copied: readonly Uint8Array[] = []): Buffer {
  const parts: Uint8Array[] = [Buffer.from('GGUF'), u32(3), u64(tensors.length), u64(entries.length + copied.length), ...copied];
  for (const entry of entries) {
    parts.push(text(entry[0]), u32(entry[1]));
    if (entry[1] === valueType.list) {
      parts.push(u32(entry[2]), u64(entry[3].length));
      for (const each of entry[3]) parts.push(value(entry[2], each)); // a vocabulary is more than a call may have arguments
    } else parts.push(value(entry[1], entry[2]));
  }
  let at = 0;
  for (const { name, shape, type, bytes } of tensors) {
    parts.push(text(name), u32(shape.length), ...[...shape].reverse().map(u64), u32(type), u64(at));
    at += bytes + padding(bytes, alignment);
  }
  const header = Buffer.concat(parts);
  return Buffer.concat([header, Buffer.alloc(padding(header.length, alignment))]);
}

/** Bytes from the end of so many to a multiple of `alignment`. */
export function padding(bytes: number, alignment = ggufAlignment): number {
  return Math.ceil(bytes / alignment) * alignment - bytes;
}

function value(type: number, of: number | boolean | string): Buffer {
  if (type === valueType.string) return text(of as string);
  if (type === valueType.bool) return Buffer.of(Number(of));
  return type === valueType.f32 ? Buffer.from(Float32Array.of(of as number).buffer) : u32(of as number);
}

function text(of: string): Buffer {
  return Buffer.concat([u64(Buffer.byteLength(of)), Buffer.from(of)]);
}

function u32(of: number): Buffer {
  return Buffer.from(Uint32Array.of(of).buffer);
}

function u64(of: number): Buffer {
  return Buffer.from(BigUint64Array.of(BigInt(of)).buffer);
}
