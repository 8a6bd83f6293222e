// SequenceTexts: what the sequences say, slot by slot: the tokens known so far, whether computed yet or not, and the place in
// the prefix index of those that are. Only slots whose request gave its tokens have one. Commits are collected: the index
// hears of them when somebody next looks, so a decode step costs it nothing.

import type { PrefixPath } from '../prefix/prefix-path.js';

export interface SequenceText {
  readonly path: PrefixPath;
  /** The first `tokens` entries count. */
  buffer: Int32Array;
  tokens: number;
}

export class SequenceTexts {
  readonly #bySlot: (SequenceText | undefined)[];
  /** Slots that have committed tokens which the index has not heard of. */
  readonly #waiting: Int32Array;
  readonly #isWaiting: Uint8Array;
  #waitingCount = 0;

  constructor(slots: number) {
    this.#bySlot = new Array<SequenceText | undefined>(slots).fill(undefined);
    this.#waiting = new Int32Array(slots);
    this.#isWaiting = new Uint8Array(slots);
  }

  of(slot: number): SequenceText | undefined {
    return this.#bySlot[slot];
  }

  open(slot: number, text: SequenceText): void {
    this.#bySlot[slot] = text;
  }

  close(slot: number): void {
    this.#bySlot[slot] = undefined;
  }

  /**
   * Adds tokens behind those known. When `length` says that more than those have been computed already, the text has a gap
   * and can no longer be told apart from others: it stays as it is. The tokens were checked.
   */
  append(text: SequenceText, tokens: number | Int32Array, length: number): void {
    const count = typeof tokens === 'number' ? 1 : tokens.length;
    if (text.tokens < length) return;
    if (text.tokens + count > text.buffer.length) {
      const buffer = new Int32Array(Math.max(64, text.tokens + count, 2 * text.buffer.length));
      buffer.set(text.buffer);
      text.buffer = buffer;
    }
    if (typeof tokens === 'number') text.buffer[text.tokens] = tokens;
    else text.buffer.set(tokens, text.tokens);
    text.tokens += count;
  }

  /** The slot has computed tokens. */
  hasCommitted(slot: number): void {
    if (this.#isWaiting[slot] === 1 || this.#bySlot[slot] === undefined) return;
    this.#isWaiting[slot] = 1;
    this.#waiting[this.#waitingCount] = slot;
    this.#waitingCount += 1;
  }

  /** Calls `tell` for every slot with news and forgets that it had any. */
  forWaiting(tell: (slot: number, text: SequenceText) => void): void {
    while (this.#waitingCount > 0) {
      this.#waitingCount -= 1;
      const slot = this.#waiting[this.#waitingCount]!;
      this.#isWaiting[slot] = 0;
      const text = this.#bySlot[slot];
      if (text !== undefined) tell(slot, text);
    }
  }
}
