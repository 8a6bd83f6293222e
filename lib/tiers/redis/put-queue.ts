// PutQueue: blocks that wait to be written. A few are written at a time; the others wait, bounded in bytes, and where
// there are too many the least valuable are refused: of the lowest level, of those the furthest from its text's start,
// as nothing is found behind a block that is missing, and of those the oldest, whose text is the likeliest to have been
// stored by another process. It keeps no copy: a block's payload is its caller's until the block is written or refused.

import type { TierPut } from '../tier.js';

/** What is to be written. */
export interface QueuedBlock {
  readonly key: string;
  /** Of its payload. */
  readonly bytes: number;
  /** The higher, the later it goes. */
  readonly level: number;
  /** Tokens of its text before it. */
  readonly position: number;
}

interface WaitingPut extends QueuedBlock {
  readonly write: () => Promise<TierPut>;
  readonly settle: (result: TierPut) => void;
}

export interface PutQueueOptions {
  /** Bytes that may wait, beside those being written. */
  readonly maxBytes: number;
  /** Blocks written at a time. */
  readonly maxWriting: number;
}

export class PutQueue {
  readonly #options: PutQueueOptions;
  /** In the order of arrival. */
  readonly #waiting = new Set<WaitingPut>();
  readonly #results = new Map<string, Promise<TierPut>>();
  #waitingBytes = 0;
  #writing = 0;
  #dropped = 0;

  constructor(options: PutQueueOptions) {
    this.#options = options;
  }

  /** Blocks that wait. */
  get length(): number {
    return this.#waiting.size;
  }

  /** Their bytes. */
  get waitingBytes(): number {
    return this.#waitingBytes;
  }

  /** Blocks that were refused because too many waited. */
  get dropped(): number {
    return this.#dropped;
  }

  /**
   * Calls `write`, which never rejects, when it is this block's turn. A block that is queued already is written once,
   * for both callers.
   */
  put(block: QueuedBlock, write: () => Promise<TierPut>): Promise<TierPut> {
    const { key, bytes } = block;
    const same = this.#results.get(key);
    if (same !== undefined) return same;
    // it would push out all others, and itself
    if (this.#writing === this.#options.maxWriting && bytes > this.#options.maxBytes) {
      this.#dropped += 1;
      return Promise.resolve({ isStored: false, reason: 'busy' });
    }
    const result = new Promise<TierPut>((settle) => {
      this.#waiting.add({ ...block, write, settle });
    });
    this.#results.set(key, result);
    this.#waitingBytes += bytes;
    this.#next();
    while (this.#waitingBytes > this.#options.maxBytes) {
      this.#dropped += 1;
      this.#refuse(this.#leastValuable(), { isStored: false, reason: 'busy' });
    }
    return result;
  }

  /** Refuses a block that still waits; returns the result of one that is being written. */
  withdraw(key: string): Promise<TierPut> | undefined {
    const waiting = [...this.#waiting].find((put) => put.key === key);
    if (waiting === undefined) return this.#results.get(key);
    this.#refuse(waiting, { isStored: false, reason: 'busy' });
    return undefined;
  }

  /** Refuses all that wait. */
  refuseAll(result: TierPut): void {
    for (const put of this.#waiting) this.#refuse(put, result);
  }

  #next(): void {
    while (this.#writing < this.#options.maxWriting) {
      const put = this.#waiting.values().next().value;
      if (put === undefined) return;
      this.#waiting.delete(put);
      this.#waitingBytes -= put.bytes;
      this.#writing += 1;
      void put.write().then((result) => {
        this.#writing -= 1;
        this.#results.delete(put.key);
        put.settle(result);
        this.#next();
      });
    }
  }

  /** Pre: some block waits. */
  #leastValuable(): WaitingPut {
    let least: WaitingPut | undefined;
    for (const put of this.#waiting) {
      if (least === undefined || put.level < least.level
        || (put.level === least.level && put.position > least.position)) least = put;
    }
    return least!;
  }

  #refuse(put: WaitingPut, result: TierPut): void {
    this.#waiting.delete(put);
    this.#waitingBytes -= put.bytes;
    this.#results.delete(put.key);
    put.settle(result);
  }
}
