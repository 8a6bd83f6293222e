// PatternEngine: an engine whose answers are known in advance. The next token follows from a hash of all tokens before it; K
// and V of a token are a pattern made of the hash up to it, written into every tensor and compared, all of the context,
// whenever logits are wanted. So any wrong, stale or missing row shows, also where the cache brought it. Runs on every
// driver.

import { setImmediate } from 'node:timers/promises';

import type { Engine, EngineOutput, EnginePass, KvCache } from 'virtual-kv';

import { mix32 } from '#internal/base/random.js';

export const vocabularyTokens = 61;
const start = 0x5eed;

export interface PatternEngineOptions {
  readonly cache: KvCache;
  /** Before each answer; a rejection is the engine's failure. Default: it answers at once. */
  readonly pause?: (() => Promise<unknown>) | undefined;
  /** Whether it chooses the tokens itself. */
  readonly samples?: boolean;
}

export class PatternEngine implements Engine {
  readonly vocabularyTokens = vocabularyTokens;
  /** Tokens with a wrong K or V. */
  wrongTokens = 0;
  /** Tokens that it has computed. */
  computedTokens = 0;
  passes = 0;
  /** Most sequences and tokens in a pass. */
  largestPass = 0;
  largestPrefill = 0;
  readonly #cache: KvCache;
  readonly #pause: (() => Promise<unknown>) | undefined;
  readonly #samples: boolean;
  #logits = new Float32Array(0);

  constructor({ cache, pause, samples = false }: PatternEngineOptions) {
    this.#cache = cache;
    this.#pause = pause;
    this.#samples = samples;
  }

  prefill(pass: EnginePass): EngineOutput | Promise<EngineOutput> {
    const tokens = pass.tokenCounts.subarray(0, pass.length).reduce((sum, count) => sum + count);
    this.largestPrefill = Math.max(this.largestPrefill, tokens);
    return this.#answer(pass);
  }

  decode(pass: EnginePass): EngineOutput | Promise<EngineOutput> {
    for (let at = 0; at < pass.length; at += 1) if (pass.tokenCounts[at] !== 1) throw new Error('decode is one token each');
    return this.#answer(pass);
  }

  #answer(pass: EnginePass): EngineOutput | Promise<EngineOutput> {
    return this.#pause === undefined ? this.#compute(pass) : this.#pause().then(() => this.#compute(pass));
  }

  #compute(pass: EnginePass): EngineOutput {
    this.passes += 1;
    this.largestPass = Math.max(this.largestPass, pass.length);
    const { length } = pass;
    if (this.#logits.length < length * vocabularyTokens) this.#logits = new Float32Array(length * vocabularyTokens);
    const rows = Array.from({ length }, (_, index) => {
      const row = this.#logits.subarray(index * vocabularyTokens, (index + 1) * vocabularyTokens);
      return logitsOf(this.#computeOne(pass, index), row);
    });
    return this.#samples ? { tokens: Int32Array.from(rows, (row) => argmax(row)) } : { logits: this.#logits };
  }

  /** Writes the new tokens' pattern, and verifies the context's; returns the hash up to the last. */
  #computeOne(pass: EnginePass, index: number): number {
    const sequence = pass.sequences[index]!;
    const text = pass.contextTokens[index]!;
    const position = pass.positions[index]!;
    const end = position + pass.tokenCounts[index]!;
    const isVerified = pass.wantsLogits[index] === 1;
    if (sequence.slot !== pass.slots[index] || sequence.length !== position) this.wrongTokens += 1;
    let hash = start;
    for (let at = 0; at < end; at += 1) {
      const token = text[at]!;
      hash = mix32(hash, token + 1);
      if (at >= position) {
        if (pass.tokens[pass.starts[index]! + at - position] !== token) this.wrongTokens += 1;
        this.#cache.stamp(sequence, at, 1, hash);
      } else if (isVerified) this.wrongTokens += this.#cache.verifyStamp(sequence, at, 1, hash);
    }
    this.computedTokens += end - position;
    return hash;
  }
}

/** What the engine must answer to a prompt, computed without any cache. */
export function expectedTokens(prompt: ArrayLike<number>, count: number, choose = argmax): number[] {
  let hash = hashOf(prompt, prompt.length - 1);
  const logits = new Float32Array(vocabularyTokens);
  return Array.from({ length: count }, (_, index) => {
    const token = choose(logitsOf(hash, logits), index);
    hash = mix32(hash, token + 1);
    return token;
  });
}

/** The logits with which it answers to a text. */
export const logitsBehind = (text: ArrayLike<number>): Float32Array => logitsOf(hashOf(text, text.length - 1), new Float32Array(vocabularyTokens));

/** Of all tokens up to and with the one at `last`: the key of its K and V. */
export function hashOf(text: ArrayLike<number>, last: number): number {
  let hash = start;
  for (let at = 0; at <= last; at += 1) hash = mix32(hash, text[at]! + 1);
  return hash;
}

/** A pause that lets the event loop turn. */
export const turn = (): Promise<unknown> => setImmediate();

function logitsOf(hash: number, logits: Float32Array): Float32Array {
  for (let token = 0; token < vocabularyTokens; token += 1) logits[token] = 8 * mix32(hash, token) / 2 ** 32;
  return logits;
}

function argmax(logits: Float32Array, _index = 0): number {
  return logits.indexOf(Math.max(...logits));
}
