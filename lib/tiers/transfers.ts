// Transfers: sequences of the cache's own, in slots that no user has, through which K and V of cached text are read and
// written by threads. They hold text as every sequence does: what they use is neither evicted nor unmapped, and what
// they write is cached when they have committed it. For want of pages all of them end at once.

import { isKvError } from '../base/errors.js';
import type { Prompt, SlotLeases } from '../cache/admission.js';
import { Batch } from '../cache/batch.js';
import type { RowRegistry } from '../cache/row-registry.js';
import { GivenFence } from '../cache/slot-fences.js';
import type { SlotMemory } from '../cache/slots.js';
import type { Steps } from '../cache/steps.js';
import type { NativeCache } from '../device/native.js';
import type { PrefixDomain } from '../prefix/domain.js';
import type { Probe } from './selection/probes.js';

/** Errors that say that there is no room now. */
const wantOfRoom = [
  'KV_NO_FREE_SLOT', 'KV_OUT_OF_PAGES', 'KV_OUT_OF_MAPPINGS', 'KV_OUT_OF_DEVICE_MEMORY', 'KV_SLOT_BUSY',
  'KV_WORK_QUEUED',
];

/**
 * A part of a block, and the slot's tokens that it is of: `from` on, `tokens` of them, behind `skipped` tokens of the
 * block.
 */
export interface BlockPart {
  readonly payload: Uint8Array;
  readonly sums: Uint32Array;
  readonly from: number;
  readonly tokens: number;
  readonly skipped: number;
  readonly blockTokens: number;
}

/** How many parts were loaded, and how the next one ended; `done`: all were. */
export interface Loaded {
  readonly parts: number;
  readonly end: CopyEnd | 'no-memory';
}

/** A load that has begun: of how many of its parts, and what it comes to. */
export interface Load {
  readonly parts: number;
  readonly loaded: Promise<Loaded>;
}

type CopyEnds = Promise<PromiseSettledResult<CopyEnd>[]>;

export class Transfers {
  readonly #memory: SlotMemory;
  readonly #leases: SlotLeases;
  readonly #steps: Steps;
  readonly #registry: RowRegistry;
  readonly #copies: BlockCopies;
  readonly #open = new Set<Transfer>();
  #isOver = false;
  /** Transfers that were ended for want of pages, so far. Read only. */
  interrupted = 0;

  constructor(memory: SlotMemory, leases: SlotLeases, steps: Steps, registry: RowRegistry, copies: BlockCopies) {
    this.#memory = memory;
    this.#leases = leases;
    this.#steps = steps;
    this.#registry = registry;
    this.#copies = copies;
  }

  get count(): number {
    return this.#open.size;
  }

  /** Memory that copies go through. */
  get staging(): BlockCopies['staging'] {
    return this.#copies.staging;
  }

  /** Hears what has happened to slots: which sequences are over, and which text is finished. */
  synchronize(): void {
    this.#leases.synchronize();
  }

  /**
   * A transfer of all that is cached of text[0, tokens); undefined where there is no room for one. `isWriting`: it will
   * write what comes behind that.
   */
  open(prompt: Omit<Prompt, 'canRead' | 'canWrite'>, tokens: number, isWriting: boolean): Transfer | undefined {
    const { domain, text, priority } = prompt;
    // One token more than there is: a request finds all but the last of its tokens.
    const extended = new Int32Array(tokens + 1);
    extended.set(text.subarray(0, Math.min(text.length, tokens + 1)));
    try {
      const { slot, cachedTokens } = this.#leases.acquire({
        promptTokens: tokens, isEarmarked: false, tenant: this.#memory.tenantNumber(domain.tenant), needs: 0,
        stream: undefined, isTransfer: true,
        prompt: { domain, text: extended, priority, canRead: true, canWrite: isWriting },
      });
      const transfer =
        new Transfer(slot, cachedTokens, new Batch(this.#memory.slots, this.#memory.layout.maxTokens, 1));
      this.#open.add(transfer);
      return transfer;
    } catch (error) {
      if (isWantOfRoom(error)) return undefined;
      throw error;
    }
  }

