// FakeCache: a cache of tokens instead of pages, for tests of batching and verification. It keeps a budget, remembers what
// was stamped where, records what it was asked, and can be told to fail. It can also share prefixes, rightly or wrongly.

import { createError } from '#internal/base/errors.js';
import type { ReplayBatch, ReplayCache, ReplayPrompt, ReplaySequence } from '#internal/replay/replay-cache.js';

const freeTokensLeft = (needTokens: number, haveTokens: number): Error => createError('KV_OUT_OF_PAGES', {
  needRows: needTokens, haveRows: haveTokens, needPages: needTokens, havePages: haveTokens, budgetBytes: 0, pageBytes: 1, slots: [], pagesPerRow: 1,
});

type FakePrompt = ReplayPrompt | { readonly promptTokens: number };

/** `right`: of the sequence that begins most alike. `wrong`: of the latest, whatever it says. */
export type Sharing = 'off' | 'right' | 'wrong';

export class FakeSequence implements ReplaySequence {
  readonly slot: number;
  readonly cachedTokens: number;
  readonly text: number[];
  length: number;
  reservedTokens: number;
  isReleased = false;
  readonly stamps = new Map<number, number>();
  readonly #cache: FakeCache;

  constructor(cache: FakeCache, slot: number, reservedTokens: number, cachedTokens: number, text: Iterable<number> = []) {
    this.#cache = cache;
    this.slot = slot;
    this.text = [...text];
    this.reservedTokens = reservedTokens;
    this.cachedTokens = cachedTokens;
    this.length = cachedTokens;
  }

  get cachedBy(): ReplaySequence['cachedBy'] {
    return { adoptedTokens: 0, aliasedTokens: this.cachedTokens, copiedTokens: 0 };
  }

  append(token: number): void {
    this.text.push(token);
  }

  release(): void {
    if (this.isReleased) throw new Error(`slot ${this.slot} is released twice`);
    this.isReleased = true;
    this.#cache.running.delete(this);
    this.#cache.released.push(this);
    this.#cache.log.push(`release ${this.slot}`);
  }
}

class FakeBatch implements ReplayBatch {
  readonly entries: { readonly sequence: FakeSequence; readonly tokens: number }[] = [];

  clear(): void {
    this.entries.length = 0;
  }

  add(sequence: ReplaySequence, tokens: number): void {
    this.entries.push({ sequence: sequence as FakeSequence, tokens });
  }
}

export class FakeCache implements ReplayCache {
  readonly running = new Set<FakeSequence>();
  readonly released: FakeSequence[] = [];
  /** One line per call that changes something: `acquire 0 (100)`, `pass 0+1 1+32`, `release 0`. */
  readonly log: string[] = [];
  /** Errors for the next calls of `prepare`, first one first. */
  readonly prepareErrors: Error[] = [];
  cachedTokens = 0;
  readonly #slots: number;
  readonly #budgetTokens: number;
  readonly #sharing: Sharing;

  constructor({ slots = 4, budgetTokens = 1_000, sharing = 'off' as Sharing } = {}) {
    this.#slots = slots;
    this.#budgetTokens = budgetTokens;
    this.#sharing = sharing;
  }

  get freeTokens(): number {
    return [...this.running].reduce((free, { reservedTokens }) => free - reservedTokens, this.#budgetTokens);
  }

  acquire(prompt: FakePrompt): FakeSequence {
    const promptTokens = 'tokens' in prompt ? prompt.tokens.length : prompt.promptTokens;
    if (this.running.size === this.#slots) throw createError('KV_NO_FREE_SLOT', { slots: this.#slots, retiringSlots: 0 });
    if (promptTokens > this.freeTokens) {
      this.log.push(`refuse (${promptTokens})`);
      throw freeTokensLeft(promptTokens, this.freeTokens);
    }
    const taken = new Set([...this.running].map(({ slot }) => slot));
    const slot = Array.from({ length: this.#slots }, (_, at) => at).find((at) => !taken.has(at))!;
    const sequence = 'tokens' in prompt && this.#sharing !== 'off'
      ? this.#sharedSequence(slot, prompt.tokens)
      : new FakeSequence(this, slot, promptTokens, this.cachedTokens);
    this.running.add(sequence);
    this.log.push(`acquire ${slot} (${promptTokens})`);
    return sequence;
  }

  #sharedSequence(slot: number, text: Int32Array): FakeSequence {
    const common = (other: FakeSequence): number => {
      const most = Math.min(other.length, text.length - 1);
      if (this.#sharing === 'wrong') return most;
      let tokens = 0;
      while (tokens < most && other.text[tokens] === text[tokens]) tokens += 1;
      return tokens;
    };
    const [best, tokens] = this.released.reduce<[FakeSequence | undefined, number]>(
      (found, other) => (common(other) > found[1] ? [other, common(other)] : found), [undefined, 0]);
    const sequence = new FakeSequence(this, slot, text.length, tokens, text);
    for (const [token, key] of best?.stamps ?? []) if (token < tokens) sequence.stamps.set(token, key);
    return sequence;
  }

  createBatch(): FakeBatch {
    return new FakeBatch();
  }

  prepare(batch: ReplayBatch): void {
    const error = this.prepareErrors.shift();
    if (error !== undefined) throw error;
    const { entries } = batch as FakeBatch;
    const missing = ({ sequence, tokens }: (typeof entries)[number]): number =>
      Math.max(0, sequence.length + tokens - sequence.reservedTokens);
    const needTokens = entries.reduce((sum, entry) => sum + missing(entry), 0);
    if (needTokens > this.freeTokens) throw freeTokensLeft(needTokens, this.freeTokens);
    for (const entry of entries) entry.sequence.reservedTokens += missing(entry);
  }

  commit(batch: ReplayBatch): void {
    const { entries } = batch as FakeBatch;
    for (const { sequence, tokens } of entries) sequence.length += tokens;
    this.log.push(`pass ${entries.map(({ sequence, tokens }) => `${sequence.slot}+${tokens}`).join(' ')}`);
  }

  stamp(sequence: ReplaySequence, fromToken: number, tokens: number, key: number): number {
    const { stamps } = sequence as FakeSequence;
    for (let token = fromToken; token < fromToken + tokens; ++token) stamps.set(token, key);
    return tokens;
  }

  verifyStamp(sequence: ReplaySequence, fromToken: number, tokens: number, key: number): number {
    const { stamps, isReleased } = sequence as FakeSequence;
    if (isReleased) throw new Error('a released sequence is verified');
    let wrong = 0;
    for (let token = fromToken; token < fromToken + tokens; ++token) if (stamps.get(token) !== key) wrong += 1;
    return wrong;
  }
}
