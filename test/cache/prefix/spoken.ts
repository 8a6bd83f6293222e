// Spoken: sequences that say something. Every token's bytes are made from all the text up to it, as an engine's K and V are, so
// that reading a sequence back proves that each of its rows belongs to its own text, whichever sequence computed it.

import type { AcquireOptions, Batch, KvCache, Sequence } from 'virtual-kv';

import { mix32 } from '#internal/base/random.js';

/** The key of each token: a hash of the text up to it. */
export function keysOf(tokens: ArrayLike<number>, domain = ''): number[] {
  const keys: number[] = [];
  let key = [...domain].reduce((hash, character) => mix32(hash, character.charCodeAt(0)), 7);
  for (let index = 0; index < tokens.length; index += 1) keys.push(key = mix32(key, tokens[index]! + 1));
  return keys;
}

/** `count` tokens that nobody else says. */
export function tokensOf(name: number, count: number): number[] {
  return Array.from({ length: count }, (_, index) => mix32(name, index) >>> 1);
}

export class Speaker {
  readonly cache: KvCache;
  readonly #batch: Batch;

  constructor(cache: KvCache) {
    this.cache = cache;
    this.#batch = cache.createBatch();
  }

  /** A sequence whose prompt is computed as far as it was not cached. */
  say(tokens: readonly number[], options: AcquireOptions = {}): Sequence {
    const sequence = this.cache.acquire({ tokens, ...options });
    try {
      if (sequence.length < tokens.length) this.compute(sequence, tokens, tokens.length - sequence.length, domainOf(options));
      return sequence;
    } catch (error) {
      sequence.release();
      throw error;
    }
  }

  /** Lets the sequence compute its next tokens, of a text of which it knows them. */
  compute(sequence: Sequence, text: ArrayLike<number>, tokens: number, domain = ''): void {
    const from = sequence.length;
    this.#batch.clear();
    this.#batch.add(sequence, tokens);
    this.cache.prepare(this.#batch);
    const keys = keysOf(text, domain);
    try {
      for (let index = from; index < from + tokens; index += 1) this.cache.stamp(sequence, index, 1, keys[index]!);
    } catch (error) {
      this.cache.discard(this.#batch);
      throw error;
    }
    this.cache.commit(this.#batch);
  }

  /** The sequence goes on with tokens that were not in its prompt. */
  goOn(sequence: Sequence, text: readonly number[], tokens: readonly number[], domain = ''): number[] {
    const whole = [...text, ...tokens];
    sequence.append(tokens);
    this.compute(sequence, whole, tokens.length, domain);
    return whole;
  }

  /** Tokens of the sequence whose bytes are not those of its text. */
  wrongTokens(sequence: Sequence, text: ArrayLike<number>, domain = ''): number {
    const keys = keysOf(text, domain);
    let wrong = 0;
    for (let index = 0; index < sequence.length; index += 1) wrong += this.cache.verifyStamp(sequence, index, 1, keys[index]!);
    return wrong;
  }
}

/** What keeps texts apart, as part of the bytes. */
export function domainOf({ tenant, salt, adapter }: AcquireOptions): string {
  return tenant === undefined && salt === undefined && adapter === undefined ? '' : JSON.stringify([tenant ?? '', salt, adapter]);
}
