// ContractScene: one engine over one cache for one check of the engine's contract. It runs passes on it as a scheduler
// does, fills memory with what an engine must not read, and reads what is there, on any driver. Closes what was made.

import assert = require('node:assert/strict');

import { Random } from '../base/random.js';
import type { Sequence } from '../cache/sequence.js';
import type { KvCache } from '../kv-cache/kv-cache.js';
import type { Engine, EngineOutput, EnginePass } from './engine.js';

/** An engine to be checked, over a cache of its own. */
export interface EngineContractPlace {
  /** At least 4 slots, 64 tokens each, and memory for them. Closed when the check is over. */
  readonly cache: KvCache;
  /** The engine over this cache. */
  readonly engine: Engine;
  /** Closes the engine, before the cache is closed. Default: nothing is to be closed. */
  readonly close?: (() => void | Promise<void>) | undefined;
}

/** New tokens of a sequence in a pass. */
export interface Entry {
  readonly text: ContractText;
  readonly tokens: number;
  /** Whether the answer is read. Default true. */
  readonly isRead?: boolean;
}

/** A sequence, and all of its text. */
export interface ContractText {
  readonly sequence: Sequence;
  readonly tokens: Int32Array;
}

export interface PassOptions {
  readonly asPrompt?: boolean;
  readonly fresh?: number;
  readonly behind?: number;
}

/** What an engine answers for a sequence: logits, or the token that it chose. */
export type Answer = Float32Array | number;

/** Filled into memory that is not to be read: not a number in any type of floats, and zero. */
export const poisons = { notNumbers: 0xff, zeros: 0 } as const;

/** Tokens of a slot that are filled at most: a row can be large. */
const farthest = 128;

export class ContractScene {
  readonly cache: KvCache;
  readonly #engine: Engine;
  readonly #close: () => void | Promise<void>;
  readonly #tolerance: number;
  readonly #mapped = new WeakMap<Sequence, number>();

  constructor({ cache, engine, close = () => {} }: EngineContractPlace, tolerance: number) {
    this.cache = cache;
    this.#engine = engine;
    this.#close = close;
    this.#tolerance = tolerance;
  }

  /** Tokens of a text that is the same for the same seed. */
  tokens(seed: number, count: number): Int32Array {
    const random = new Random(seed);
    return Int32Array.from({ length: count }, () => random.integer(this.#engine.vocabularyTokens));
  }

  /** A new sequence of the text, which shares nothing. */
  begin(tokens: Int32Array): ContractText {
    return { sequence: this.cache.acquire({ promptTokens: tokens.length }), tokens };
  }

  /**
   * One pass, as a scheduler runs it: `decode` where each sequence has one new token and `asPrompt` is not asked for.
   * Before it, the memory of the new tokens is filled with `fresh`, and what is mapped behind them with `behind`.
   * Answers of the entries that are read, and undefined for the others.
   */
  async pass(
    entries: readonly Entry[],
    { asPrompt = false, fresh = poisons.zeros, behind = poisons.zeros }: PassOptions = {},
  ): Promise<(Answer | undefined)[]> {
    const { cache } = this;
    const batch = cache.createBatch();
    for (const { text: { sequence }, tokens } of entries) batch.add(sequence, tokens);
    cache.prepare(batch);
    for (const { text: { sequence }, tokens } of entries) {
      this.fill(sequence, sequence.length, sequence.length + tokens, fresh);
      const end = Math.min(cache.layout.tokensIn(sequence.mappedRows), farthest);
      this.#mapped.set(sequence, end);
      this.fill(sequence, sequence.length + tokens, end, behind);
    }
    const pass = passOf(entries);
    let answers: (Answer | undefined)[];
    try {
      const isDecoding = !asPrompt && entries.every(({ tokens }) => tokens === 1);
      answers = this.#answers(entries, await (isDecoding ? this.#engine.decode(pass) : this.#engine.prefill(pass)));
    } catch (error) {
      cache.discard(batch, { fence: 'awaited' });
      throw error;
    }
    cache.commit(batch, { fence: 'awaited' });
    return answers;
  }

  /** Computes a text from its sequence's end on, in chunks of these sizes and then the rest: the answer at its end. */
  async compute(text: ContractText, chunks: readonly number[] = []): Promise<Answer> {
    const left = (): number => text.tokens.length - text.sequence.length;
    for (const tokens of chunks) await this.pass([{ text, tokens, isRead: false }], { asPrompt: true });
    const [answer] = await this.pass([{ text, tokens: left() }], { asPrompt: true });
    return answer!;
  }

  /** Tokens of the sequence's slot that were mapped in its last pass, as far as they were filled. */
  mappedTokens(sequence: Sequence): number {
    return this.#mapped.get(sequence)!;
  }

  /** Fills tokens [from, to) of every tensor. */
  fill(sequence: Sequence, from: number, to: number, byte: number): void {
    this.#forHeads(sequence, from, to, (address, bytes) => { this.#native.write(address, bytes.fill(byte)); });
  }

  /** The bytes of tokens [from, to), for each head of each tensor by name. */
  read(sequence: Sequence, from: number, to: number): Map<string, Buffer> {
    const read = new Map<string, Buffer>();
    this.#forHeads(sequence, from, to, (address, bytes, name) => {
      this.#native.read(bytes, address);
      read.set(name, Buffer.from(bytes));
    });
    return read;
  }

