// Tier: a store below the device that keeps K and V of evicted or finished text, in blocks. What a tier must do, and
// what it is told; the cache finds text, chooses what to evict, and checks every byte that comes back against the
// block's checksums. Ours are hostTier, diskTier and redisTier; one of your own implements this interface and passes
// the contract suite (docs/tiers.md).
//
// A block is a run of tokens of one text, with all before it named by its key. Its payload is the K and V of these
// tokens, the same under every layout, page size and driver: for each tensor of this worker, in layer order and K
// before V, a stripe of [tokens, heads, dim], one behind the other.

import { createError } from '../base/errors.js';
import type { Field, FieldPlace } from '../base/options.js';

/** A block as every tier describes it. */
export interface BlockRecord {
  /**
   * 64 hexadecimal digits: SHA-256 over the model, the domain, and all tokens up to the block's end. Equal keys are
   * equal text of equal models.
   */
  readonly key: string;
  /** Key of the block before it; of the first block, the key of its domain. */
  readonly parent: string;
  /** Tokens of the text before it. */
  readonly position: number;
  /** Its tokens, 1 or more; 0 where an item covers a position. */
  readonly tokens: Int32Array;
  /**
   * The cache's own notes, some bytes as a rule (whose text it is, items in it): to be kept and given back as they are.
   */
  readonly notes: Uint8Array;
  /** CRC-32C of each stripe of the payload. */
  readonly sums: Uint32Array;
  /** Bytes of the payload. */
  readonly bytes: number;
  /**
   * Priority level of its text, 0 … 255: which blocks go last when a tier is full, and nothing about their bytes. `put`
   * is given it; a tier that outlives the process may keep it and tell it with `found`. Left out: 0.
   */
  readonly level?: number | undefined;
}

/** What a tier is told when its cache opens it. */
export interface TierContext {
  /**
   * 64 hexadecimal digits that name the model, its tensors and this worker's share: blocks of another namespace are
   * never told.
   */
  readonly namespace: string;
  /** Bytes of one token in each stripe. */
  readonly stripeTokenBytes: readonly number[];
  /** Tokens of a whole block; the last block of a text may have fewer. */
  readonly blockTokens: number;
  /** The tier has this block, from before: call it while opening, in any order. */
  found(record: BlockRecord): void;
  /** The tier no longer has these blocks, for a reason of its own: damage, expiry, another process. */
  lost(keys: readonly string[]): void;
}

/** What stays in a tier that is full. */
export type TierKeeping = typeof tierKeepings[number];

export const tierKeepings = ['adaptive', 'important'] as const;

/** Why a tier did not take a block. */
export type PutRefusal =
  /** No room: the cache removes blocks and may try again. */
  | 'full'
  /** Too much is waiting to be written. */
  | 'busy'
  /** The store is failing, or cannot be reached. */
  | 'failed';

/** What became of a put. */
export type TierPut =
  { readonly isStored: true } | { readonly isStored: false; readonly reason: PutRefusal; readonly error?: unknown };

/** What became of a removal. Nothing said: all is well. */
export interface TierRemoval {
  /** False: the blocks may be found again, after a restart or by other processes. */
  readonly isRemoved: boolean;
  /** Why it has not. */
  readonly error?: unknown;
}

/** Why a tier did not give a block. */
export type GetMiss =
  /** It does not have it. */
  | 'absent'
  /** It had it, and it was damaged: it is gone. */
  | 'corrupt'
  /** It did not answer in time. */
  | 'timeout'
  /** The store is failing, or cannot be reached. */
  | 'failed';

/** What became of a get. */
export type TierGet =
  | {
    readonly isFound: true;
    readonly sums: Uint32Array;
    /** What the store keeps of the block, where others may have stored it: the cache compares it with its own. */
    readonly record?: BlockRecord | undefined;
  }
  | { readonly isFound: false; readonly reason: GetMiss; readonly error?: unknown };

/** Tokens of one stripe of a block, to be read without the others. */
export interface TierTokens {
  /** Index of the stripe: 0 is the first of the payload. */
  readonly stripe: number;
  /** Tokens of the block, ascending, none twice: 0 is its first. */
  readonly tokens: Int32Array;
}

/** What became of a `getTokens`. */
export type TierTokensGet =
  & ({ readonly isFound: true } | { readonly isFound: false; readonly reason: GetMiss; readonly error?: unknown })
  & {
    /** Bytes that were read from the store's own place for it, what is read to find them included. */
    readonly readBytes: number;
    /** Ranges with a checksum of their own that were read. */
    readonly chunks: number;
  };

/** A payload in a tier's own memory. */
export interface BorrowedBlock {
  /** The bytes that were put. */
  readonly payload: Uint8Array;
  /** The sums that came with them. */
  readonly sums: Uint32Array;
  /** Ends the reading. Idempotent. */
  release(): void;
}

