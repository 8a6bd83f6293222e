// SideCopies: copies of rows from the device into side tensors, from the call that queues them until they are over.
// They run on a stream of their own, in order, behind the stream that computes the rows, which goes on behind them: its
// work may write the rows again. What has arrived counts; until then the pages that are written belong to a slot in
// use.
//
// It refers to no cache: a cache that was never closed leaves its copies to it. Places are [tensor, side slot, slot,
// end] × count.

import { isKvError } from '../base/errors.js';
import { enlarged } from '../base/typed-arrays.js';
import type { Driver } from '../device/driver.js';
import { packagedPtx } from '../device/kernel-files.js';
import { native as addon, type NativeArena } from '../device/native.js';

interface Copy {
  /** Recorded behind it; undefined: not yet. */
  event: bigint | undefined;
  /** An end of -1: what was copied does not count. */
  places: Int32Array;
  count: number;
}

const placeSize = 4;

export class SideCopies {
  readonly #driver: Driver;
  /** Where tensors in the CPU's memory are, if there are any. */
  readonly #host: Driver | undefined;
  /** By tensor, then side slot: tokens from the first on that have arrived. */
  readonly #arrived: Int32Array[] = [];
  /** By side slot: copies under way. */
  readonly #underWay: Int32Array;
  readonly #copies: Copy[] = [];
  readonly #spare: Copy[] = [];
  /** Events that the driver refused to destroy. */
  readonly #dead: bigint[] = [];
  /** Slots of the cache of which something has arrived since it was asked. */
  readonly #arrivedSlots = new Set<number>();
  #stream: bigint | undefined;
  #arena: NativeArena | undefined;

  /** @param sideSlots How many there are. */
  constructor(driver: Driver, host: Driver | undefined, sideSlots: number) {
    this.#driver = driver;
    this.#host = host;
    this.#underWay = new Int32Array(sideSlots);
  }

  /** A tensor whose arrived tokens it writes; its number in places. */
  follow(arrived: Int32Array): number {
    return this.#arrived.push(arrived) - 1;
  }

  /** Whether none is under way. */
  get isIdle(): boolean {
    return this.#copies.length === 0;
  }

  /** Whether one may still write to the side slot. */
  isCopying(side: number): boolean {
    return this.#underWay[side]! > 0;
  }

