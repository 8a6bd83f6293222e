// RedisValue: one block as the value of one key. A header says what the block is, so that any process can tell whether
// it is the very block that it asked for, and the payload follows as it is. Little-endian, as all machines of this
// package are.
//
//   0  magic "KVTB"         16  bytes of the payload      32  reserved, 0
//   4  version, 1           20  tokens before the block   64  key
//   8  bytes of the header  24  tokens                    96  key of the parent
//  12  CRC-32 of it         28  sections                 128  namespace
// 160  sections: [type, bytes, data, 0 … 3 bytes of padding] each. 1: tokens, 2: CRC-32C of each stripe, 3: notes.
// Readers skip types
//      that they do not know below 0x8000_0000 and refuse those above, so that blocks can say more without a new
//      version.

import { crc32 } from 'node:zlib';

import { createError } from '../../base/errors.js';
import { formatNumber } from '../../base/format.js';
import type { BlockRecord } from '../tier.js';

const magic = 0x4254_564b;
const version = 1;
const fixedBytes = 160;
const crcOffset = 12;
const mustUnderstand = 0x8000_0000;
const sections = { tokens: 1, sums: 2, notes: 3 } as const;

/** What a value says of its block, and where in it the payload is. */
export interface RedisValue {
  /** The block. */
  readonly record: BlockRecord;
  /** Its payload: memory of the value, not copied. */
  readonly payload: Uint8Array;
}

/** Why a value is not the block that was asked for. */
export interface ValueProblem {
  /** Ends the sentence "the value …". */
  readonly problem: string;
  /** Whether a later version of this package wrote it: it is to be left alone. */
  readonly isNewer: boolean;
}

/** More than the header of a block of so many tokens has, also of later versions. */
export function maxHeaderBytes(tokens: number): number {
  return 2 ** 20 + 256 * tokens;
}

/**
 * The value of a block: one buffer with a copy of the payload, of `record.bytes`. Throws KV_INTERNAL where the record
 * is none.
 */
export function encodeValue(namespace: string, record: BlockRecord, payload: Uint8Array): Buffer {
  const parts = [
    section(sections.tokens, record.tokens), section(sections.sums, record.sums), section(sections.notes, record.notes),
  ];
  const headerBytes = fixedBytes + parts.reduce((sum, { data }) => sum + 8 + padded(data.byteLength), 0);
  // Not from Node's pool, which would keep 8 KiB alive, and with no copy of more than the header where it is sent at
  // once.
  const value = Buffer.allocUnsafeSlow(headerBytes + payload.byteLength);
  value.fill(0, 0, headerBytes);
  value.writeUInt32LE(magic, 0);
  value.writeUInt32LE(version, 4);
  value.writeUInt32LE(headerBytes, 8);
  value.writeUInt32LE(payload.byteLength, 16);
  value.writeUInt32LE(record.position, 20);
  value.writeUInt32LE(record.tokens.length, 24);
  value.writeUInt32LE(parts.length, 28);
  writeDigest(value, 64, record.key);
  writeDigest(value, 96, record.parent);
  writeDigest(value, 128, namespace);
  let at = fixedBytes;
  for (const { type, data } of parts) {
    value.writeUInt32LE(type, at);
    value.writeUInt32LE(data.byteLength, at + 4);
    value.set(data, at + 8);
    at += 8 + padded(data.byteLength);
  }
  value.writeUInt32LE(crc32(value.subarray(0, headerBytes)), crcOffset);
  value.set(payload, headerBytes);
  return value;
}

/**
 * Reads a value as the block `key` of `namespace` with a payload of `bytes`; returns what is wrong where it is
 * not that. Of a value of more than `maxBytes` the first `maxBytes` + 1 do.
 */
