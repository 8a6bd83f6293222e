// StreamFence: which slots have work queued on one stream. A slot is noted with the number of the stream's present
// epoch; an event recorded later ends the epoch and covers all that was queued until then, so that one event serves
// every slot noted in it and noting costs a write to a typed array. Records, asks and destroys events; decides nothing.

import { isKvError } from '../base/errors.js';
import type { NativeDriver } from '../device/native.js';

/** Events under way at once, unless something must know. */
const mostEvents = 8;

interface Recorded {
  readonly epoch: number;
  readonly event: bigint;
}

export class StreamFence {
  /** A CUstream; a fence without work may be given another. */
  stream: bigint;
  readonly #driver: () => NativeDriver;
  /** By slot: the epoch in which it was noted last; 0: never. */
  readonly #notedIn: Float64Array;
  /** In order of recording; those that are done are destroyed. */
  readonly #events: Recorded[] = [];
  #epoch = 1;
  #lastNoted = 0;
  #passed = 0;

  constructor(driver: () => NativeDriver, slots: number, stream: bigint) {
    this.#driver = driver;
    this.#notedIn = new Float64Array(slots);
    this.stream = stream;
  }

  /** Whether no slot has work here, as far as was heard. */
  get isIdle(): boolean {
    return this.#lastNoted <= this.#passed && this.#events.length === 0;
  }

  /** The slot has work queued here. */
  note(slot: number): void {
    this.#notedIn[slot] = this.#epoch;
    this.#lastNoted = this.#epoch;
  }

  /** Whether the slot's work here is not known to be over. */
  isPending(slot: number): boolean {
    return this.#notedIn[slot]! > this.#passed;
  }

  /** Ends the epoch with an event. Throws what the driver throws; then nothing has changed. */
  record(): void {
    const event = this.#driver().recordEvent(this.stream);
    this.#events.push({ epoch: this.#epoch, event });
    this.#epoch += 1;
  }

  /** The slot's work is that which the last event covers. */
  noteRecorded(slot: number): void {
    this.#notedIn[slot] = this.#epoch - 1;
    this.#lastNoted = Math.max(this.#lastNoted, this.#epoch - 1);
  }

  /** An event after the slot's work, which is pending. Throws what recording it throws. */
  eventOf(slot: number): bigint {
    if (this.#notedIn[slot] === this.#epoch) this.record();
    return this.#events.find(({ epoch }) => epoch >= this.#notedIn[slot]!)!.event;
  }

  /**
   * Hears what is over. True when something is that was not. Throws what the driver throws; asking again goes on from
   * there.
   */
  poll(): boolean {
    const before = this.#passed;
    this.#hear();
    if (this.#lastNoted === this.#epoch && this.#events.length < mostEvents) {
      this.record();
      this.#hear();
    }
    return this.#passed > before;
  }

  /** Waits until the slot's work here is over. */
  wait(slot: number): void {
    this.#driver().synchronizeEvent(this.eventOf(slot));
    this.#hear();
  }

  /** Waits for everything, and forgets it. Nothing runs on a lost device. Retryable. */
  finish(): void {
    try {
      if (this.#lastNoted === this.#epoch) this.record();
      for (let recorded = this.#events[0]; recorded !== undefined; recorded = this.#events[0]) {
        // The engine may have destroyed a stream whose work is done: its events can still be asked.
        if (!this.#driver().queryEvent(recorded.event)) this.#driver().synchronizeEvent(recorded.event);
        this.#forget(recorded);
      }
    } catch (error) {
      if (!isKvError(error, 'KV_DRIVER_LOST')) throw error;
    }
  }

  #hear(): void {
    for (let recorded = this.#events[0]; recorded !== undefined; recorded = this.#events[0]) {
      if (!this.#driver().queryEvent(recorded.event)) return;
      this.#forget(recorded);
    }
  }

  #forget({ epoch, event }: Recorded): void {
    this.#driver().destroyEvent(event);
    this.#events.shift();
    this.#passed = epoch;
  }
}
