// RaisedTexts: brings text of which selections read from its tiers to the device, whole and exact, where the eviction policy says that it is worth more
// there than what has to go for it. A hint: one block at a time, beside everything else, behind the loads that requests wait for, and dropped when
// many texts wait.

import { RecentMap } from '../base/recent-map.js';
import type { PrefixDomain } from '../prefix/domain.js';
import type { ImportanceMeans } from '../tiers/importance-means.js';
import type { StoredBlock } from '../tiers/stored-texts.js';
import type { CachedRows } from './cached-rows.js';
import type { Promotions } from './promotions.js';
import type { SlotMemory } from './slot-memory.js';

/** Texts that wait at most. */
const mostWaiting = 16;
/** Blocks of which it is remembered that they were brought in vain. */
const mostInVain = 256;

interface Waiting {
  readonly domain: PrefixDomain;
  readonly text: Int32Array;
}

export class RaisedTexts {
  readonly #memory: SlotMemory;
  readonly #cached: CachedRows;
  readonly #promotions: Promotions;
  readonly #means: ImportanceMeans;
  readonly #waiting: Waiting[] = [];
  /** By the key of a block that went at once, the uses that it had. */
  readonly #inVain = new RecentMap<number>(mostInVain);
  #running: Promise<void> | undefined;
  #isOver = false;
  /** Tokens that were brought. Read only. */
  tokens = 0;

  constructor(memory: SlotMemory, cached: CachedRows, promotions: Promotions, means: ImportanceMeans) {
    this.#memory = memory;
    this.#cached = cached;
    this.#promotions = promotions;
    this.#means = means;
  }

  /** A selection has read of the text, and what it chose of it is noted. */
  offer(domain: PrefixDomain, text: Int32Array): void {
    if (this.#isOver || this.#waiting.length >= mostWaiting || !this.#cached.index.room.takesOffers) return;
    this.#waiting.push({ domain, text });
    this.#running ??= Promise.resolve().then(() => this.#run()); // not in the middle of a pass
  }

  /** Resolves when none is under way. */
  async settled(): Promise<void> {
    await this.#running;
  }

  /** Forgets those that wait. */
  clear(): void {
    this.#waiting.length = 0;
    this.#inVain.clear();
  }

  /** Begins none any more. Resolves when none is under way; undefined: none is. */
  stop(): Promise<void> | undefined {
    this.#isOver = true;
    this.clear();
    return this.#running;
  }

  async #run(): Promise<void> {
    for (let next = this.#waiting.shift(); next !== undefined; next = this.#waiting.shift()) {
      try {
        await this.#raise(next);
      } catch (error) {
        this.#memory.late.report(error);
      }
    }
    this.#running = undefined;
  }

  /** Brings the next blocks of the text, up to the first that is not worth it. */
  async #raise({ domain, text }: Waiting): Promise<void> {
    while (!this.#isOver) {
      const before = this.#promotions.cachedTokens(domain, text);
      const { blocks: [block] } = this.#promotions.missing(domain, text, text.length, before);
      if (block === undefined || !this.#isWorthRoom(block, before)) return;
      const { promotedTokens, cachedTokens } = await this.#promotions.promote({
        domain, text: text.slice(0, block.to), priority: 0, deadlineMs: undefined, signal: undefined, isHint: true, isPlacement: true,
      });
      this.tokens += promotedTokens;
      if (cachedTokens > before) continue;
      if (promotedTokens > 0) this.#inVain.set(block.key, block.uses); // what went first was its own text
      return;
    }
  }

  /** Whether the block has room on the device, or is worth that of other text. */
  #isWorthRoom(block: StoredBlock, cachedTokens: number): boolean {
    const { room } = this.#cached.index;
    const { groups, layout, pool } = this.#memory;
    if (block.uses < 2 * (this.#inVain.get(block.key) ?? 0)) return false;
    const from = Math.max(cachedTokens, block.from);
    const pages = layout.pagesFor(layout.rowsFor(block.to)) - layout.pagesFor(layout.rowsFor(from));
    const isFree = room.hasRoom(groups.rowsFor(block.to) - groups.rowsFor(from)) && pool.obtainablePages() - this.#cached.evictablePages() >= pages;
    return isFree || room.isWorthRoom({ tokens: block.tokens.length, chosenTokens: this.#means.sumOf(block.key) ?? block.tokens.length, uses: block.uses });
  }
}
