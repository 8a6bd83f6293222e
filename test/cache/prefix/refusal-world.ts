// RefusalWorld: a cache under random requests, forks and truncations with too little memory, and a count of what must be kept that
// does not ask the cache: the physical pages in which running sequences' tokens lie, each once, and those earmarked for them.
// Whatever is refused for want of pages must not fit beside them; what is admitted is not this world's question.
//
// What fits is what docs/design.md promises (Rules): a row, or a group of rows where layers differ, is shared as a whole.

import { isKvError, type AcquireOptions, type ErrorCode, type KvCache, type Sequence } from 'virtual-kv';

import type { Random } from '#internal/base/random.js';
import type { CacheBench } from '../../helpers/cache.js';
import { ExactRows } from './exact-rows.js';
import { PhysicalPages } from './physical-pages.js';
import { PinnedTexts, pinnedLevel } from './pinned-texts.js';
import { SharedRows } from './shared-rows.js';

interface Live {
  readonly sequence: Sequence;
  readonly addresses: readonly bigint[];
  readonly domain: string;
  readonly isStored: boolean;
  readonly isPinned: boolean;
  earmarkedTokens: number;
  text: number[];
}

interface Kept {
  /** Pages that are needed and exist: by handle where they are mapped. */
  readonly pages: Set<bigint | string>;
  /** Pages that are earmarked and not mapped. */
  earmarked: number;
}

const cachings = ['read-write', 'read-write', 'read-write', 'read', 'write', 'off'] as const;
const domains: readonly AcquireOptions[] = [{}, {}, {}, { tenant: 'a' }];

export class RefusalWorld {
  readonly counts: Record<string, number> = {};
  readonly #cache: KvCache;
  readonly #random: Random;
  readonly #memory: PhysicalPages;
  readonly #arithmetic: ExactRows;
  readonly #batch;
  readonly #texts: number[][] = [];
  readonly #isExact: boolean;
  readonly #shared: SharedRows;
  readonly #budgetPages: number;
  #live: Live[] = [];
  #retiring: { readonly addresses: readonly bigint[]; readonly step: number }[] = [];
  #step = 0;
  #refusal = '';
  /** Undefined where the eviction policy pins none. */
  readonly #pinned: PinnedTexts | undefined;

  /**
   * `isExact`: no mapper takes pages meanwhile, so that what `counts` says can be compared. `hasPins`: the eviction policy withholds texts
   * from `pinnedLevel` on.
   */
  constructor(bench: CacheBench, random: Random, isExact: boolean, hasPins = false) {
    this.#cache = bench.cache;
    this.#random = random;
    this.#isExact = isExact;
    this.#memory = new PhysicalPages(bench.mock, bench.cache);
    this.#arithmetic = new ExactRows(bench.cache.layout);
    this.#shared = new SharedRows(bench.cache, this.#memory);
    this.#pinned = hasPins ? new PinnedTexts(bench.cache, this.#shared) : undefined;
    this.#batch = bench.cache.createBatch();
    this.#budgetPages = bench.pool().budgetPages;
  }

  operate(): void {
    const roll = this.#random.next();
    if (roll < 0.25) this.#acquire();
    else if (roll < 0.65) this.#compute();
    else if (roll < 0.78) this.#release();
    else if (roll < 0.85) this.#fork();
    else if (roll < 0.93) this.#truncate();
    else if (roll < 0.96) this.#admitMost();
    else if (roll < 0.985) this.#completeStep();
    else if (roll < 0.995) this.#cache.prefixes.lookup({ tokens: this.#prompt() });
    else this.#cache.verify();
    this.#memory.hear();
    this.#shared.check();
    this.#pinned?.check();
    for (const { sequence } of this.#live) {
      this.#expect(sequence.mappedRows >= this.#cache.layout.rowsFor(sequence.length), `${sequence.length} tokens have ${sequence.mappedRows} rows`);
    }
  }

