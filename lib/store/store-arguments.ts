// Checks what the calls of a disk store are given, and turns it into what the addon takes. Nothing is kept or begun before all of it is
// right. Throws KV_INVALID_OPTION and KV_UNKNOWN_OPTION.

import { types } from 'node:util';

import { createError } from '../base/errors.js';
import { isAddress, integer, optional, readArray, readOptions, withDefault, type Field, type FieldPlace } from '../base/options.js';
import { bytesOf, typedArrayKind } from '../base/typed-arrays.js';
import type { NativeStoreMemory } from '../device/native-store.js';
import type { StoreRead, StoreRecord } from './store-record.js';

export const keyBytes = 32;
const maxExtraBytes = 256 * 2 ** 10;
const maxStripes = 16_384;
const maxReads = 65_536;
const maxTokens = 2 ** 19;
const maxStripeBytes = 2 ** 32;
const maxStripeId = 2 ** 32 - 1;

function invalid(reason: 'type' | 'range', place: FieldPlace, expected: string, received: unknown): Error {
  return createError('KV_INVALID_OPTION', { reason, ...place, expected, received });
}

/** A key of 32 bytes, copied: the caller may use its array again. */
export const keyField: Field<Uint8Array> = (value, place) => {
  if (typedArrayKind(value) !== 'Uint8Array') throw invalid('type', place, `a Uint8Array of ${keyBytes} bytes`, value);
  const bytes = bytesOf(value);
  if (bytes?.byteLength !== keyBytes) throw invalid('range', place, `a Uint8Array of ${keyBytes} bytes`, value);
  return bytes.slice();
};

const tokensField: Field<Int32Array> = (value, place) => {
  const kind = typedArrayKind(value);
  const bytes = kind === 'Int32Array' || kind === 'Uint32Array' ? bytesOf(value) : undefined;
  if (bytes === undefined) throw invalid('type', place, 'an Int32Array or a Uint32Array that is not detached', value);
  if (bytes.byteLength > 4 * maxTokens) throw invalid('range', place, 'an array of at most 524,288 tokens', value);
  return new Int32Array(bytes.slice().buffer);
};

const extraField: Field<Uint8Array> = (value, place) => {
  const bytes = bytesOf(value);
  if (bytes === undefined) throw invalid('type', place, 'a typed array that is not detached', value);
  if (bytes.byteLength > maxExtraBytes) throw invalid('range', place, 'at most 256 KiB', value);
  return bytes.slice();
};

export const levelField: Field<number> = integer({ max: 255 });

interface Memory {
  readonly native: NativeStoreMemory;
  readonly bytes: number;
}

/** A view whose memory stays where it is, or an address. */
const memoryField: Field<Memory> = (value, place) => {
  if (ArrayBuffer.isView(value)) {
    const native = bytesOf(value);
    const buffer = native?.buffer as (ArrayBufferLike & { readonly resizable?: boolean; readonly growable?: boolean }) | undefined;
    if (native === undefined || buffer?.resizable === true || buffer?.growable === true) {
      throw invalid('type', place, 'a view of a buffer that is neither detached nor resizable', value);
    }
    return { native, bytes: native.byteLength };
  }
  const { address, bytes } = readOptions(place.owner, value, {
    address: ((given, at) => {
      if (isAddress(given) && given > 0n) return given;
      throw invalid(typeof given === 'bigint' ? 'range' : 'type', at, 'an address: a bigint above 0', given);
    }) as Field<bigint>,
    bytes: integer({ max: maxStripeBytes }),
  }, place.option);
  return { native: address, bytes };
};

/** What `NativeStore.put` takes. */
export interface CheckedRecord {
  readonly key: Uint8Array;
  readonly parent: Uint8Array;
  readonly position: number;
  readonly tokens: Int32Array;
  readonly extra: Uint8Array;
  readonly level: number;
  readonly stripes: Float64Array;
  readonly byteCounts: Float64Array;
  readonly sources: readonly NativeStoreMemory[];
  /** Bytes of all stripes. */
  readonly bytes: number;
}