/** What a tier has and did, since it was opened. */
export interface TierStatistics {
  /** Blocks. */
  readonly blocks: number;
  /** Bytes of their payloads. */
  readonly bytes: number;
  /** More of the tier's own, for reports. */
  readonly [name: string]: number | string | boolean;
}

/**
 * A store of blocks. No method throws or rejects for what the store does: a failure is a refusal or a miss with its
 * error. Arrays that are passed must not be kept after the promise settles, nor be changed, transferred or detached,
 * but for `payload` of `get`, which the tier fills.
 */
export interface Tier {
  /** Short and unique among the tiers of a cache: in statistics, results and metrics. */
  readonly name: string;
  /** Whether it outlives the process: then the cache must know whose weights they are (`prefixCache.modelId`). */
  readonly isLasting: boolean;
  /** Whether it takes only whole blocks: others may store and find the same ones. */
  readonly takesOnlyWholeBlocks: boolean;
  /** Bytes of payload it may have; the cache removes blocks to keep within. Undefined: the store bounds itself. */
  readonly capacityBytes: number | undefined;
  /**
   * Bytes of it that the text of one tenant may take, no fewer than a block's; what it used longest ago goes first
   * then. Requests without a tenant are one. Default: all of it.
   */
  readonly tenantBytes?: number | undefined;
  /**
   * What stays where it is full: text that is likely to return, learnt from which did; or that of the most important
   * tokens × uses, where all tokens of a block are important until selections have chosen of it (docs/importance.md).
   * Default `adaptive`.
   */
  readonly keeps?: TierKeeping | undefined;
  /** Blocks it takes only when their text has been seen so many times. Default 1: all. */
  readonly admitAfter?: number | undefined;
  /**
   * Opens it for one cache; `context` may be called from here on until `close`. Rejects with what the user must mend.
   */
  open(context: TierContext): Promise<void>;
  /**
   * Stores a block; resolves when it is stored as safely as the tier promises. A block that it has is stored already.
   */
  put(record: BlockRecord, payload: Uint8Array): Promise<TierPut>;
  /**
   * Fills `payload`, of the block's `bytes`, with what was put under `key`, or misses; after a miss its bytes are
   * anything. The cache compares every stripe with its sum where it uses the bytes: a tier need not.
   */
  get(key: string, payload: Uint8Array, signal?: AbortSignal): Promise<TierGet>;
  /**
   * Fills `into` with rows of single tokens: of each part in turn, the bytes that its stripe has for each of its
   * tokens, one behind the other without a gap. The tier checks every byte by sums of its own, and reads little more
   * than the chunks that hold them. A miss where any of them is damaged; after it the bytes are anything. The block is
   * gone only once it is removed. Without it blocks are read whole.
   */
  getTokens?(key: string, parts: readonly TierTokens[], into: Uint8Array, signal?: AbortSignal): Promise<TierTokensGet>;
  /**
   * Bytes of a stripe that `getTokens` reads and checks at once, 1 or more: by it the cache tells which blocks are
   * worth reordering. Undefined: none are.
   */
  readonly chunkBytes?: number | undefined;
  /**
   * Stores a block's tokens in another order: the first row of each stripe becomes that of token `storedToLogical[0]`,
   * and so on, so that tokens which are read together lie together. `get` and `getTokens` give the same bytes before,
   * meanwhile and after. Each of the block's tokens must be named once. Refused, the block stays as it is.
   */
  reorder?(key: string, storedToLogical: Int32Array): Promise<TierPut>;
  /**
   * For tiers whose blocks others may store: how many of `keys`, from the first on, it has; undefined where it cannot
   * say, as its store does not answer. A request waits for it a small share of the time that computing takes. Without
   * it the tier has what `found` and `put` said.
   */
  find?(keys: readonly string[], signal?: AbortSignal): Promise<number | undefined>;
  /**
   * The text of a block that it has is of this level from now on, for tiers that tell levels with `found`. Must be
   * quick.
   */
  setLevel?(key: string, level: number): void;
  /**
   * Drops blocks; those that it does not have are passed over. Room is there when it resolves, and they are missed from
   * the call on, also by other processes, and after a restart as far as the tier promises. `isRemoved: false`: its
   * store did not take note of that, or of a removal before, whose blocks may hold what is removed now. `keys` may be
   * empty: the answer is about those before.
   */
  remove(keys: readonly string[]): Promise<TierRemoval> | Promise<void>;
  /**
   * Memory in which a payload of so many bytes can be made for `put`, which then copies nothing; undefined: full. Once
   * it was put it is the tier's own again: other tiers are given what `borrow` gives. Asked of tiers with `borrow`.
   */
  lend?(bytes: number): Uint8Array | undefined;
  /** Takes back memory that was lent and not put. */
  giveBack?(payload: Uint8Array): void;
  /**
   * A payload in place, to be read until its `release` is called; undefined: it does not have it. In the place of
   * `get`.
   */
  borrow?(key: string): BorrowedBlock | undefined;
  /** Bytes of `capacityBytes` that a payload of so many bytes takes. Default: as many. */
  sizeOf?(bytes: number): number;
  /** What it has and did, also once it is closed. Read for `metrics()` and each scrape, so it must be quick. */
  statistics(): TierStatistics;
  /**
   * Ends what is running, as a refusal or a miss where need be; resolves when no thread or connection of it is left.
   * Signals of reads are aborted before. A cache does not wait for ever (`prefixCache.tierCloseTimeoutMs`). Idempotent.
   */
  close(): Promise<void>;
}

