// EncoderCache: outputs of vision and audio encoders, so that an image or a sound that is seen again is not encoded
// again. It owns the rows, in this process's memory, within a budget in bytes; requests share them by domain, kind and
// hash, and hold them while they use them. It knows nothing of any KvCache, and runs no encoder of its own. For one
// Node thread.

import { createError } from '../base/errors.js';
import { checkStack } from '../device/cache-calls.js';
import { checkInteger, instanceOf, readOptions } from '../base/options.js';
import { arrayOver, type SideView } from '../base/dtypes.js';
import type { PrefixDomainParts } from '../prefix/domain.js';
import { EncoderHold, EncoderItems } from './encoder-items.js';
import {
  domainSpec, readAcquireOptions, readCacheOptions, readItemName,
  type EncoderAcquireOptions, type EncoderCacheOptions, type EncoderItemName, type EncoderKinds,
} from './encoder-options.js';

/** What an EncoderCache holds at a moment. */
export interface EncoderCounts {
  /** Items whose rows are there. */
  readonly items: number;
  /** Of `items`, those that are held. */
  readonly heldItems: number;
  /** Holds that were not released. */
  readonly holds: number;
  /** Items whose encoder runs. */
  readonly computingItems: number;
  /** Calls of `acquire` that were not answered: they wait for room or for an encoder. */
  readonly waitingRequests: number;
  /** Bytes within the budget: rows that are held, kept for later, or being computed. */
  readonly usedBytes: number;
  /** Of `usedBytes`, those of rows that are held or being computed. */
  readonly heldBytes: number;
  /** Bytes of held items that are each more than the whole budget, outside it. */
  readonly outsideBytes: number;
  /** The budget. */
  readonly budgetBytes: number;
}

/** What an EncoderCache has done since it was made. */
export interface EncoderMetrics {
  /** Calls of `acquire` that found the rows. */
  readonly hits: number;
  /** Calls that joined requests for the same item, which were waiting for room or for its encoder. */
  readonly joins: number;
  /** Calls that found nothing. */
  readonly misses: number;
  /** Requests that waited for room. */
  readonly waits: number;
  /** Encoders that were called. */
  readonly computations: number;
  /** Of `computations`, those that failed. */
  readonly failures: number;
  /** Items that were evicted: for the room of another, or after the budget was lowered. */
  readonly evictions: number;
  /** Bytes of rows that encoders have returned. */
  readonly computedBytes: number;
  /** Bytes of rows that were evicted. */
  readonly evictedBytes: number;
}

/**
 * Outputs of encoders by domain, kind and hash: bounded in bytes, held while in use, computed once for requests that
 * come together.
 */
export class EncoderCache {
  readonly #kinds: EncoderKinds;
  readonly #items: EncoderItems;
  #isClosed = false;

  /** An empty cache. Throws KV_UNKNOWN_OPTION and KV_INVALID_OPTION. */
  constructor(options: EncoderCacheOptions) {
    const { budgetBytes, kinds } = readCacheOptions(options);
    this.#kinds = kinds;
    this.#items = new EncoderItems(budgetBytes);
  }

  /** Whether it is an EncoderCache that was made, and no object that only has its prototype. @internal */
  static isInstance(value: unknown): value is EncoderCache {
    return typeof value === 'object' && value !== null && #isClosed in value;
  }

  /** Whether `close` was called. Every other call then throws KV_CLOSED. */
  get isClosed(): boolean {
    return this.#isClosed;
  }

