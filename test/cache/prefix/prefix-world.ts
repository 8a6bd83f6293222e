// PrefixWorld: a cache under random requests that begin alike, and a small model of what they say: a map of every text prefix
// that was stored, and the text of every live sequence. Every token found in the cache must be in the map; every byte of a
// sequence must be that of its own text, whichever sequence computed it.

import { isKvError, type AcquireOptions, type ErrorCode, type KvCache, type Sequence } from 'virtual-kv';

import type { Random } from '#internal/base/random.js';
import type { CacheBench } from '../../helpers/cache.js';
import { domainOf, keysOf, Speaker } from './spoken.js';

interface Live {
  readonly sequence: Sequence;
  readonly domain: string;
  readonly isStored: boolean;
  readonly isCached: boolean;
  /** Tokens for which memory is earmarked, at most. */
  readonly earmarkedTokens: number;
  /** Of tokens that were there when it began. */
  readonly foundTokens: number;
  text: number[];
}

/** A text of which a sequence has tokens. */
export interface UsedText {
  readonly domain: string;
  readonly text: readonly number[];
  readonly tokens: number;
}

export interface WorldOptions {
  /** Nothing is evicted and nothing truncated: what is found must be all that was stored. */
  readonly isExact: boolean;
  /** Tokens there are: the fewer, the more is alike. */
  readonly alphabet: number;
  /** No sequence takes tokens back, so that all that was stored stays known. Default: as `isExact`. */
  readonly keepsTexts?: boolean;
  /** A tier keeps text for others when the cache forgets all. */
  readonly survivesReset?: boolean;
}

const domains: readonly AcquireOptions[] = [{}, {}, {}, { tenant: 'a' }, { tenant: 'b' }, { adapter: 'a' }, { salt: 'a' }];
const cachings = ['read-write', 'read-write', 'read-write', 'read-write', 'read', 'write', 'off'] as const;

export class PrefixWorld {
  readonly counts: Record<string, number> = {};
  readonly #bench: CacheBench;
  readonly #cache: KvCache;
  readonly #random: Random;
  readonly #speaker: Speaker;
  readonly #isExact: boolean;
  readonly #alphabet: number;
  readonly #keepsTexts: boolean;
  /** So far. */
  resets = 0;
  /** Keys of all prefixes stored since the last reset, per domain. */
  readonly #stored = new Map<string, Set<string>>();
  /** Where a tier survives resets, of all prefixes that were ever stored. */
  readonly #everStored: Map<string, Set<string>>;
  readonly #texts: number[][] = [];
  #live: Live[] = [];
  /** Released, and their fences may not have passed. */
  #retiring: UsedText[] = [];
  #step = 0;

  constructor(bench: CacheBench, random: Random, { isExact, alphabet, keepsTexts = isExact, survivesReset = false }: WorldOptions) {
    this.#bench = bench;
    this.#cache = bench.cache;
    this.#random = random;
    this.#speaker = new Speaker(bench.cache);
    this.#isExact = isExact;
    this.#everStored = survivesReset ? new Map<string, Set<string>>() : this.#stored;
    this.#alphabet = alphabet;
    this.#keepsTexts = keepsTexts;
  }

