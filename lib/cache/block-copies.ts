// BlockCopies: copies of tokens between slots and packed blocks of plain memory, made by threads of the addon. Each is
// awaited, or cancelled with all others at once, after which no thread touches a slot or a payload.

import type { NativeCache } from '../device/native.js';
import type { Probe } from '../importance/probes.js';

/** `done`: the bytes are there · `damaged`: the payload is not what was stored · `cancelled`: anything may be there. */
export type CopyEnd = 'done' | 'damaged' | 'cancelled';

/** Tokens [from, from + tokens) of a slot, and the block that they come from or go to. */
export interface BlockCopy {
  readonly isLoad: boolean;
  readonly slot: number;
  readonly from: number;
  readonly tokens: number;
  /** Tokens of the block before those, and in all. Of a store 0, and `tokens`. */
  readonly skipped: number;
  readonly blockTokens: number;
  readonly payload: Uint8Array;
  /** CRC-32C by stripe: written by a store; a load compares those of the tensors. */
  readonly sums: Uint32Array;
  /** Behind what the gate was made to wait for. */
  readonly isOrdered: boolean;
}

/** Memory of this process that copies between the device and tiers go through. */
export interface CopyStaging {
  /** Bytes that are registered with the device, which copies by itself. */
  readonly pinnedBytes: number;
  /**
   * Bytes of which the driver refused that: copies go through them all the same, slower, each waiting for the one
   * before.
   */
  readonly pageableBytes: number;
}

interface Pending {
  /** Kept while threads use their memory. */
  readonly copy: BlockCopy;
  readonly resolve: (end: CopyEnd) => void;
  readonly reject: (error: unknown) => void;
}

/** Threads that copy: one fills the bandwidth of most memories, the second what a core cannot. */
const threads = 2;

export class BlockCopies {
  /** Stripes of a block: one for each tensor and each probe. */
  readonly stripes: number;
  readonly #native: NativeCache;
  readonly #probes: Float64Array;
  readonly #pending = new Map<number, Pending>();
  #isOpen = false;
  #gate: bigint | undefined;
  #lastId = 0;

  /** @param probes Stripes of a block behind those of the tensors. */
  constructor(native: NativeCache, tensors: number, probes: readonly Probe[]) {
    this.stripes = tensors + probes.length;
    this.#native = native;
    this.#probes = Float64Array.from(probes.flatMap(({ tensor, tokenBytes }) => [tensor, tokenBytes]));
  }

  /**
   * Rejects with what the driver refuses. The slot's tokens must have memory that nothing takes away, until it settles.
   */
  copy(copy: BlockCopy): Promise<CopyEnd> {
    this.#open();
    this.#lastId += 1;
    const id = this.#lastId;
    const { isLoad, slot, from, tokens, skipped, blockTokens, payload, sums, isOrdered } = copy;
    this.#native.copyBlock(id, isLoad, slot, from, tokens, skipped, blockTokens, payload, sums, isOrdered);
    return new Promise((resolve, reject) => {
      this.#pending.set(id, { copy, resolve, reject });
    });
  }

  /** Undefined: nothing was copied yet, or the CPU reaches the device's memory and copies by itself. */
  get staging(): CopyStaging | undefined {
    const bytes = this.#isOpen ? this.#native.copierStaging() : undefined;
    return bytes === undefined ? undefined : { pinnedBytes: bytes[0], pageableBytes: bytes[1] };
  }

  /** A stream: what it is made to wait for comes before copies that are begun later. Throws what the driver refuses. */
  get gate(): bigint {
    this.#open();
    this.#gate ??= this.#native.copierGate();
    return this.#gate;
  }

  /** No thread copies any more when it returns. */
  cancel(): void {
    if (this.#pending.size === 0) return;
    this.#native.cancelCopies();
    const pending = [...this.#pending.values()];
    this.#pending.clear();
    for (const { resolve } of pending) resolve('cancelled');
  }

  #open(): void {
    if (this.#isOpen) return;
    const pending = this.#pending; // and nothing else: the addon keeps this function as long as its threads run
    this.#native.openCopier(threads, (id, damagedTensor, error) => {
      const ended = pending.get(id);
      pending.delete(id);
      if (error !== undefined) ended?.reject(error);
      else ended?.resolve(damagedTensor < 0 ? 'done' : 'damaged');
    }, this.#probes);
    this.#isOpen = true;
  }
}
