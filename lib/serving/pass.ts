// Pass: the arrays of one forward pass, filled anew every step and reused; they only grow. Remembers whose pass it is, so
// that the scheduler can go through them when the engine has answered. Checks nothing.

import type { Sequence } from '../cache/sequence.js';
import type { EnginePass } from './engine.js';
import type { Generation } from './generation.js';

export class Pass implements EnginePass {
  readonly slots: Int32Array;
  readonly positions: Int32Array;
  readonly tokenCounts: Int32Array;
  readonly starts: Int32Array;
  readonly wantsLogits: Uint8Array;
  readonly sequences: Sequence[] = [];
  readonly texts: Int32Array[] = [];
  readonly generations: Generation[] = [];
  /** [sequence]: the token behind its last, where `wantsLogits` is 1 and there is no error. */
  readonly nextTokens: Int32Array;
  /** [sequence]: why no next token could be chosen. */
  readonly errors: (Error | undefined)[] = [];
  /** [sequence]: the logits behind its prompt, where they are worth keeping. */
  readonly keptLogits: (Float32Array | undefined)[] = [];
  /** Whether the engine has begun it and not answered: the device may write to its slots. */
  isRunning = false;
  /** Resolves when it runs no more; undefined: it was not begun. */
  over: Promise<void> | undefined;
  #tokens: Int32Array;
  #tokenCount = 0;

  /** For at most `capacity` sequences. */
  constructor(capacity: number) {
    this.slots = new Int32Array(capacity);
    this.positions = new Int32Array(capacity);
    this.tokenCounts = new Int32Array(capacity);
    this.starts = new Int32Array(capacity);
    this.wantsLogits = new Uint8Array(capacity);
    this.nextTokens = new Int32Array(capacity);
    this.#tokens = new Int32Array(Math.max(capacity, 256));
  }

  get length(): number {
    return this.generations.length;
  }

  get tokens(): Int32Array {
    return this.#tokens;
  }

  /** Whether nobody waits for its answer any more. */
  get isUnwanted(): boolean {
    return this.generations.every(({ hasEnded }) => hasEnded);
  }

  clear(): void {
    this.sequences.length = 0;
    this.texts.length = 0;
    this.generations.length = 0;
    this.errors.length = 0;
    this.keptLogits.length = 0;
    this.over = undefined;
    this.#tokenCount = 0;
  }

  /** Adds the next `passTokens` tokens of a generation. */
  add(generation: Generation): void {
    const { length: at } = this;
    const { sequence, text, length, passTokens, remainingTokens } = generation;
    this.slots[at] = sequence!.slot;
    this.positions[at] = length;
    this.tokenCounts[at] = passTokens;
    this.starts[at] = this.#tokenCount;
    this.wantsLogits[at] = passTokens === remainingTokens ? 1 : 0;
    this.sequences.push(sequence!);
    this.texts.push(text);
    this.generations.push(generation);
    this.errors.push(undefined);
    this.keptLogits.push(undefined);
    this.#reserve(this.#tokenCount + passTokens);
    for (let index = 0; index < passTokens; index += 1) this.#tokens[this.#tokenCount + index] = text[length + index]!;
    this.#tokenCount += passTokens;
  }

  #reserve(tokens: number): void {
    if (tokens <= this.#tokens.length) return;
    const larger = new Int32Array(Math.max(tokens, 2 * this.#tokens.length));
    larger.set(this.#tokens);
    this.#tokens = larger;
  }
}
