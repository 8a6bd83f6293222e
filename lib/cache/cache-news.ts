// CacheNews: what has happened to a cache since somebody looked: rows that the mapper mapped, fences that passed, texts that went on,
// failures nobody waited for. Heard before anything is decided, and once more before a refusal for want of pages stands.

import { isKvError } from '../base/errors.js';
import type { LateErrors } from './late-errors.js';
import type { NativeCache } from '../device/native.js';
import type { Prefixes } from './prefixes.js';
import type { SlotLeases } from './slot-leases.js';

export interface CacheNewsParts {
  readonly native: NativeCache;
  readonly late: LateErrors;
  readonly leases: SlotLeases;
  readonly prefixes: Prefixes;
}

export class CacheNews {
  readonly #parts: CacheNewsParts;

  constructor(parts: CacheNewsParts) {
    this.#parts = parts;
  }

  hear(): void {
    const { native, late, prefixes } = this.#parts;
    native.publish();
    this.hearFences();
    late.attempt(() => prefixes.sharing.tell());
    late.hear(native.mapperState());
  }

  hearFences(): void {
    this.#parts.late.attempt(() => this.#parts.leases.pollRetirement());
  }

  /** Before a refusal for want of pages stands, fences are asked. Throws it if none has passed that pages were behind. */
  hearOfPages(error: unknown): void {
    if (!isKvError(error, 'KV_OUT_OF_PAGES') || !this.#parts.leases.hearAllFences()) throw error;
  }
}