  /**
   * A transfer that only holds what is cached of a text; undefined where there is no slot for one, or the cache closes.
   */
  hold(prompt: Omit<Prompt, 'canRead' | 'canWrite'>): Transfer | undefined {
    if (this.#isOver) return undefined;
    try {
      return this.open(prompt, prompt.text.length, false);
    } catch (error) {
      this.#memory.background.report(error);
      return undefined;
    }
  }

  /** Reads tokens of the transfer's text; undefined: not now. Rejects with what the driver refuses. */
  async store(transfer: Transfer, payload: Uint8Array, from: number, tokens: number): Promise<Uint32Array | undefined> {
    if (transfer.isOver) return undefined;
    const sums = new Uint32Array(this.#copies.stripes);
    const isOrdered = this.#orderOrPostpone(transfer, 0);
    if (isOrdered === undefined) return undefined;
    const end = await this.#copies.copy({
      isLoad: false, slot: transfer.slot, from, tokens, skipped: 0, blockTokens: tokens, payload, sums, isOrdered,
    });
    return end === 'done' ? sums : undefined;
  }

  /**
   * Begins to write the tokens behind those of the loads before, from parts of blocks that follow each other: as many
   * parts as there is room for. Loads end in their order. Parts before the first that is not `done` are cached then,
   * and nothing else has changed; loads behind it end as `cancelled`. Throws, and a load rejects, with what the driver
   * refuses.
   */
  load(transfer: Transfer, parts: readonly BlockPart[]): Load {
    // a load before was lost
    if (transfer.isOver || transfer.isUndoing || parts[0]!.from !== this.#endOf(transfer)) return noLoad('cancelled');
    let begun = parts;
    if (!this.#extend(transfer, tokensOf(begun))) {
      begun = parts.slice(0, 1);
      if (parts.length === 1 || !this.#extend(transfer, tokensOf(begun))) return noLoad('no-memory');
    }
    const { slot, copying } = transfer;
    const isOrdered = this.#orderOrPostpone(transfer, tokensOf(begun));
    if (isOrdered === undefined) return noLoad('no-memory');
    const before = copying.at(-1)?.loaded;
    const ends =
      Promise.allSettled(begun.map(async (part) => this.#copies.copy({ isLoad: true, slot, isOrdered, ...part })));
    const load = { parts: begun.length, ends, loaded: this.#finish(transfer, begun, ends, before) };
    copying.push(load);
    return load;
  }

  async #finish(
    transfer: Transfer, parts: readonly BlockPart[], copied: CopyEnds, before: Promise<Loaded> | undefined,
  ): Promise<Loaded> {
    const { batch, copying } = transfer;
    try {
      const ends = await copied;
      const isBehindLoss = before !== undefined && await before.then(({ end }) => end !== 'done', () => true);
      const done = ends.findIndex((end) => end.status === 'rejected' || end.value !== 'done');
      if (done >= 0 && !isBehindLoss) {
        transfer.isUndoing = true;
        await Promise.all(copying.map((load) => load.ends)); // what comes behind is still written
        transfer.isUndoing = false;
      }
      if (isBehindLoss || transfer.isOver) return { parts: 0, end: 'cancelled' };
      if (done < 0) {
        this.#steps.commitFirst(batch, tokensOf(parts));
        return { parts: parts.length, end: 'done' };
      }
      if (done > 0) this.#steps.commitFirst(batch, tokensOf(parts.slice(0, done)));
      this.#steps.discard(batch, GivenFence.awaited);
      const failed = ends[done]!;
      if (failed.status === 'rejected') throw failed.reason;
      return { parts: done, end: failed.value };
    } finally {
      copying.shift();
    }
  }

  /** Tokens of the text up to where loads have been begun. */
  #endOf({ batch, slot }: Transfer): number {
    return this.#memory.slots.length[slot]! + (batch.isPrepared ? batch.tokens[0]! : 0);
  }

  /** Has the transfer's next tokens prepared, beside those that are being written; false: there is no room. */
  #extend({ batch, slot }: Transfer, tokens: number): boolean {
    try {
      if (batch.isPrepared) {
        this.#steps.extend(batch, tokens);
      } else {
        batch.clear();
        batch.addSlot(slot, tokens);
        this.#steps.prepare(batch);
      }
      return true;
    } catch (error) {
      if (isWantOfRoom(error)) return false;
      throw error;
    }
  }

  /** Ends it; its text stays cached. Idempotent. No copy of it may be under way. */
  close(transfer: Transfer): void {
    if (!this.#open.delete(transfer)) return;
    transfer.isOver = true;
    // The slot is not idle before.
    if (transfer.batch.isPrepared) this.#steps.discard(transfer.batch, GivenFence.awaited);
    this.#leases.release(transfer.slot);
  }

  /** Ends all transfers, where they are; returns whether there were any. */
  interrupt(): boolean {
    if (this.#open.size === 0) return false;
    this.#copies.cancel();
    for (const transfer of [...this.#open]) {
      this.#memory.background.attempt(() => {
        this.close(transfer);
      });
      this.interrupted += 1;
    }
    return true;
  }

  /** The cache closes: no slot is given back any more. */
  forgetAll(): void {
    this.#isOver = true;
    this.#copies.cancel();
    for (const transfer of this.#open) transfer.isOver = true;
    this.#open.clear();
  }

  /**
   * Has copies that are begun now come after the work that is queued for the slot, and for those that share rows with
   * it: text is found as soon as it is committed. False: there is none. Throws KV_WORK_QUEUED where a step of the
   * engine must come first.
   */
  #order({ slot }: Transfer): boolean {
    const ids = this.#registry.idsOf(slot);
    const rows = this.#registry.named[slot]!;
    let isOrdered = false;
    for (let other = 0; other < this.#memory.slots.count; other += 1) {
      if (!this.#memory.fences.isPending(other) || (other !== slot && !this.#registry.isSharing(other, ids, rows))) {
        continue;
      }
      this.#memory.fences.checkWritten(other, 'copy from');
      this.#memory.fences.order(this.#copies.gate, other);
      isOrdered = true;
    }
    return isOrdered;
  }

  /**
   * The same; undefined where it is not to be now. Throws what the driver refuses. Then the last `tokens` prepared
   * tokens are discarded.
   */
  #orderOrPostpone(transfer: Transfer, tokens: number): boolean | undefined {
    try {
      return this.#order(transfer);
    } catch (error) {
      if (tokens > 0 && transfer.batch.isPrepared) this.#steps.discardLast(transfer.batch, tokens);
      if (isWantOfRoom(error)) return undefined;
      throw error;
    }
  }
}

/** A sequence of the cache's own. */
export class Transfer {
  readonly slot: number;
  /** Tokens of its text that were cached when it was opened. */
  readonly cachedTokens: number;
  /** @internal */
  readonly batch: Batch;
  /** Loads under way, in their order. @internal */
  readonly copying: (Load & { readonly ends: CopyEnds })[] = [];
  /** Whether a load was lost, and those behind it are still being copied. @internal */
  isUndoing = false;
  /** Whether it was closed or interrupted. */
  isOver = false;

  constructor(slot: number, cachedTokens: number, batch: Batch) {
    this.slot = slot;
    this.cachedTokens = cachedTokens;
    this.batch = batch;
  }
}

function noLoad(end: Loaded['end']): Load {
  return { parts: 0, loaded: Promise.resolve({ parts: 0, end }) };
}

function tokensOf(parts: readonly BlockPart[]): number {
  return parts.reduce((sum, { tokens }) => sum + tokens, 0);
}

function isWantOfRoom(error: unknown): boolean {
  return wantOfRoom.some((code) => isKvError(error, code as 'KV_OUT_OF_PAGES'));
}

// HeldText: text that tiers brought for a request that has no slot yet: a transfer holds it, so that it is not evicted.
// For want of pages it ends as all transfers do; then the text is cached like any other.

export class HeldText {
  readonly #transfers: Transfers;
  readonly #domain: PrefixDomain;
  readonly #text: Int32Array;
  #transfer: Transfer | undefined;

  constructor(transfers: Transfers, domain: PrefixDomain, text: Int32Array) {
    this.#transfers = transfers;
    this.#domain = domain;
    this.#text = text;
    this.again();
  }

  /** Holds what the device has of it, where a slot is free. Idempotent. */
  again(): void {
    if (this.#transfer?.isOver === false) return;
    this.#transfer = this.#transfers.hold({ domain: this.#domain, text: this.#text, priority: 0 });
  }

  /** Lets go of it. Idempotent. */
  end(): void {
    if (this.#transfer !== undefined) this.#transfers.close(this.#transfer);
    this.#transfer = undefined;
  }
}

// BlockCopies: copies of tokens between slots and packed blocks of plain memory, made by threads of the addon. Each is
// awaited, or cancelled with all others at once, after which no thread touches a slot or a payload.

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