  end(): void {
    this.#completeStep();
    this.#completeStep();
    for (const { sequence } of this.#live) sequence.release();
    this.#cache.prefixes.reset();
    const { keptRows } = this.#cache.metrics;
    this.#expect(keptRows === 0, `${keptRows} numbers of rows are left of an empty cache`);
  }

  #acquire(): void {
    const tokens = this.#prompt();
    const options = domains[this.#random.integer(domains.length)]!;
    const caching = cachings[this.#random.integer(cachings.length)]!;
    const reserve = this.#random.chance(0.6) ? 'prompt' : 'none';
    const domain = options.tenant ?? '';
    const priority = this.#pinned !== undefined && this.#random.chance(0.1) ? pinnedLevel : 0;
    const outcome = this.#try(() => this.#cache.acquire({ tokens, caching, reserve, priority, ...options }));
    if (outcome === 'KV_NO_FREE_SLOT') {
      const { length } = this.#live;
      return this.#expect(length + this.#retiring.length >= this.#cache.layout.slots, 'a slot was free');
    }
    if (typeof outcome === 'string') {
      const canRead = caching === 'read' || caching === 'read-write';
      this.#expect(reserve === 'prompt', 'nothing was asked for');
      const kept = this.#kept();
      const more = this.#arithmetic.pagesFor(tokens.length) - (canRead ? this.#sharedPages(tokens, domain, kept) : 0);
      this.#expectRefused(kept, more, `a prompt of ${tokens.length}`);
      return this.#forgetPinned();
    }
    this.#live.push({
      sequence: outcome, addresses: this.#memory.addressesOf(outcome), domain, isPinned: priority === pinnedLevel,
      isStored: caching === 'read-write' || caching === 'write', earmarkedTokens: reserve === 'prompt' ? tokens.length : 0, text: tokens,
    });
  }

