// ContractStore: a store under test. It opens tiers over it in a namespace of its own, keeps what they tell, and closes
// them; and it knows how to tell whether a block came back whole.

import assert = require('node:assert/strict');

import { createHash } from 'node:crypto';

import { Random } from '../base/random.js';
import type { BlockRecord, Tier, TierContext, TierGet } from './tier.js';

/** What a check needs of the tier that it is given. */
export interface TierContractPlace {
  /** Names the store: tiers of the same name are of one store, and one that was not named before is empty. */
  readonly store: string;
  /** Bytes of payload that it must be able to keep; a tier with a `capacityBytes` has it at this. */
  readonly capacityBytes: number;
}

/** Makes a tier that was not opened. */
export type MakeTier = (place: TierContractPlace) => Tier | Promise<Tier>;

export interface ContractStoreOptions {
  readonly make: MakeTier;
  /** Default four stripes, two of 64 bytes and two of 32. */
  readonly stripeTokenBytes?: readonly number[] | undefined;
  /** Default 64 MiB. */
  readonly capacityBytes?: number | undefined;
}

export interface OpenedTier {
  readonly tier: Tier;
  /** What it found, by key. */
  readonly found: ReadonlyMap<string, BlockRecord>;
}

let stores = 0;

/** A store under test: opens tiers over it, and keeps what they tell. */
export class ContractStore {
  readonly namespace: string;
  readonly stripeTokenBytes: readonly number[];
  readonly capacityBytes: number;
  readonly #make: MakeTier;
  readonly #name: string;
  readonly #open = new Set<Tier>();

  constructor({ make, stripeTokenBytes = [64, 64, 32, 32], capacityBytes = 2 ** 26 }: ContractStoreOptions) {
    stores += 1;
    this.#make = make;
    this.#name = `contract-${process.pid}-${stores}`;
    // a server may outlive many runs
    this.namespace = digestOf(`${this.#name} ${Date.now()} ${process.hrtime.bigint()}`);
    this.stripeTokenBytes = stripeTokenBytes;
    this.capacityBytes = capacityBytes;
  }

  block(seed: number, options: Omit<MadeBlockOptions, 'seed'> = {}): MadeBlock {
    return makeBlock(this, { ...options, seed });
  }

  async open(namespace = this.namespace): Promise<OpenedTier> {
    const found = new Map<string, BlockRecord>();
    const tier = await this.#make({ store: this.#name, capacityBytes: this.capacityBytes });
    this.#open.add(tier);
    const context: TierContext = {
      namespace, stripeTokenBytes: this.stripeTokenBytes, blockTokens: 16,
      found: (record) => {
        assert.ok(!found.has(record.key), 'a block was found twice');
        found.set(record.key, record);
      },
      lost: (keys) => {
        for (const key of keys) found.delete(key);
      },
    };
    await tier.open(context);
    return { tier, found };
  }

  async close(): Promise<void> {
    await Promise.all([...this.#open].map((tier) => tier.close()));
  }
}

/** Puts blocks, which must be stored. */
export async function stored(tier: Tier, ...blocks: readonly MadeBlock[]): Promise<void> {
  for (const { record, payload } of blocks) assert.deepEqual(await tier.put(record, payload), { isStored: true });
}

/** Reads a block into memory with a margin around it, and checks every byte. */
export async function readsExactly(tier: Tier, { record, payload }: MadeBlock): Promise<void> {
  const margin = 67; // odd, so that the payload lies at no good address
  const memory = new Uint8Array(record.bytes + 2 * margin).fill(0xa5);
  const target = memory.subarray(margin, margin + record.bytes);
  const result = await tier.get(record.key, target);
  assert.ok(result.isFound, `a block of ${record.bytes} bytes is not there: ${missOf(result)}`);
  assert.ok(Buffer.compare(target, payload) === 0, 'other bytes came back');
  assert.deepEqual(result.sums, record.sums);
  if (result.record !== undefined) sameRecord(result.record, record);
  assert.ok(
    memory.every((byte, at) => byte === 0xa5 || (at >= margin && at < margin + record.bytes)),
    'bytes beside the payload were written');
}

/** Throws AssertionError unless a record says the same. */
export function sameRecord(actual: BlockRecord, expected: BlockRecord): void {
  const { key, parent, position, bytes, tokens, notes, sums } = actual;
  assert.deepEqual({ key, parent, position, bytes }, {
    key: expected.key, parent: expected.parent, position: expected.position, bytes: expected.bytes,
  });
  assert.deepEqual([...tokens], [...expected.tokens]);
  assert.deepEqual([...notes], [...expected.notes]);
  assert.deepEqual([...sums], [...expected.sums]);
}

/** Reads a block, which must not be there. */
export async function isAbsent(tier: Tier, { record }: MadeBlock): Promise<void> {
  const result = await tier.get(record.key, new Uint8Array(record.bytes));
  assert.ok(!result.isFound, 'a block is there that should not be');
  assert.equal(result.reason, 'absent');
}

function missOf(result: TierGet): string {
  return result.isFound
    ? 'found'
    : `${result.reason}${result.error instanceof Error ? `, ${result.error.message}` : ''}`;
}

// Blocks for the contract suite: made from a seed, with bytes that are all different and the checksums that a cache
// would give them. Also CRC-32C as a table, which is slow: a cache has a faster one.

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