// Reads tiers from options: ours, and objects of the user's that implement `Tier`.

const methods = ['open', 'put', 'get', 'remove', 'statistics', 'close'] as const;

/** A Tier. Throws KV_INVALID_OPTION for anything without its members. */
export const tierField: Field<Tier> = (value, place) => {
  const missing = typeof value === 'object' && value !== null
    ? missingIn(value as Partial<Tier>)
    : 'any member of one';
  if (missing === undefined) return value as Tier;
  throw createError('KV_INVALID_OPTION', {
    reason: 'type', ...place, expected: 'a Tier (hostTier, diskTier, redisTier, or your own)', received: value,
    hint: `It lacks ${missing}.`,
  });
};

function missingIn(tier: Partial<Tier>): string | undefined {
  if (typeof tier.name !== 'string' || tier.name === '') return 'a `name`';
  if (typeof tier.isLasting !== 'boolean') return '`isLasting`';
  if (typeof tier.takesOnlyWholeBlocks !== 'boolean') return '`takesOnlyWholeBlocks`';
  if (tier.keeps !== undefined && !tierKeepings.includes(tier.keeps)) {
    return "a `keeps` of 'adaptive' or 'important'";
  }
  if (tier.tenantBytes !== undefined && !(typeof tier.tenantBytes === 'number' && tier.tenantBytes > 0)) {
    return 'a `tenantBytes` that is a number of bytes, above 0';
  }
  if (tier.chunkBytes !== undefined && !(Number.isSafeInteger(tier.chunkBytes) && tier.chunkBytes > 0)) {
    return 'a `chunkBytes` that is a number of bytes, at least 1';
  }
  const method = methods.find((name) => typeof tier[name] !== 'function');
  return method === undefined ? undefined : `\`${method}\``;
}

/** The same tiers. Throws KV_INVALID_OPTION where two have one name. */
export function checkTierNames(tiers: readonly Tier[], place: FieldPlace): readonly Tier[] {
  const names = new Set<string>(['device']); // what the device is called among them
  for (const { name } of tiers) {
    if (names.has(name)) {
      throw createError('KV_INVALID_OPTION', {
        reason: 'range', ...place, expected: 'tiers of different names, none of which is `device`', received: name,
      });
    }
    names.add(name);
  }
  return tiers;
}

/**
 * The same tiers, which are asked in their order. Throws KV_INVALID_OPTION where host memory stands behind a tier that
 * outlives the process and is none: what both have would always be read from the disk or the network.
 */
export function checkTierOrder(tiers: readonly Tier[], place: FieldPlace): readonly Tier[] {
  const lasting = tiers.findIndex(({ isLasting, borrow }) => isLasting && borrow === undefined);
  const behind =
    lasting < 0 ? undefined : tiers.slice(lasting).find(({ isLasting, borrow }) => !isLasting && borrow !== undefined);
  if (behind === undefined) return tiers;
  const received = tiers.map(({ name }) => name).join(', ');
  throw createError('KV_INVALID_OPTION', {
    reason: 'range', ...place, expected: 'the fastest tier first: host memory before disks and stores', received,
    hint: `Put \`${behind.name}\` before \`${tiers[lasting]!.name}\`.`,
  });
}

const inUse = new WeakSet<object>();

/** A tier is given to a second cache, or to one again. */
export function tierInUse(owner: string): Error {
  const error = createError('KV_INVALID_OPTION', {
    reason: 'range', owner: 'KvCache', option: 'prefixCache.tiers', expected: 'a tier that no cache was given before',
    received: owner,
    hint: 'Make one for each cache.',
  });
  inUse.add(error);
  return error;
}

/** Whether `tierInUse` made it. */
export function isTierInUse(error: unknown): boolean {
  return typeof error === 'object' && error !== null && inUse.has(error);
}