  #compute(): void {
    const batch = this.#draw(1 + this.#random.integer(3)).flatMap((live) => {
      const { sequence, text } = live;
      if (text.length === sequence.length || this.#random.chance(0.2)) {
        const more = this.#random.chance(0.5) ? [0, 0, 0] : Array.from({ length: 1 + this.#random.integer(6) }, () => this.#random.integer(2));
        if (text.length + more.length > this.#cache.layout.maxTokens) return [];
        sequence.append(more);
        live.text = [...text, ...more];
      }
      return [{ live, tokens: 1 + this.#random.integer(Math.min(40, live.text.length - sequence.length)) }];
    });
    if (batch.length === 0) return;
    this.#batch.clear();
    for (const { live, tokens } of batch) this.#batch.add(live.sequence, tokens);
    const outcome = this.#try(() => {
      this.#cache.prepare(this.#batch);
    });
    if (outcome === 'KV_OUT_OF_PAGES') {
      const kept = this.#kept();
      return this.#expectRefused(kept, this.#growth(batch), `${batch.map(({ tokens }) => tokens).join(' + ')} tokens`);
    }
    if (this.#random.chance(0.9)) this.#cache.commit(this.#batch);
    else this.#cache.discard(this.#batch);
  }

  /** Pages that the batch needs beside what is kept: rows behind, and copies of last groups that other running sequences need. */
  #growth(batch: readonly { readonly live: Live; readonly tokens: number }[]): number {
    let pages = 0;
    const writers: Live[] = [];
    const retiring = this.#retiringPages();
    const pinned = this.#pinned?.pages() ?? [];
    for (const { live, tokens } of batch) {
      const { length } = live.sequence;
      pages += Math.max(0, this.#arithmetic.pagesFor(length + tokens) - this.#arithmetic.pagesFor(Math.max(length, live.earmarkedTokens)));
      const own = this.#tailOf(live);
      writers.push(live);
      // The last of those that share it needs no copy.
      const isNeeded = this.#live.some((other) => {
        const tail = writers.includes(other) ? this.#tailOf(other) : undefined;
        return other !== live && isOverlapping(own, this.#neededOf(other).filter((page) => page === undefined || tail?.has(page) !== true));
      });
      if (isNeeded || isOverlapping(own, [...retiring, ...pinned])) pages += own.size;
    }
    return pages;
  }

  #release(): void {
    const [live] = this.#draw(1);
    if (live === undefined) return;
    this.#live = this.#live.filter((other) => other !== live);
    this.#texts.push(live.text);
    if (this.#texts.length > 20) this.#texts.splice(this.#random.integer(20), 1);
    const computed = live.text.slice(0, live.sequence.length);
    if (live.isPinned && live.isStored) this.#pinned?.add(computed, live.domain);
    if (this.#random.chance(0.85)) return live.sequence.release();
    const step = this.#step + 1 + this.#random.integer(2);
    live.sequence.release({ fence: { step } });
    this.#retiring.push({ addresses: live.addresses, step });
  }

  #fork(): void {
    const [live] = this.#draw(1);
    if (live === undefined) return;
    const outcome = this.#try(() => live.sequence.fork());
    if (typeof outcome === 'string') return this.#expect(outcome === 'KV_NO_FREE_SLOT', `a fork was refused: ${outcome}`);
    this.#live.push({ ...live, sequence: outcome, addresses: this.#memory.addressesOf(outcome), earmarkedTokens: 0 });
  }

  #truncate(): void {
    const [live] = this.#draw(1);
    if (live === undefined) return;
    const tokens = this.#random.integer(live.sequence.length + 1);
    const { mappedRows } = live.sequence;
    live.sequence.truncate(tokens);
    if (live.isStored) this.#pinned?.truncate(live.text, tokens, live.domain);
    live.text = live.text.slice(0, tokens);
    if (live.sequence.mappedRows < mappedRows) live.earmarkedTokens = 0; // rows that others share had to go
  }

  /** What `counts` says can be admitted is what the pages say, and true. */
  #admitMost(): void {
    const { maxTokens, slots } = this.#cache.layout;
    const { admissibleTokens, admissiblePages } = this.#cache.counts();
    if (this.#live.length + this.#retiring.length === slots) return this.#expect(admissibleTokens === 0, 'no slot is free');
    const kept = this.#kept();
    const free = Math.max(0, this.#budgetPages - kept.pages.size - kept.earmarked);
    if (this.#isExact) this.#expect(admissiblePages === free, `${admissiblePages} pages are admissible, ${free} are left`);
    if (!this.#isExact) return;
    if (admissibleTokens < maxTokens) {
      this.#expect(this.#try(() => this.#cache.acquire({ promptTokens: admissibleTokens + 1 })) === 'KV_OUT_OF_PAGES', 'one more was admitted');
    }
    if (this.#random.chance(0.7)) return;
    const outcome = this.#try(() => this.#cache.acquire({ promptTokens: admissibleTokens }));
    if (typeof outcome === 'string') return this.#expect(false, `${outcome} for ${admissibleTokens} tokens that were said to be admissible`);
    outcome.release();
    this.#count('admitted');
  }

  /** Once pinned text leaves too little: nothing in use, everything forgotten. */
  #forgetPinned(): void {
    if (this.#pinned === undefined || this.#pinned.pages().size < this.#budgetPages / 2) return;
    this.#completeStep();
    this.#completeStep();
    for (const { sequence } of this.#live) sequence.release();
    this.#live = [];
    this.#cache.prefixes.reset();
    this.#pinned.clear();
    this.#memory.hear();
    this.#count('forgot');
  }

  #completeStep(): void {
    this.#step += 1;
    this.#cache.completeStep(this.#step);
    this.#retiring = this.#retiring.filter(({ step }) => step > this.#step);
  }

  /** What all running sequences need together. */
  #kept(): Kept {
    this.#memory.hear();
    const kept: Kept = { pages: new Set(), earmarked: 0 };
    for (const live of this.#live) {
      for (const page of this.#neededOf(live)) {
        if (page === undefined) kept.earmarked += 1;
        else kept.pages.add(page);
      }
    }
    for (const page of this.#retiringPages()) kept.pages.add(page);
    for (const page of this.#pinned?.pages() ?? []) kept.pages.add(page);
    return kept;
  }

  /** All that released sequences still map. */
  #retiringPages(): Set<bigint> {
    const pages = new Set<bigint>();
    for (const { addresses } of this.#retiring) {
      this.#memory.visit(addresses, 0, this.#cache.layout.maxRows, (page) => {
        if (page !== undefined) pages.add(page);
      });
    }
    return pages;
  }

  /** Pages of a sequence's tokens and earmark; undefined for one that is not mapped yet. */
  #neededOf({ sequence, addresses, earmarkedTokens }: Live): (bigint | undefined)[] {
    const pages: (bigint | undefined)[] = [];
    const rows = this.#cache.layout.rowsFor(Math.max(sequence.length, earmarkedTokens));
    this.#memory.visit(addresses, 0, rows, (page) => pages.push(page));
    return pages;
  }

  /** Pages of the last row, if the sequence's tokens do not fill it. */
  #tailOf({ sequence: { length }, addresses }: Live): Set<bigint> {
    const { layout } = this.#cache;
    const pages = new Set<bigint>();
    const first = this.#arithmetic.wholeRows(length);
    this.#memory.visit(addresses, first, layout.rowsFor(length), (page) => {
      if (page !== undefined) pages.add(page);
    });
    return pages;
  }

  /** Pages of whole rows that a prompt would share with a running sequence that has stored them, and with pinned text. */
  #sharedPages(tokens: readonly number[], domain: string, kept: Kept): number {
    const { cachedTokens } = this.#cache.prefixes.lookup({ tokens, ...(domain === '' ? {} : { tenant: domain }) });
    const pinnedPages = (from: number): number => this.#pinned?.pages({ tokens, domain, from, to: this.#arithmetic.exactTokens(cachedTokens) }).size ?? 0;
    let most = pinnedPages(0);
    for (const live of this.#live) {
      if (!live.isStored || live.domain !== domain) continue;
      let agreed = 0;
      while (agreed < Math.min(cachedTokens, live.sequence.length) && tokens[agreed] === live.text[agreed]) agreed += 1;
      const pages = new Set<bigint>();
      this.#memory.visit(live.addresses, 0, this.#arithmetic.exactRows(agreed), (page) => pages.add(page!));
      this.#expect([...pages].every((page) => kept.pages.has(page)), 'a page of a running sequence is not needed');
      most = Math.max(most, pages.size + pinnedPages(this.#arithmetic.exactTokens(agreed)));
    }
    return most;
  }

  #expectRefused(kept: Kept, more: number, what: string): void {
    const needed = kept.pages.size + kept.earmarked + more;
    this.#expect(needed > this.#budgetPages, `refused ${what}, although with it ${needed} of ${this.#budgetPages} pages are needed (${more} more)`);
  }

  /** A text that begins like one before, and goes on at random. */
  #prompt(): number[] {
    const { maxTokens } = this.#cache.layout;
    const known = this.#random.chance(0.6) ? this.#texts[this.#random.integer(this.#texts.length)] : this.#draw(1)[0]?.text;
    const kept = known === undefined ? [] : known.slice(0, this.#random.chance(0.6) ? known.length : this.#random.integer(known.length + 1));
    const most = this.#random.chance(0.3) ? maxTokens >> 1 : 12;
    const added = Array.from({ length: this.#random.integer(most) }, () => this.#random.integer(2));
    return [...kept, ...added, 1].slice(-maxTokens);
  }

  #draw(count: number): Live[] {
    const left = [...this.#live];
    const drawn: Live[] = [];
    while (drawn.length < count && left.length > 0) drawn.push(...left.splice(this.#random.integer(left.length), 1));
    return drawn;
  }

  #try<T>(call: () => T): T | ErrorCode {
    const { evicted } = this.#cache.prefixes.metrics.droppedRows;
    try {
      return call();
    } catch (error) {
      if (!isKvError(error) || !['KV_OUT_OF_PAGES', 'KV_NO_FREE_SLOT'].includes(error.code)) throw error;
      this.#count(error.code);
      this.#refusal = error.message;
      if (this.#isExact && error.code === 'KV_OUT_OF_PAGES') this.#expect(this.#cache.prefixes.metrics.droppedRows.evicted === evicted, 'a refusal evicted rows');
      return error.code;
    }
  }

  #count(what: string): void {
    this.counts[what] = (this.counts[what] ?? 0) + 1;
  }

  #expect(condition: boolean, problem: string): void {
    if (!condition) throw new Error(`${problem}; the last refusal: ${this.#refusal}`);
  }
}

function isOverlapping(pages: ReadonlySet<bigint>, others: readonly (bigint | string | undefined)[]): boolean {
  return others.some((page) => typeof page === 'bigint' && pages.has(page));
}