  /** Where the device writes to pages in the CPU's memory; undefined: no device does. Throws what the driver throws. */
  get arena(): NativeArena | undefined {
    if (this.#host === undefined || !this.#driver.info.hasStreams) return undefined;
    return (this.#arena ??= new (addon().NativeArena)(this.#driver.native, this.#host.native, packagedPtx('scatter')));
  }

  /** Bytes registered with the device now; bytes that it copied to pages that it would not register. */
  counts(): { readonly registeredBytes: number; readonly pageableBytes: number } {
    return this.#arena?.counts() ?? { registeredBytes: 0, pageableBytes: 0 };
  }

  /** Slots of the cache of which something has arrived since the last call. */
  takeArrivedSlots(): readonly number[] {
    if (this.#arrivedSlots.size === 0) return [];
    const slots = [...this.#arrivedSlots];
    this.#arrivedSlots.clear();
    return slots;
  }

  /**
   * Lets `queue` queue copies to `places` behind all that `stream` holds; what is queued on `stream` later runs behind
   * them. Throws what the driver throws; then nothing of it counts, and what may be under way all the same keeps its
   * slots as any other copy.
   */
  run(
    stream: bigint, { places, count }: { readonly places: Int32Array; readonly count: number },
    queue: (own: bigint) => void,
  ): void {
    const { native } = this.#driver;
    const own = (this.#stream ??= this.#driver.acquireStream());
    const before = native.recordEvent(stream);
    try {
      native.waitEvent(own, before);
    } finally {
      this.#destroy(before);
    }
    const copy = this.#open(places, count);
    try {
      queue(own);
      copy.event = native.recordEvent(own);
      native.waitEvent(stream, copy.event);
    } catch (error) {
      for (let at = 0; at < copy.count; at += 1) copy.places[placeSize * at + 3] = -1;
      this.#waitAfterFailure(own, copy);
      throw error;
    }
  }

  /** Hears what has arrived. Throws what the driver throws; asking again goes on from there. */
  poll(): void {
    this.#unlessLost(() => {
      for (let copy = this.#copies[0]; copy !== undefined; copy = this.#copies[0]) {
        if (!this.#driver.native.queryEvent(this.#eventOf(copy))) return;
        this.#end(copy);
      }
    });
  }

  /**
   * Waits until no copy writes to the side slot. Throws what the driver throws; on a lost device nothing arrives any
   * more.
   */
  wait(side: number): void {
    if (!this.isCopying(side)) return;
    const last = this.#copies.findLast((copy) => hasPlace(copy, side))!;
    this.#driver.native.synchronizeEvent(this.#eventOf(last));
    this.poll();
  }

  /**
   * Waits until the first `tokens` tokens of a tensor, which are written, have arrived in the side slot. Throws what
   * the driver throws.
   */
  waitFor(tensor: number, side: number, tokens: number): void {
    if (this.#arrived[tensor]![side]! >= tokens) return;
    this.poll();
    if (this.#arrived[tensor]![side]! >= tokens) return;
    this.wait(side);
    if (this.#arrived[tensor]![side]! < tokens) this.#driver.checkAlive();
  }

  /** Of the side slot only the first `tokens` tokens of the tensor count, also where more is on its way. */
  cut(tensor: number, side: number, tokens: number): void {
    const arrived = this.#arrived[tensor]!;
    arrived[side] = Math.min(arrived[side]!, tokens);
    if (!this.isCopying(side)) return;
    for (const { places, count } of this.#copies) {
      for (let at = 0; at < placeSize * count; at += placeSize) {
        if (places[at] === tensor && places[at + 1] === side) places[at + 3] = Math.min(places[at + 3]!, tokens);
      }
    }
  }

  /** Waits for all, and gives back what they used. Idempotent; after a failure of the driver call it again. */
  close(): void {
    if (this.#stream !== undefined) {
      const last = this.#copies.at(-1);
      this.#unlessLost(() => {
        if (last !== undefined) this.#driver.native.synchronizeEvent(this.#eventOf(last));
      });
      this.poll();
      this.#unlessLost(() => {
        for (let event = this.#dead.at(-1); event !== undefined; event = this.#dead.at(-1)) {
          this.#driver.native.destroyEvent(event);
          this.#dead.pop();
        }
      });
    }
    this.#arena?.close();
    this.#arena = undefined;
    if (this.#stream !== undefined) this.#driver.releaseStream(this.#stream);
    this.#stream = undefined;
  }

  #open(places: Int32Array, count: number): Copy {
    const copy = this.#spare.pop() ?? { event: undefined, places: new Int32Array(0), count: 0 };
    if (copy.places.length < placeSize * count) copy.places = enlarged(copy.places, 2 * placeSize * count);
    copy.places.set(places.subarray(0, placeSize * count));
    copy.count = count;
    for (let at = 0; at < count; at += 1) this.#underWay[places[placeSize * at + 1]!]! += 1;
    this.#copies.push(copy);
    return copy;
  }

  /** What was queued before a failure is waited for; where that fails too, it is heard of later. */
  #waitAfterFailure(own: bigint, copy: Copy): void {
    try {
      this.#driver.native.synchronizeStream(own);
    } catch (error) {
      if (isKvError(error, 'KV_DRIVER_LOST')) this.#abandon();
      return;
    }
    this.#copies.pop();
    this.#forget(copy);
  }

  /** Recorded now, where that has failed before. */
  #eventOf(copy: Copy): bigint {
    return (copy.event ??= this.#driver.native.recordEvent(this.#stream!));
  }

  /** The oldest copy is over. */
  #end(copy: Copy): void {
    this.#copies.shift();
    for (let at = 0; at < placeSize * copy.count; at += placeSize) {
      const [tensor, side, slot, end] =
        copy.places.subarray(at, at + placeSize) as unknown as readonly [number, number, number, number];
      const arrived = this.#arrived[tensor]!;
      if (end <= arrived[side]!) continue;
      arrived[side] = end;
      this.#arrivedSlots.add(slot);
    }
    this.#forget(copy);
  }

  #forget(copy: Copy): void {
    for (let at = 0; at < copy.count; at += 1) this.#underWay[copy.places[placeSize * at + 1]!]! -= 1;
    if (copy.event !== undefined) this.#destroy(copy.event);
    copy.event = undefined;
    this.#spare.push(copy);
  }

  #destroy(event: bigint): void {
    try {
      this.#driver.native.destroyEvent(event);
    } catch {
      this.#dead.push(event);
    }
  }

  /** Nothing runs on a lost device: nothing of it arrives. */
  #abandon(): void {
    for (const copy of this.#copies.splice(0)) {
      copy.event = undefined;
      this.#forget(copy);
    }
    this.#dead.length = 0;
  }

  #unlessLost(work: () => void): void {
    try {
      work();
    } catch (error) {
      if (!isKvError(error, 'KV_DRIVER_LOST')) throw error;
      this.#abandon();
    }
  }
}

function hasPlace({ places, count }: Copy, side: number): boolean {
  for (let at = 0; at < count; at += 1) if (places[placeSize * at + 1] === side) return true;
  return false;
}
