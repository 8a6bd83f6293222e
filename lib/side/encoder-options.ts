// Options of an EncoderCache and of its calls, and how they are read. An item is named by its domain, kind and hash:
// `key` joins them so that no two names meet. Nothing is kept of the objects that are passed.

import { createError } from '../base/errors.js';
import {
  abortSignal, callable, integer, isOptionsObject, nested, number, oneOf, optional, readOptions, text, withDefault,
  type Field,
} from '../base/options.js';
import { bytesOf } from '../base/typed-arrays.js';
import { sideDtypeBytes, sideDtypes, type SideDtype, type SideView } from '../base/dtypes.js';
import { prefixDomain, type PrefixDomain, type PrefixDomainParts } from '../prefix/domain.js';

/** The rows of one kind of items: what its encoder returns for one token. */
export interface EncoderKindOptions {
  /** Elements of a row, 1 … 1,048,576. */
  readonly width: number;
  /** Type of an element. JavaScript holds 16-bit floats as their bits in a Uint16Array, float8 in a Uint8Array. */
  readonly dtype: SideDtype;
}

/** Options of `EncoderCache`. */
export interface EncoderCacheOptions {
  /** Bytes of rows that it may hold, at least 1: those in use, those kept for later, and those being computed. */
  readonly budgetBytes: number;
  /** The kinds of items by name, such as `{ image: { width: 2048, dtype: 'bfloat16' } }`; at least one. */
  readonly kinds: Readonly<Record<string, EncoderKindOptions>>;
}

/** Names an item: its rows are shared by requests that name the same. */
export interface EncoderItemName {
  /** Within which requests share: all parts must be equal. Default: requests without any part share. */
  readonly domain?: PrefixDomainParts | undefined;
  /** One of the cache's `kinds`. */
  readonly kind: string;
  /**
   * Hash of the content and of all that the encoder's output depends on: a string or bytes, 1 … 1,024 of them. A string
   * never equals bytes.
   */
  readonly hash: string | Uint8Array;
}

/** What `compute` is called with. */
export interface EncoderComputation {
  /** Aborted once no request waits for the rows any more; they would not be used. */
  readonly signal: AbortSignal;
}

/** Options of `EncoderCache.acquire`. */
export interface EncoderAcquireOptions extends EncoderItemName {
  /**
   * Runs the encoder; called only when the rows are neither there nor being computed. Returns them as one typed array
   * [tokens, width] of the kind's dtype, which is copied. It must not acquire the same item.
   */
  readonly compute: (computation: EncoderComputation) => SideView | Promise<SideView>;
  /** Rows of the item, where known before it is computed: room is then made first. At least 1. Default: unknown. */
  readonly tokens?: number | undefined;
  /**
   * Where there is no room: `wait` for it in the order of arrival, or `refuse` with KV_ENCODER_FULL. Default `wait`.
   */
  readonly whenFull?: 'wait' | 'refuse' | undefined;
  /** Gives up after so many milliseconds of waiting, for room or for the encoder, with KV_TIMEOUT. Default: never. */
  readonly timeoutMs?: number | undefined;
  /** Gives up with KV_ABORTED. */
  readonly signal?: AbortSignal | undefined;
}

/** A kind of items, read. */
export interface EncoderKind extends EncoderKindOptions {
  readonly name: string;
  /** Bytes of one row. */
  readonly rowBytes: number;
}

export type EncoderKinds = ReadonlyMap<string, EncoderKind>;

/** The name of an item, read. */
export interface ReadItemName {
  readonly key: string;
  readonly domain: PrefixDomain;
  readonly kind: EncoderKind;
  readonly hash: string;
}

const mostKinds = 1_024;
const longestHash = 1_024;

const kindSpec = { width: integer({ min: 1, max: 2 ** 20 }), dtype: oneOf(sideDtypes) };

const kindsField: Field<EncoderKinds> = (value, place) => {
  const expected = "an object such as `{ image: { width: 2048, dtype: 'bfloat16' } }`";
  if (!isOptionsObject(value)) {
    throw createError('KV_INVALID_OPTION', { reason: 'type', ...place, expected, received: value });
  }
  const names = Object.keys(value);
  if (names.length === 0 || names.length > mostKinds) {
    throw createError('KV_INVALID_OPTION', {
      reason: 'range', ...place, expected: `${expected}, with 1 to 1,024 kinds`, received: value,
    });
  }
  return new Map(names.map((name) => {
    const given: unknown = (value as Readonly<Record<string, unknown>>)[name];
    const { width, dtype } = readOptions(place.owner, given, kindSpec, `${place.option}.${name}`);
    return [name, { name, width, dtype, rowBytes: width * sideDtypeBytes(dtype) }];
  }));
};

/** A string as it is, bytes as hexadecimal digits; the first letter tells which. */
const hashField: Field<string> = (value, place) => {
  const expected = 'a string or a Uint8Array of 1 to 1,024 characters or bytes';
  const bytes = bytesOf(value);
  if (typeof value !== 'string' && bytes === undefined) {
    throw createError('KV_INVALID_OPTION', { reason: 'type', ...place, expected, received: value });
  }
  const length = typeof value === 'string' ? value.length : bytes!.length;
  if (length === 0 || length > longestHash) {
    throw createError('KV_INVALID_OPTION', { reason: 'range', ...place, expected, received: value });
  }
  return typeof value === 'string' ? `s${value}` : `b${Buffer.from(bytes!).toString('hex')}`;
};

export const domainSpec = {
  tenant: optional(text), salt: optional(text), adapter: optional(text), namespace: optional(text),
};

const cacheSpec = { budgetBytes: integer({ min: 1 }), kinds: kindsField };

const nameSpec = { domain: nested(domainSpec), kind: text, hash: hashField };

const acquireSpec = {
  ...nameSpec,
  compute: callable<EncoderAcquireOptions['compute']>(),
  tokens: optional(integer({ min: 1 })),
  whenFull: withDefault(oneOf(['wait', 'refuse']), 'wait'),
  signal: optional(abortSignal),
  timeoutMs: optional(number(0)),
};

/** Throws KV_UNKNOWN_OPTION and KV_INVALID_OPTION. */
export function readCacheOptions(options: EncoderCacheOptions) {
  return readOptions('EncoderCache', options, cacheSpec);
}

/** Throws KV_UNKNOWN_OPTION, and KV_INVALID_OPTION, also for a kind that the cache does not have. */
export function readItemName(owner: string, name: EncoderItemName, kinds: EncoderKinds): ReadItemName {
  const { domain, kind, hash } = readOptions(owner, name, nameSpec);
  return named(owner, domain, kind, hash, kinds);
}

/** Throws as `readItemName`. */
export function readAcquireOptions(options: EncoderAcquireOptions, kinds: EncoderKinds) {
  const owner = 'EncoderCache.acquire';
  const { domain, kind, hash, ...given } = readOptions(owner, options, acquireSpec);
  return { ...given, ...named(owner, domain, kind, hash, kinds) };
}

export type ReadAcquireOptions = ReturnType<typeof readAcquireOptions>;

function named(
  owner: string, parts: PrefixDomainParts, kindName: string, hash: string, kinds: EncoderKinds,
): ReadItemName {
  const kind = kinds.get(kindName) ?? kinds.get(oneOf([...kinds.keys()])(kindName, { owner, option: 'kind' }))!;
  const domain = prefixDomain(parts);
  return { key: domain.key + JSON.stringify([kindName, hash]), domain, kind, hash };
}