export function decodeValue(
  value: Buffer, namespace: string, key: string, bytes: number, maxBytes = Infinity,
): RedisValue | ValueProblem {
  if (value.length < fixedBytes) return damaged(`has ${formatNumber(value.length)} bytes, fewer than a header`);
  if (value.readUInt32LE(0) !== magic) return damaged('does not begin as a block does');
  const found = value.readUInt32LE(4);
  if (found > version) {
    return { problem: `has version ${formatNumber(found)}, and this package reads up to ${version}`, isNewer: true };
  }
  if (value.length > maxBytes) return damaged(`has more than ${formatNumber(maxBytes)} bytes`);
  const headerBytes = value.readUInt32LE(8);
  if (headerBytes < fixedBytes || headerBytes > value.length) return damaged('has a header that does not fit into it');
  const header = Buffer.from(value.subarray(0, headerBytes)); // a copy: the record is kept when the value is gone
  const sum = header.readUInt32LE(crcOffset);
  header.writeUInt32LE(0, crcOffset);
  if (found !== version || crc32(header) !== sum) return damaged('has a header with a wrong checksum');
  if (header.toString('hex', 64, 96) !== key) return damaged('is another block');
  if (header.toString('hex', 128, 160) !== namespace) return damaged('is of another namespace');
  if (header.readUInt32LE(16) !== bytes) {
    return damaged(`has a payload of ${formatNumber(header.readUInt32LE(16))} bytes instead of ${formatNumber(bytes)}`);
  }
  if (value.length !== headerBytes + bytes) {
    return damaged(`has ${formatNumber(value.length)} bytes instead of ${formatNumber(headerBytes + bytes)}`);
  }
  const parts = readSections(header);
  if (typeof parts === 'number') {
    return { problem: `has a section of type ${formatNumber(parts)}, which this package does not know`, isNewer: true };
  }
  const record = parts && recordOf(header, parts, key, bytes);
  return record === undefined ? damaged('has sections that contradict its header')
    : { record, payload: value.subarray(headerBytes) };
}

/**
 * Data by type; the type of a section that must be understood and is not; undefined where they do not fill the header.
 */
function readSections(header: Buffer): Map<number, Buffer> | number | undefined {
  const parts = new Map<number, Buffer>();
  let at = fixedBytes;
  for (let left = header.readUInt32LE(28); left > 0; left -= 1) {
    if (at + 8 > header.length) return undefined;
    const type = header.readUInt32LE(at);
    const bytes = header.readUInt32LE(at + 4);
    if (at + 8 + bytes > header.length) return undefined;
    if (type >= mustUnderstand) return type;
    parts.set(type, header.subarray(at + 8, at + 8 + bytes));
    at += 8 + padded(bytes);
  }
  return at === header.length ? parts : undefined;
}

function recordOf(
  header: Buffer, parts: ReadonlyMap<number, Buffer>, key: string, bytes: number,
): BlockRecord | undefined {
  const [tokens, sums, notes] = [parts.get(sections.tokens), parts.get(sections.sums), parts.get(sections.notes)];
  if (tokens === undefined || sums === undefined || notes === undefined) return undefined;
  if (tokens.length !== 4 * header.readUInt32LE(24) || sums.length % 4 !== 0) return undefined;
  return {
    key, parent: header.toString('hex', 96, 128), position: header.readUInt32LE(20),
    tokens: new Int32Array(ownBuffer(tokens)),
    notes: new Uint8Array(ownBuffer(notes)), sums: new Uint32Array(ownBuffer(sums)), bytes,
  };
}

function section(
  type: number, data: Int32Array | Uint32Array | Uint8Array,
): { readonly type: number; readonly data: Uint8Array } {
  return { type, data: new Uint8Array(data.buffer, data.byteOffset, data.byteLength) };
}

/** A copy, as a typed array of wider elements needs aligned memory. */
function ownBuffer(data: Buffer): ArrayBuffer {
  return data.buffer.slice(data.byteOffset, data.byteOffset + data.length) as ArrayBuffer;
}

function padded(bytes: number): number {
  return Math.ceil(bytes / 4) * 4;
}

function writeDigest(value: Buffer, at: number, digest: string): void {
  if (digest.length === 64 && value.write(digest, at, 32, 'hex') === 32) return;
  throw createError('KV_INTERNAL', { problem: `a block is named '${digest}', which is no SHA-256` });
}

function damaged(problem: string): ValueProblem {
  return { problem, isNewer: false };
}
