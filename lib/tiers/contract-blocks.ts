// Blocks for the contract suite: made from a seed, with bytes that are all different and the checksums that a cache
// would give them. Also CRC-32C as a table, which is slow: a cache has a faster one.

import { createHash } from 'node:crypto';

import { Random } from '../base/random.js';
import type { BlockRecord, TierContext } from './tier.js';

/** A block with its payload. */
export interface MadeBlock {
  readonly record: BlockRecord;
  readonly payload: Uint8Array;
}

const table = Uint32Array.from({ length: 256 }, (_, byte) => {
  let sum = byte;
  for (let bit = 0; bit < 8; bit += 1) sum = sum & 1 ? (sum >>> 1) ^ 0x82f63b78 : sum >>> 1;
  return sum >>> 0;
});

/** CRC-32C (Castagnoli). */
export function crc32c(data: Uint8Array): number {
  let sum = 0xffff_ffff;
  for (let at = 0; at < data.length; at += 1) sum = table[(sum ^ data[at]!) & 0xff]! ^ (sum >>> 8);
  return ~sum >>> 0;
}

/** 64 hexadecimal digits that nothing else has. */
export function digestOf(text: string): string {
  return createHash('sha256').update(text).digest('hex');
}

/** The sums of a payload: one of each stripe, which has as many bytes for each of the block's tokens. */
export function sumsOf(payload: Uint8Array, tokens: number, stripeTokenBytes: readonly number[]): Uint32Array {
  let at = 0;
  return Uint32Array.from(stripeTokenBytes, (bytes) => crc32c(payload.subarray(at, at += tokens * bytes)));
}

/** What a block may be made with. */
export interface MadeBlockOptions {
  /** Makes the block another one. */
  readonly seed: number;
  /** Default 16. */
  readonly tokens?: number;
  /** Default 32 bytes. */
  readonly notes?: Uint8Array;
  /** Default: the block begins its text. */
  readonly parent?: BlockRecord;
  /** Default 0. */
  readonly level?: number;
  /** Default: memory of its own. */
  readonly payload?: Uint8Array;
}

/** A block of a namespace; of equal options the same one. */
export function makeBlock(
  context: Pick<TierContext, 'namespace' | 'stripeTokenBytes'>, options: MadeBlockOptions,
): MadeBlock {
  const { seed, tokens = 16, parent, level = 0, notes = Uint8Array.from({ length: 32 }, (_, index) => seed + index) } =
    options;
  const { namespace, stripeTokenBytes } = context;
  const random = new Random(seed);
  const bytes = tokens * stripeTokenBytes.reduce((sum, stripe) => sum + stripe, 0);
  const payload = options.payload ?? new Uint8Array(bytes);
  // Every byte depends on its place and the seed; cheaper than a random number each.
  const salt = random.integer(2 ** 30);
  for (let at = 0; at < bytes; at += 1) payload[at] = Math.imul(at + salt, 0x9e3779b1) >>> 24;
  const record = {
    key: digestOf(`${namespace} ${seed} ${tokens}`), parent: parent?.key ?? digestOf(namespace),
    position: parent === undefined ? 0 : parent.position + parent.tokens.length,
    tokens: Int32Array.from({ length: tokens }, () => random.integer(2 ** 31)), notes,
    sums: sumsOf(payload, tokens, stripeTokenBytes), bytes, level,
  };
  return { record, payload };
}