const recordSpec = {
  key: keyField,
  parent: optional(keyField),
  position: withDefault(integer(), 0),
  tokens: tokensField,
  extra: optional(extraField),
  level: withDefault(levelField, 0),
  stripes: ((value, place) => {
    const ids = new Set<number>();
    const stripes = readArray(value, place, (element, index) => {
      const at = { ...place, option: `${place.option}[${index}]` };
      const stripe = readOptions(place.owner, element, { id: integer({ max: maxStripeId }), source: memoryField }, at.option);
      if (ids.has(stripe.id)) throw invalid('range', { ...at, option: `${at.option}.id` }, 'an id that no other stripe has', stripe.id);
      ids.add(stripe.id);
      return stripe;
    });
    if (stripes.length > maxStripes) throw invalid('range', place, 'at most 16,384 stripes', value);
    return stripes;
  }) as Field<readonly { readonly id: number; readonly source: Memory }[]>,
};

export function readRecord(record: StoreRecord): CheckedRecord {
  const { key, parent, position, tokens, extra, level, stripes } = readOptions('DiskStore.put', record, recordSpec);
  const byteCounts = Float64Array.from(stripes, ({ source }) => source.bytes);
  return {
    key, parent: parent ?? new Uint8Array(keyBytes), position, tokens, extra: extra ?? new Uint8Array(0), level,
    stripes: Float64Array.from(stripes, ({ id }) => id), byteCounts, sources: stripes.map(({ source }) => source.native),
    bytes: byteCounts.reduce((sum, bytes) => sum + bytes, 0),
  };
}

/** What `NativeStore.get` takes. */
export interface CheckedReads {
  readonly stripes: Float64Array;
  readonly offsets: Float64Array;
  readonly byteCounts: Float64Array;
  readonly targets: readonly NativeStoreMemory[];
}

const readSpec = { stripe: integer({ max: maxStripeId }), offset: withDefault(integer({ max: maxStripeBytes }), 0), target: memoryField };

/** A read in the shape that most have, checked without what a message would need; undefined for any other, right or wrong. */
function plainRead(read: unknown): { readonly stripe: number; readonly offset: number; readonly target: Memory } | undefined {
  if (typeof read !== 'object' || read === null || types.isProxy(read) || Object.getPrototypeOf(read) !== Object.prototype) return undefined;
  const { stripe, offset, target } = read as Readonly<Record<string, unknown>>;
  if (Object.keys(read).length !== (offset === undefined ? 2 : 3) || !isCount(stripe, maxStripeId) || !isCount(offset ?? 0, maxStripeBytes)) return undefined;
  if (typeof target !== 'object' || target === null || types.isProxy(target) || Object.getPrototypeOf(target) !== Object.prototype) return undefined;
  const { address, bytes } = target as Readonly<Record<string, unknown>>;
  if (Object.keys(target).length !== 2 || !isAddress(address) || address === 0n || !isCount(bytes, maxStripeBytes)) return undefined;
  return { stripe, offset: (offset ?? 0) as number, target: { native: address, bytes } };
}

function isCount(value: unknown, max: number): value is number {
  return Number.isSafeInteger(value) && (value as number) >= 0 && (value as number) <= max;
}

export function readReads(reads: readonly StoreRead[]): CheckedReads {
  const place = { owner: 'DiskStore.get', option: 'reads' };
  const checked = readArray(reads, place, (element, index) =>
    plainRead(element) ?? readOptions(place.owner, element, readSpec, `reads[${index}]`));
  if (checked.length > maxReads) throw invalid('range', place, 'at most 65,536 reads', reads);
  return {
    stripes: Float64Array.from(checked, ({ stripe }) => stripe),
    offsets: Float64Array.from(checked, ({ offset }) => offset),
    byteCounts: Float64Array.from(checked, ({ target }) => target.bytes),
    targets: checked.map(({ target }) => target.native),
  };
}

/** The keys one behind the other. */
export function readKeys(keys: readonly Uint8Array[]): Uint8Array {
  const place = { owner: 'DiskStore.remove', option: 'keys' };
  const checked = readArray(keys, place, (element, index) => keyField(element, { ...place, option: `keys[${index}]` }));
  const joined = new Uint8Array(keyBytes * checked.length);
  checked.forEach((key, index) => joined.set(key, keyBytes * index));
  return joined;
}