  /**
   * Resolves with a hold on an item's rows: those that are there, those that another request has computed at this
   * moment, or what `compute` returns. Rejects with KV_ITEM_TOO_LARGE before anything is computed where `tokens` is
   * given and they are more than the whole budget; with KV_ENCODER_FULL (`whenFull: 'refuse'`), KV_TIMEOUT, KV_ABORTED
   * and KV_CLOSED; with KV_UNKNOWN_OPTION and KV_INVALID_OPTION, also where `compute` returns something else or
   * `tokens` is not the number of the item's rows; and with what `compute` throws, for all that wait for it. After an
   * error the request holds nothing.
   */
  async acquire(options: EncoderAcquireOptions): Promise<EncoderHold> {
    const given = readAcquireOptions(options, this.#kinds);
    this.#checkOpen('acquire an item');
    const { signal } = given;
    if (signal?.aborted) {
      throw createError('KV_ABORTED', { operation: 'acquiring an encoder item' }, { cause: signal.reason });
    }
    return this.#items.acquire(given);
  }

  /** Whether an item's rows are there, so that `acquire` would compute nothing. Does not count as a use. */
  has(name: EncoderItemName): boolean {
    const { key } = readItemName('EncoderCache.has', name, this.#kinds);
    this.#checkOpen('look up an item');
    return this.#items.find(key)?.state === 'stored';
  }

  /**
   * Rows [from, to) of a held item as a view [to − from, width], without copying; by default all. All holds of the item
   * show the same memory: do not write to it, and do not use it after the hold's release. Throws KV_INVALID_OPTION,
   * KV_HOLD_STATE and KV_CLOSED.
   */
  range(hold: EncoderHold, from = 0, to?: number): Readonly<SideView> {
    const owner = 'EncoderCache.range';
    instanceOf(EncoderHold, 'an EncoderHold')(hold, { owner, option: 'hold' });
    this.#checkOpen('read an item');
    const { rows, tokens, kind: { width, dtype, rowBytes } } = hold.itemFor(this.#items, 'read');
    const end = to === undefined ? tokens! : to;
    checkInteger(owner, 'from', from, 0, tokens);
    checkInteger(owner, 'to', end, from, tokens);
    if (rows!.length === 0) {
      throw createError('KV_HOLD_STATE', {
        operation: 'read', problem: 'has lost its rows, which were transferred through a view',
      });
    }
    return arrayOver(dtype, rows!.buffer as ArrayBuffer, from * rowBytes, (end - from) * width);
  }

  /**
   * Changes the budget, at least 1 byte. Where it is lowered, items without a hold are evicted at once, held ones once
   * they are released; requests that wait for more than the whole budget are rejected with KV_ITEM_TOO_LARGE. Throws
   * KV_INVALID_OPTION and KV_CLOSED.
   */
  setBudget(budgetBytes: number): void {
    checkInteger('EncoderCache.setBudget', 'budgetBytes', budgetBytes, 1);
    this.#checkOpen('change the budget');
    this.#items.setBudget(budgetBytes);
  }

  /**
   * Drops the items of all domains that have the given parts, by default all items: no later request finds them. Held
   * rows stay valid until their release, and requests that wait for a computation get its rows. Throws
   * KV_UNKNOWN_OPTION, KV_INVALID_OPTION and KV_CLOSED.
   */
  clear(domain?: PrefixDomainParts): void {
    const parts = readOptions('EncoderCache.clear', domain, domainSpec, 'domain');
    this.#checkOpen('clear it');
    this.#items.clear(parts);
  }

  /**
   * As `clear`, for a KvCache that drops the same text; of the items with these hashes, or all. Nothing once it is
   * closed. @internal
   */
  drop(parts: PrefixDomainParts, hashes: readonly string[] | undefined): void {
    if (!this.#isClosed) this.#items.clear(parts, hashes);
  }

  /** What it holds at this moment. Throws KV_CLOSED. */
  counts(): EncoderCounts {
    this.#checkOpen('count its items');
    const { items, requests, room } = this.#items;
    const stored = [...items].filter(({ state }) => state === 'stored');
    const held = stored.filter(({ holds }) => holds > 0);
    return {
      items: stored.length, heldItems: held.length, holds: held.reduce((sum, { holds }) => sum + holds, 0),
      computingItems: [...items].filter(({ state }) => state === 'computing').length, waitingRequests: requests.size,
      usedBytes: room.usedBytes, heldBytes: room.pinnedBytes, outsideBytes: room.outsideBytes,
      budgetBytes: room.budgetBytes,
    };
  }

  /** What it has done since it was made, also once it is closed. */
  get metrics(): EncoderMetrics {
    const { events, room: { evictions, evictedBytes } } = this.#items;
    return { ...events, evictions, evictedBytes };
  }

  /**
   * Drops everything: requests that wait are rejected with KV_CLOSED, running encoders are aborted, all rows are gone.
   * Idempotent.
   */
  close(): void {
    if (this.#isClosed) return;
    this.#isClosed = true;
    this.#items.close(() => closed('wait for an item'));
  }

  [Symbol.dispose](): void {
    this.close();
  }

  #checkOpen(operation: string): void {
    checkStack();
    if (this.#isClosed) throw closed(operation);
  }
}

function closed(operation: string): Error {
  return createError('KV_CLOSED', { operation, owner: 'EncoderCache' });
}
