// Protobuf messages as bytes: reading their fields in order, and writing a few. A field keeps its own bytes, so that a
// message can be written again without what it holds being understood. Knows nothing of ONNX.

/** One field of a message. */
export interface ProtobufField {
  readonly number: number;
  /** Of a varint: the number, as a signed one. Of the others 0. */
  readonly integer: number;
  /** Content of text, bytes and messages; the 4 or 8 bytes of a fixed number; empty for a varint. */
  readonly bytes: Uint8Array;
  /** The whole field, with its key. */
  readonly raw: Uint8Array;
}

const varint = 0, fixed64 = 1, lengthDelimited = 2, fixed32 = 5;

/** A message that ends in the middle of a field, or has one of no known kind. */
export class ProtobufError extends Error {}

/** Where a field lies. */
interface FieldPlace {
  readonly number: number;
  /** Of a varint. */
  readonly integer: number;
  /** Of its content, which may end behind the bytes that are given. */
  readonly start: number;
  readonly end: number;
}

/** Bytes that hold the key of a field and the length of its content, at most. */
export const mostKeyBytes = 20;

/** The field that begins at a place of a message. Throws ProtobufError. */
export function fieldAt(message: Uint8Array, place: number): FieldPlace {
  let at = place;
  const readVarint = (): number => {
    let low = 0;
    let high = 0n;
    for (let shift = 0; shift < 70; shift += 7) {
      if (at >= message.length) throw new ProtobufError('a number is cut off');
      const byte = message[at++]!;
      if (shift < 28) low |= (byte & 127) << shift;
      else high |= BigInt(byte & 127) << BigInt(shift);
      if (byte < 128) return high === 0n ? low : Number(BigInt.asIntN(64, high | BigInt(low)));
    }
    throw new ProtobufError('a number has more than 64 bits');
  };
  const key = readVarint();
  const number = Math.floor(key / 8);
  let integer = 0;
  let length = 0;
  switch (key & 7) {
    case varint: integer = readVarint(); break;
    case fixed64: length = 8; break;
    case lengthDelimited: length = readVarint(); break;
    case fixed32: length = 4; break;
    default: throw new ProtobufError(`field ${number} is of no known kind`);
  }
  if (length < 0) throw cutOff(number);
  if (number < 1) throw new ProtobufError('a field has no number');
  return { number, integer, start: at, end: at + length };
}

export const cutOff = (number: number): ProtobufError => new ProtobufError(`field ${number} is cut off`);

/** The fields of a message. Throws ProtobufError. */
export function* fieldsOf(message: Uint8Array): Generator<ProtobufField, void, undefined> {
  for (let at = 0; at < message.length;) {
    const { number, integer, start, end } = fieldAt(message, at);
    if (end > message.length) throw cutOff(number);
    yield { number, integer, bytes: message.subarray(start, end), raw: message.subarray(at, end) };
    at = end;
  }
}

/** The numbers of a repeated integer, packed in one field or one to a field. */
export function integersOf({ bytes, integer }: ProtobufField): number[] {
  if (bytes.length === 0) return [integer];
  const whole = new Uint8Array(bytes.length * 2); // a key before each number makes a message of it
  const numbers: number[] = [];
  let length = 0;
  let isStart = true;
  for (const byte of bytes) {
    if (isStart) whole[length++] = 8;
    whole[length++] = byte;
    isStart = byte < 128;
  }
  for (const field of fieldsOf(whole.subarray(0, length))) numbers.push(field.integer);
  return numbers;
}

const decoder = new TextDecoder();
const encoder = new TextEncoder();

export const textOf = (bytes: Uint8Array): string => decoder.decode(bytes);

/** A number as a varint. Below 0 it takes ten bytes, as protobuf has it. */
function varintBytes(value: number): number[] {
  let rest = BigInt.asUintN(64, BigInt(value));
  const bytes: number[] = [];
  for (; rest > 127n; rest >>= 7n) bytes.push(Number(rest & 127n) | 128);
  bytes.push(Number(rest));
  return bytes;
}

export const integerField = (number: number, value: number): Uint8Array =>
  Uint8Array.from([...varintBytes(number << 3 | varint), ...varintBytes(value)]);

export function floatField(number: number, value: number): Uint8Array {
  const bytes = new DataView(new ArrayBuffer(4));
  bytes.setFloat32(0, value, true);
  return Uint8Array.from([...varintBytes(number << 3 | fixed32), ...new Uint8Array(bytes.buffer)]);
}

export const bytesField = (number: number, ...content: readonly Uint8Array[]): Uint8Array => joinBytes(fieldParts(number, content));

/** A field of bytes in parts, to be joined: its content is not copied. */
export function fieldParts(number: number, content: readonly Uint8Array[]): readonly Uint8Array[] {
  const length = content.reduce((sum, { length: bytes }) => sum + bytes, 0);
  return [Uint8Array.from([...varintBytes(number << 3 | lengthDelimited), ...varintBytes(length)]), ...content];
}

export const textField = (number: number, text: string): Uint8Array => bytesField(number, encoder.encode(text));

export function joinBytes(parts: readonly Uint8Array[]): Uint8Array {
  const joined = new Uint8Array(parts.reduce((sum, { length }) => sum + length, 0));
  let at = 0;
  for (const part of parts) {
    joined.set(part, at);
    at += part.length;
  }
  return joined;
}
