// EncoderHold: one user's hold on the rows of an item, which stay in their EncoderCache until it is released. A handle:
// all state is the cache's.

import { createError } from '../base/errors.js';
import { notConstructible } from '../base/options.js';
import { checkStack } from '../base/stack.js';
import type { SideDtype } from '../base/dtypes.js';
import { EncoderItem } from './encoder-item.js';

/** The part of a cache that its holds talk to. @internal */
export interface HoldOwner {
  /** A hold of the item was released. */
  release(item: EncoderItem): void;
}

/** A hold on the rows of an item, made by `EncoderCache.acquire`. Until it is released they are not evicted. */
export class EncoderHold {
  /** Name of the item's kind. */
  readonly kind: string;
  /** Rows of the item. */
  readonly tokens: number;
  /** Elements of a row. */
  readonly width: number;
  /** Type of an element. */
  readonly dtype: SideDtype;
  /** Bytes of all rows. */
  readonly bytes: number;
  /** Whether the rows stay in the cache after their last release; false where they are more than its whole budget. */
  readonly isCached: boolean;
  readonly #owner: HoldOwner;
  readonly #item: EncoderItem;
  #isReleased = false;

  /** @internal Use `encoderCache.acquire`. */
  constructor(owner: HoldOwner, item: EncoderItem) {
    if (!EncoderItem.isInstance(item)) throw notConstructible('EncoderHold', 'encoderCache.acquire');
    const { name, width, dtype } = item.kind;
    this.kind = name;
    this.tokens = item.tokens!;
    this.width = width;
    this.dtype = dtype;
    this.bytes = item.bytes!;
    this.isCached = item.countedBytes > 0;
    this.#owner = owner;
    this.#item = item;
  }

  /** Whether it is an EncoderHold that a cache made, and no object that only has its prototype. @internal */
  static isInstance(value: unknown): value is EncoderHold {
    return typeof value === 'object' && value !== null && #item in value;
  }

  /** Whether `release` was called. */
  get isReleased(): boolean {
    return this.#isReleased;
  }

  /** Lets go of the rows: no view of them may be used any more. Idempotent; does nothing once the cache is closed. */
  release(): void {
    if (this.#isReleased) return;
    checkStack();
    this.#isReleased = true;
    this.#owner.release(this.#item);
  }

  [Symbol.dispose](): void {
    this.release();
  }

  /** The item, for `owner` only. Throws KV_HOLD_STATE. @internal */
  itemFor(owner: HoldOwner, operation: string): EncoderItem {
    if (owner !== this.#owner) throw createError('KV_HOLD_STATE', { operation, problem: 'belongs to another cache' });
    if (this.#isReleased) throw createError('KV_HOLD_STATE', { operation, problem: 'was released' });
    return this.#item;
  }
}
