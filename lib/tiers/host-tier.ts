// hostTier: blocks in the process's own memory, the first tier below the device. What is stored there is made there,
// and read in place: nothing is copied but between it and the device.

import { integer, oneOf, optional, readOptions, withDefault } from '../base/options.js';
import { CheckedStripes } from './checked-stripes.js';
import { HostMemory } from './host-memory.js';
import {
  type BlockRecord, type BorrowedBlock, type Tier, type TierContext, type TierGet, tierInUse, type TierKeeping,
  tierKeepings, type TierPut, type TierStatistics, type TierTokens, type TierTokensGet,
} from './tier.js';

/** Options of `hostTier`. */
export interface HostTierOptions {
  /** Bytes of memory it may take. It is taken as it fills, in chunks of 64 MiB, and kept until the cache is closed. */
  readonly bytes: number;
  /**
   * Bytes of it that the text of one tenant may take, from 4,096 on; what it used longest ago goes first then. Requests
   * without a tenant are one. Default: all.
   */
  readonly tenantBytes?: number | undefined;
  /**
   * What stays where it is full: `adaptive`: text that is likely to return, learnt from which did, as the eviction
   * policy of that name does; `important`: that of the most important tokens × uses. Blocks of which selections read
   * are brought here from slower tiers: with `adaptive` once they are used again, with `important` where they are worth
   * more than what goes for them. Default `adaptive`.
   */
  readonly keeps?: TierKeeping | undefined;
}

const spec = {
  bytes: integer({ min: 4096 }), tenantBytes: optional(integer({ min: 4096 })),
  keeps: withDefault(oneOf(tierKeepings), 'adaptive' as const),
};

interface Held {
  readonly payload: Uint8Array;
  readonly sums: Uint32Array;
  /** Once single tokens were read. */
  checked?: CheckedStripes;
  readers: number;
  isRemoved: boolean;
}

/**
 * A tier in host memory, for `prefixCache.tiers`: evicted text comes back from it at the speed of memory, and is gone
 * with the process. Throws KV_UNKNOWN_OPTION and KV_INVALID_OPTION.
 */
export function hostTier(options: HostTierOptions): Tier {
  const { bytes, tenantBytes, keeps } = readOptions('hostTier', options, spec);
  return new HostTier(bytes, tenantBytes, keeps);
}

class HostTier implements Tier {
  readonly name = 'host';
  readonly isLasting = false;
  readonly takesOnlyWholeBlocks = false;
  readonly capacityBytes: number;
  readonly tenantBytes: number | undefined;
  readonly keeps: TierKeeping;
  #memory = new HostMemory(0, 1);
  #isOpen = false;
  #stripeTokenBytes: readonly number[] = [];
  readonly #lent = new Set<Uint8Array>();
  readonly #held = new Map<string, Held>();

  constructor(bytes: number, tenantBytes: number | undefined, keeps: TierKeeping) {
    this.capacityBytes = bytes;
    this.tenantBytes = tenantBytes;
    this.keeps = keeps;
  }

  sizeOf(bytes: number): number {
    return this.#memory.sizeOf(bytes);
  }

  open({ stripeTokenBytes, blockTokens }: TierContext): Promise<void> {
    if (this.#isOpen) return Promise.reject(tierInUse('hostTier'));
    this.#isOpen = true;
    this.#stripeTokenBytes = stripeTokenBytes;
    const wholeBytes = blockTokens * stripeTokenBytes.reduce((sum, bytes) => sum + bytes, 0);
    this.#memory = new HostMemory(this.capacityBytes, wholeBytes);
    return Promise.resolve();
  }

  lend(bytes: number): Uint8Array | undefined {
    const payload = this.#memory.take(bytes);
    if (payload !== undefined) this.#lent.add(payload);
    return payload;
  }

  giveBack(payload: Uint8Array): void {
    if (this.#lent.delete(payload)) this.#memory.give(payload);
  }

  put({ key, sums }: BlockRecord, payload: Uint8Array): Promise<TierPut> {
    if (this.#held.has(key)) {
      this.giveBack(payload);
      return stored;
    }
    let kept: Uint8Array | undefined = payload;
    if (!this.#lent.delete(payload)) {
      kept = this.#memory.take(payload.length);
      if (kept === undefined) return full;
      kept.set(payload);
    }
    this.#held.set(key, { payload: kept, sums: sums.slice(), readers: 0, isRemoved: false });
    return stored;
  }

  get(key: string, payload: Uint8Array): Promise<TierGet> {
    const held = this.#held.get(key);
    if (held === undefined || held.payload.length !== payload.length) {
      return Promise.resolve({ isFound: false, reason: 'absent' });
    }
    payload.set(held.payload);
    return Promise.resolve({ isFound: true, sums: held.sums.slice() });
  }

  getTokens(key: string, parts: readonly TierTokens[], into: Uint8Array): Promise<TierTokensGet> {
    const held = this.#held.get(key);
    if (held === undefined) return Promise.resolve({ isFound: false, reason: 'absent', readBytes: 0, chunks: 0 });
    held.checked ??= new CheckedStripes(held.payload, held.sums, this.#stripeTokenBytes);
    return Promise.resolve(held.checked.copyTokens(parts, into));
  }

  borrow(key: string): BorrowedBlock | undefined {
    const held = this.#held.get(key);
    if (held === undefined) return undefined;
    held.readers += 1;
    let isOver = false;
    const release = (): void => {
      if (isOver) return;
      isOver = true;
      held.readers -= 1;
      this.#giveIfUnused(held);
    };
    return { payload: held.payload, sums: held.sums, release };
  }

  remove(keys: readonly string[]): Promise<void> {
    for (const key of keys) {
      const held = this.#held.get(key);
      if (held === undefined) continue;
      this.#held.delete(key);
      held.isRemoved = true;
      this.#giveIfUnused(held);
    }
    return Promise.resolve();
  }

  statistics(): TierStatistics {
    return { blocks: this.#held.size, bytes: this.#memory.usedBytes };
  }

  /** What is borrowed or lent must be over. */
  close(): Promise<void> {
    this.#held.clear();
    this.#lent.clear();
    this.#memory = new HostMemory(0, 1);
    return Promise.resolve();
  }

  #giveIfUnused(held: Held): void {
    if (held.isRemoved && held.readers === 0) this.#memory.give(held.payload);
  }
}

const stored: Promise<TierPut> = Promise.resolve({ isStored: true });
const full: Promise<TierPut> = Promise.resolve({ isStored: false, reason: 'full' });
