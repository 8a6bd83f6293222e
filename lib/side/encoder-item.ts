// EncoderItem: what an EncoderCache knows of one item. `queued`: it waits for room; `computing`: its encoder runs;
// `stored`: its rows are there. EncoderCache moves it from state to state, EncoderRoom counts its bytes; nothing here
// changes anything else.

import { markAsUntransferable } from 'node:worker_threads';

import { createError } from '../base/errors.js';
import { formatNumber } from '../base/format.js';
import { arrayNameOf, arrayOver, bytesIfOf, sideDtypeBytes, type SideView } from '../base/dtypes.js';
import type { PrefixDomain } from '../prefix/domain.js';
import type { EncoderKind, ReadItemName } from './encoder-options.js';

export class EncoderItem {
  readonly key: string;
  readonly domain: PrefixDomain;
  readonly kind: EncoderKind;
  /** As it was read: `s` and a string, or `b` and bytes. */
  readonly hash: string;
  /** Arrival of the request that it was made for: its place among those that wait for room. */
  readonly number: number;
  state: 'queued' | 'computing' | 'stored' = 'queued';
  /** Rows, as far as known. */
  tokens: number | undefined;
  rows: SideView | undefined;
  /** Bytes counted within the budget: 0 where its size is not known yet, or is more than the whole budget. */
  countedBytes = 0;
  /** Whether its rows are more than the whole budget, and counted outside it. */
  isOutside = false;
  /** Holds that were not released. */
  holds = 0;
  /** Whether later requests may be given it. */
  isFindable = true;
  /** Ends the computation that runs; another object for each. */
  computation: AbortController | undefined;
  readonly #isMade = true;

  constructor({ key, domain, kind, hash }: ReadItemName, number: number, tokens: number | undefined) {
    this.key = key;
    this.domain = domain;
    this.kind = kind;
    this.hash = hash;
    this.number = number;
    this.tokens = tokens;
  }

  /** Whether it is an EncoderItem, and no object that only has its prototype. */
  static isInstance(value: unknown): value is EncoderItem {
    return typeof value === 'object' && value !== null && #isMade in value;
  }

  /** Bytes of its rows; undefined where their number is not known yet. */
  get bytes(): number | undefined {
    return this.tokens === undefined ? undefined : this.tokens * this.kind.rowBytes;
  }
}

/** What an encoder answered, in memory of the cache's own, which the caller cannot change any more. */
export interface ComputedRows {
  readonly rows: SideView;
  readonly tokens: number;
}

/**
 * A copy of an encoder's answer. Throws KV_INVALID_OPTION where it is not rows of the item's kind, or not as many as
 * were announced.
 */
export function copyComputedRows(
  answer: unknown, { kind: { width, dtype, rowBytes }, tokens }: EncoderItem,
): ComputedRows {
  const bytes = bytesIfOf(dtype, answer);
  if (bytes === undefined || bytes.length === 0 || bytes.length % rowBytes !== 0) throw wrong(bytes);
  const count = bytes.length / rowBytes;
  if (tokens !== undefined && count !== tokens) throw wrong(bytes);
  const buffer = new ArrayBuffer(bytes.length);
  new Uint8Array(buffer).set(bytes);
  markAsUntransferable(buffer); // no user of a view can take the rows away from the cache
  return { rows: arrayOver(dtype, buffer, 0, count * width), tokens: count };

  function wrong(given: Uint8Array | undefined): Error {
    const announced = tokens === undefined ? 'whole rows' : `${formatNumber(tokens)} rows (\`tokens\`)`;
    return createError('KV_INVALID_OPTION', {
      reason: given === undefined ? 'type' : 'range', owner: 'EncoderCache.acquire', option: 'compute',
      isReturned: true,
      expected: `a function that returns a ${arrayNameOf(dtype)} of ${announced} of ${formatNumber(width)} (${dtype})`,
      received: given === undefined ? answer : `${formatNumber(given.length / sideDtypeBytes(dtype))} elements`,
    });
  }
}