  operate(): void {
    const roll = this.#random.next();
    if (roll < 0.22) this.#acquire();
    else if (roll < 0.68) this.#compute();
    else if (roll < 0.86) this.release();
    else if (roll < 0.91) this.#fork();
    else if (roll < 0.95) this.#truncate();
    else if (roll < 0.985) this.#lookup();
    else if (roll < 0.99) this.completeStep();
    else if (roll < 0.992) this.#reset();
    else if (roll < 0.996) this.#cache.verify();
    else for (const live of this.#live) this.#assertBytes(live);
  }

  end(): void {
    for (const live of this.#live) {
      this.#assertBytes(live);
      live.sequence.release();
    }
    this.#live = [];
    this.completeStep();
  }

  #acquire(): void {
    const tokens = this.prompt();
    const options = this.domain();
    const caching = cachings[this.#random.integer(cachings.length)]!;
    const domain = domainOf(options);
    const known = this.knownTokens(domain, tokens);
    const reserve = this.#random.chance(0.5) ? 'prompt' : 'none';
    const before = this.#cache.counts();
    const outcome = this.#try(() => this.#cache.acquire({ tokens, caching, reserve, priority: this.priorityOf(tokens), ...options }));
    if (typeof outcome === 'string') { // refused: nothing has changed
      const after = this.#cache.counts();
      for (const count of ['cachedRows', 'activeSlots'] as const) {
        this.expect(before[count] === after[count], `${count} was ${before[count]} and is ${after[count]} after ${outcome}`);
      }
      this.expect(before.pooledRows <= after.pooledRows, `${before.pooledRows} rows could be evicted, and now ${after.pooledRows}`);
      if (outcome === 'KV_OUT_OF_PAGES') {
        const rows = this.#mostRows() + this.#cache.layout.rowsFor(tokens.length) + 1;
        this.expect(rows > this.#budgetRows(), `not admitted, although all sequences together need ${rows} rows at most`);
      }
      return;
    }
    const { cachedTokens, cachedBy, length } = outcome;
    const canRead = caching === 'read-write' || caching === 'read';
    const most = canRead ? Math.min(known, tokens.length - 1) : 0;
    this.expect(cachedTokens <= most && (!this.#isExact || cachedTokens === most), `${cachedTokens} tokens found, ${most} stored`);
    const { adoptedTokens, aliasedTokens, copiedTokens } = cachedBy;
    this.expect(length === cachedTokens && adoptedTokens + aliasedTokens + copiedTokens === cachedTokens, 'a wrong sum');
    for (const how of ['adoptedTokens', 'aliasedTokens', 'copiedTokens'] as const) this.count(how, cachedBy[how]);
    const live = {
      sequence: outcome, domain, isStored: caching === 'read-write' || caching === 'write', isCached: caching !== 'off',
      earmarkedTokens: reserve === 'prompt' ? tokens.length : 0, foundTokens: cachedTokens, text: tokens,
    };
    this.#live.push(live);
    this.#assertBytes(live);
  }

  #compute(): void {
    const live = this.#draw();
    if (live === undefined) return;
    const { sequence, domain, isStored } = live;
    const unknown = live.text.length - sequence.length;
    if (unknown === 0 || this.#random.chance(0.1)) {
      const more = Array.from({ length: 1 + this.#random.integer(3) }, () => this.#random.integer(this.#alphabet));
      if (live.text.length + more.length > this.#cache.layout.maxTokens) return;
      sequence.append(more);
      live.text = [...live.text, ...more];
    }
    const tokens = 1 + this.#random.integer(Math.min(20, live.text.length - sequence.length));
    const outcome = this.#try(() => this.#speaker.compute(sequence, live.text, tokens, domain));
    if (outcome === 'KV_OUT_OF_PAGES') {
      const rows = this.#mostRows(live, sequence.length + tokens);
      this.expect(rows > this.#budgetRows(), `refused, although all sequences together need ${rows} rows at most`);
      return;
    }
    if (isStored) this.#store(domain, live.text.slice(0, sequence.length));
  }

  /**
   * Rows that what runs needs at most when `growing` has `tokens` tokens: each sequence's own, a prompt's earmark, and for each
   * a row that is being copied.
   */
  #mostRows(growing?: Live, tokens = 0): number {
    const { layout } = this.#cache;
    if (this.#cache.counts().retiringSlots > 0) return Infinity;
    let rows = this.otherRows();
    for (const live of this.#live) {
      const most = Math.max(live.earmarkedTokens, live === growing ? tokens : live.sequence.length);
      rows += Math.max(live.sequence.mappedRows, layout.rowsFor(most)) + 1;
    }
    return rows;
  }

  #budgetRows(): number {
    const { pool, layout } = this.#cache;
    return Math.floor(pool.memoryBudgetBytes / layout.rowBytes);
  }

  /** One of its sequences is over. */
  release(): void {
    const live = this.#draw();
    if (live === undefined) return;
    this.#assertBytes(live);
    this.#live = this.#live.filter((other) => other !== live);
    this.remember(live.text);
    if (this.#random.chance(0.8)) {
      live.sequence.release();
      return;
    }
    this.#retiring.push(...usedTexts(live));
    live.sequence.release({ fence: { step: this.#step + this.#random.integer(2) } });
  }

  #fork(): void {
    const live = this.#draw();
    if (live === undefined) return;
    const outcome = this.#try(() => live.sequence.fork());
    if (typeof outcome === 'string') return;
    this.count('forks', 1);
    const fork = { ...live, sequence: outcome, foundTokens: live.sequence.length };
    this.expect(outcome.length === live.sequence.length, 'a fork of another length');
    this.#live.push(fork);
    this.#assertBytes(fork);
  }

  #truncate(): void {
    const live = this.#draw();
    if (this.#keepsTexts || live === undefined) return;
    const tokens = this.#random.integer(live.sequence.length + 1);
    live.sequence.truncate(tokens);
    live.text = live.text.slice(0, tokens);
    this.count('truncations', 1);
    this.#assertBytes(live);
  }

  #lookup(): void {
    const tokens = this.prompt();
    const options = this.domain();
    const { cachedTokens, pendingTokens } = this.#cache.prefixes.lookup({ tokens, ...options });
    const most = Math.min(tokens.length - 1, this.knownTokens(domainOf(options), tokens));
    this.expect(cachedTokens <= most && (!this.#isExact || cachedTokens === most), `${cachedTokens} looked up, ${most} stored`);
    this.expect(pendingTokens >= cachedTokens && pendingTokens < tokens.length, 'pending tokens out of range');
  }

  /** Fences of steps so far pass. */
  completeStep(): void {
    this.#step += 1;
    this.#cache.completeStep(this.#step);
    this.#retiring = [];
  }

  #reset(): void {
    const outcome = this.#try(() => this.#cache.prefixes.reset());
    if (typeof outcome === 'string') return;
    this.expect(this.otherRows() === 0 && this.#live.every(({ isCached }) => !isCached), 'a reset under running sequences');
    this.#stored.clear();
    this.resets += 1;
    this.expect(this.#cache.counts().cachedRows === 0, 'rows are left after a reset');
  }

  /** Rows that sequences of another kind need at most. */
  otherRows(): number {
    return 0;
  }

  /** What sequences of another kind use. */
  otherTexts(): readonly UsedText[] {
    return [];
  }

  /** Later prompts may begin like this. */
  remember(text: number[]): void {
    this.#texts.push(text);
    if (this.#texts.length > 30) this.#texts.splice(this.#random.integer(30), 1);
  }

  /** The priority level of a prompt's request. */
  priorityOf(_tokens: readonly number[]): number {
    return 0;
  }

  /** Whose request it is. */
  domain(): AcquireOptions {
    return domains[this.#random.integer(domains.length)]!;
  }

  /** A text that begins like one before, and goes on at random. */
  prompt(): number[] {
    const { maxTokens } = this.#cache.layout;
    const known = this.#random.chance(0.7) ? this.#texts[this.#random.integer(this.#texts.length)] : this.#draw()?.text;
    const kept = known === undefined ? [] : known.slice(0, this.#random.chance(0.5) ? known.length : this.#random.integer(known.length + 1));
    const added = Array.from({ length: 1 + this.#random.integer(25) }, () => this.#random.integer(this.#alphabet));
    return [...kept, ...added].slice(0, maxTokens);
  }

  #store(domain: string, text: readonly number[]): void {
    for (const each of new Set([this.#stored, this.#everStored])) {
      let stored = each.get(domain);
      if (stored === undefined) each.set(domain, stored = new Set());
      stored.add(text.join());
    }
  }

  /** Tokens at the start of the text that may be found in this domain. */
  knownTokens(domain: string, text: readonly number[]): number {
    return longestMatch(this.#everStored.get(domain), text);
  }

  /** Of these, tokens that were stored since the last reset. */
  tokensSinceReset(domain: string, text: readonly number[]): number {
    return longestMatch(this.#stored.get(domain), text);
  }

  /**
   * Of the first `tokens` tokens of a text, those that are found where all of them are cached. A sequence that begins inside a row has a copy
   * of that row's tokens, which the index does not know before it computes on: where all other texts with these tokens go, what does not fill the row is found again only then.
   */
  surelyFound(domain: string, text: readonly number[], tokens: number): number {
    const { layout } = this.#cache;
    const rows = layout.rowsFor(tokens);
    const whole = layout.tokensIn(Math.max(0, rows - 1));
    const end = layout.tokensIn(rows);
    const isInRow = (used: UsedText): boolean => used.domain === domain && used.tokens > whole && used.tokens < end && used.text.slice(0, whole + 1).every((token, at) => token === text[at]);
    return tokens < end && [...this.#live.flatMap(usedTexts), ...this.#retiring, ...this.otherTexts()].some(isInRow) ? whole : tokens;
  }

  #assertBytes({ sequence, text, domain }: Live): void {
    const keys = keysOf(text, domain);
    for (let token = 0; token < sequence.length; token += 1) {
      this.expect(this.#cache.verifyStamp(sequence, token, 1, keys[token]!) === 0, `token ${token} of slot ${sequence.slot} is wrong`);
    }
  }

  #draw(): Live | undefined {
    return this.#live[this.#random.integer(this.#live.length)];
  }

  #try<T>(call: () => T): T | ErrorCode {
    try {
      return call();
    } catch (error) {
      if (!isKvError(error) || !['KV_OUT_OF_PAGES', 'KV_NO_FREE_SLOT', 'KV_PREFIX_IN_USE'].includes(error.code)) throw error;
      this.count(error.code, 1);
      return error.code;
    }
  }

  count(what: string, count: number): void {
    this.counts[what] = (this.counts[what] ?? 0) + count;
  }

  expect(condition: boolean, problem: string): void {
    if (!condition) throw new Error(`${problem} (slots: ${this.#live.map(({ sequence }) => sequence.slot).join()}; ${this.#bench.pool().freePages} pages free)`);
  }
}

/** What it has now, and what it began with. */
function usedTexts({ domain, text, sequence: { length }, foundTokens }: Live): UsedText[] {
  return [{ domain, text, tokens: length }, { domain, text, tokens: foundTokens }];
}

function longestMatch(texts: ReadonlySet<string> | undefined, text: readonly number[]): number {
  let most = 0;
  for (const stored of texts ?? []) {
    const tokens = stored === '' ? [] : stored.split(',').map(Number);
    let agreed = 0;
    while (agreed < tokens.length && tokens[agreed] === text[agreed]) agreed += 1;
    most = Math.max(most, agreed);
  }
  return most;
}