  /** Fails unless both answers are the same within the tolerance. */
  same(answer: Answer, expected: Answer, what: string): void {
    if (typeof answer === 'number' || typeof expected === 'number') {
      assert.equal(answer, expected, `${what}: another token`);
      return;
    }
    const largest = expected.reduce((most, value) => Math.max(most, Math.abs(value)), Number.MIN_VALUE);
    expected.forEach((value, token) => {
      const difference = Math.abs(value - answer[token]!);
      assert.ok(difference <= this.#tolerance * largest,
        `${what}: the logit of token ${token} is ${answer[token]} in the place of ${value}`);
    });
  }

  async close(): Promise<void> {
    await this.#close();
    this.cache.close();
  }

  get #native() {
    return this.cache.driver.native;
  }

  #answers(entries: readonly Entry[], output: EngineOutput): (Answer | undefined)[] {
    const { vocabularyTokens } = this.#engine;
    return entries.map(({ isRead = true }, index) => {
      if (!isRead) return undefined;
      if ('tokens' in output) {
        const token = output.tokens[index]!;
        assert.ok(Number.isInteger(token) && token >= 0 && token < vocabularyTokens, `token ${token} is none`);
        return token;
      }
      const logits = output.logits.slice(index * vocabularyTokens, (index + 1) * vocabularyTokens);
      assert.equal(logits.length, vocabularyTokens, `sequence ${index} of the pass has no row of ${vocabularyTokens} logits`);
      const wrong = logits.findIndex((logit) => !Number.isFinite(logit));
      assert.equal(wrong, -1, `the logit of token ${wrong} is ${logits[wrong]}`);
      return logits;
    });
  }

  #forHeads(
    sequence: Sequence, from: number, to: number, visit: (address: bigint, bytes: Uint8Array, name: string) => void,
  ): void {
    for (const { index, name, heads, dim, strides } of this.cache.tensors) {
      const start = sequence.address(index);
      for (let token = from; token < to; token += 1) {
        for (let head = 0; head < heads; head += 1) {
          const offset = token * strides.tokenBytes + head * strides.headBytes;
          visit(start + BigInt(offset), new Uint8Array(dim * strides.elementBytes),
            `head ${head} of token ${token} in ${name}`);
        }
      }
    }
  }
}

/** The arrays of a pass, as a scheduler makes them. */
function passOf(entries: readonly Entry[]): EnginePass {
  const ints = (of: (entry: Entry, index: number) => number): Int32Array => Int32Array.from(entries, of);
  const ends = entries.map(
    ({ tokens }, index) => entries.slice(0, index).reduce((sum, each) => sum + each.tokens, tokens));
  const isRead = entries.map((entry) => entry.isRead ?? true);
  return {
    length: entries.length,
    slots: ints(({ text }) => text.sequence.slot),
    positions: ints(({ text }) => text.sequence.length),
    tokenCounts: ints(({ tokens }) => tokens),
    starts: ints(({ tokens }, index) => ends[index]! - tokens),
    tokens: Int32Array.from(entries.flatMap(({ text, tokens }) =>
      [...text.tokens.subarray(text.sequence.length, text.sequence.length + tokens)])),
    wantsLogits: Uint8Array.from(isRead, Number),
    sequences: entries.map(({ text }) => text.sequence),
    contextTokens: entries.map(({ text }) => text.tokens),
    inputs: entries.map(() => undefined),
    items: entries.map(() => []),
    adapters: entries.map(() => undefined),
    signal: new AbortController().signal,
  };
}
