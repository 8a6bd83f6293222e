// RaisedTexts: brings text of which selections read from its tiers to the device, whole and exact, where the eviction
// policy says that it is worth more there than what has to go for it. A hint: one text at a time, in runs of blocks
// that double, beside everything else. It makes way for what requests and hints of users wait for, and is dropped when
// many texts wait.

import { RecentMap } from '../../base/recent-map.js';
import type { PrefixDomain, TextScope } from '../../prefix/domain.js';
import type { ImportanceMeans } from './importance-means.js';
import type { StoredBlock } from '../stored-texts.js';
import type { CachedRows } from '../../cache/cached-rows.js';
import type { Promotions } from '../promotions.js';
import type { SlotMemory } from '../../cache/slots.js';

/** Texts that wait at most. */
const mostWaiting = 16;
/** Blocks for which other text goes that are brought at a time at most: what goes first is looked at anew then. */
const mostByScore = 8;
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
  /** By the key of a text's last block. */
  readonly #waiting = new Map<string, Waiting>();
  /** By the key of a block that went at once, the uses that it had. */
  readonly #inVain = new RecentMap<number>(mostInVain);
  #running: Promise<void> | undefined;
  #namespace = '';
  #isOver = false;
  /** Tokens that were brought. Read only. */
  tokens = 0;

  constructor(memory: SlotMemory, cached: CachedRows, promotions: Promotions, means: ImportanceMeans) {
    this.#memory = memory;
    this.#cached = cached;
    this.#promotions = promotions;
    this.#means = means;
  }

  /** A selection has read of the text, which ends in `last`, and what it chose of it is noted. */
  offer(domain: PrefixDomain, text: Int32Array, { key }: StoredBlock): void {
    if (!this.#isCurrent(domain) || this.#waiting.size >= mostWaiting || this.#waiting.has(key)
      || !this.#cached.index.room.takesOffers) return;
    this.#waiting.set(key, { domain, text });
    this.#running ??= Promise.resolve().then(() => this.#run()); // not in the middle of a pass
  }

  /** From here on requests find only text of this namespace: none other is brought. */
  setNamespace(namespace: string): void {
    this.#namespace = namespace;
  }

  /** Resolves when none is under way. */
  async settled(): Promise<void> {
    await this.#running;
  }

  /** Forgets those that wait. */
  clear(): void {
    this.#waiting.clear();
    this.#inVain.clear();
  }

  /** Forgets those that are dropped. */
  drop(scope: TextScope): void {
    for (const [key, { domain, text }] of this.#waiting) if (scope.covers(domain, text)) this.#waiting.delete(key);
  }

  /** Begins none any more, and ends the one under way. Resolves when that is over; undefined: none is. */
  stop(): Promise<void> | undefined {
    this.#isOver = true;
    this.clear();
    this.#promotions.stopPlacements();
    return this.#running;
  }

  async #run(): Promise<void> {
    for (const [key, next] of this.#waiting) {
      try {
        await this.#raise(next);
      } catch (error) {
        this.#memory.background.report(error);
      }
      this.#waiting.delete(key);
    }
    this.#running = undefined;
  }

  /** Brings the next blocks of the text, up to the first that is not worth it, or until others wait for a load. */
  async #raise({ domain, text }: Waiting): Promise<void> {
    let [mostFree, most] = [1, 1];
    while (this.#isCurrent(domain) && !this.#promotions.isAwaited) {
      const before = this.#promotions.cachedTokens(domain, text);
      const { blocks, tokens } = this.#promotions.missing(domain, text, text.length, before);
      if (before >= tokens) return;
      const free = this.#withRoom(blocks, before, mostFree);
      const run = free.length > 0 ? free : this.#worthRoom(blocks, most);
      const last = run.at(-1);
      if (last === undefined) return;
      if (free.length > 0) mostFree *= 2;
      else most = Math.min(2 * most, mostByScore);
      const { promotedTokens, cachedTokens } = await this.#promotions.promote({
        domain, text: text.slice(0, last.to), priority: 0, deadlineMs: undefined, signal: undefined, isHint: true,
        isPlacement: true,
      });
      this.tokens += promotedTokens;
      if (cachedTokens > before && cachedTokens >= Math.min(last.to, tokens)) continue;
      const gone = run.find(({ to }) => to > cachedTokens)!;
      // what went first was its own text
      if (cachedTokens < before + promotedTokens) this.#inVain.set(gone.key, gone.uses);
      return;
    }
  }

  #isCurrent({ namespace = '' }: PrefixDomain): boolean {
    return !this.#isOver && namespace === this.#namespace;
  }

  /**
   * The first of the blocks, `most` at most, for which the device has room behind `cachedTokens` tokens of the text.
   */
  #withRoom(blocks: readonly StoredBlock[], cachedTokens: number, most: number): readonly StoredBlock[] {
    const { room } = this.#cached.index;
    const { arithmetic, layout, pool } = this.#memory;
    const [rowsBefore, pagesBefore] = [arithmetic.rowsFor(cachedTokens), layout.pagesFor(layout.rowsFor(cachedTokens))];
    const freePages = pool.obtainablePages() - this.#cached.evictablePages();
    return firstOf(blocks, most, (
      block,
    ) => this.#mayStay(block) && layout.pagesFor(layout.rowsFor(block.to)) - pagesBefore <= freePages
      && room.hasRoom(arithmetic.rowsFor(block.to) - rowsBefore));
  }

  /** The first of the blocks, `most` at most, that are worth the room of other text. */
  #worthRoom(blocks: readonly StoredBlock[], most: number): readonly StoredBlock[] {
    const { room } = this.#cached.index;
    return firstOf(blocks, most, (block) => {
      const { key, uses, tokens: { length: tokens } } = block;
      return this.#mayStay(block) && room.isWorthRoom({ tokens, chosenTokens: this.#means.sumOf(key) ?? tokens, uses });
    });
  }

  /** False: it went at once when it was brought, and is not used twice as often since. */
  #mayStay({ key, uses }: StoredBlock): boolean {
    return uses >= 2 * (this.#inVain.get(key) ?? 0);
  }
}

function firstOf(
  blocks: readonly StoredBlock[], most: number, isRight: (block: StoredBlock) => boolean,
): readonly StoredBlock[] {
  const first = blocks.slice(0, most);
  const end = first.findIndex((block) => !isRight(block));
  return end < 0 ? first : first.slice(0, end);
}
