// ChoiceFollowers: what is made of the tokens that layers of sequences have chosen: means by block, text that comes to
// faster tiers and to the device, blocks that are stored anew in another order. Hints, all of them: no request is the
// worse for them.

import { RecentMap } from '../../base/recent-map.js';
import type { CachedRows } from '../../cache/cached-rows.js';
import type { SlotMemory } from '../../cache/slots.js';
import type { PrefixDomain, TextScope } from '../../prefix/domain.js';
import type { OpenTier } from '../open-tier.js';
import type { Promotions } from '../promotions.js';
import type { StoredBlock } from '../stored-texts.js';
import type { TierSet } from '../tier-set.js';
import { ChoiceNotes, type ImportanceMeans } from './importance-means.js';
import type { Reordering } from './reordering.js';
import type { SelectedText } from './selected-text.js';

export class ChoiceFollowers {
  /** What was chosen, by block. */
  readonly means: ImportanceMeans;
  readonly raised: RaisedBlocks;
  readonly raisedTexts: RaisedTexts;
  readonly reordering: Reordering;
  readonly #report: (error: unknown) => void;

  /** @param report Hears of failures that no call reports. */
  constructor(
    means: ImportanceMeans, raised: RaisedBlocks, raisedTexts: RaisedTexts, reordering: Reordering,
    report: (error: unknown) => void,
  ) {
    this.means = means;
    this.raised = raised;
    this.raisedTexts = raisedTexts;
    this.reordering = reordering;
    this.#report = report;
  }

  /**
   * Notes what the layers of a sequence choose of these blocks, which have its text behind its first `exactTokens`
   * tokens.
   */
  notesOf(
    selected: SelectedText, blocks: readonly StoredBlock[], domain: PrefixDomain, exactTokens: number,
  ): ChoiceNotes {
    return new ChoiceNotes(
      this.means, blocks, exactTokens, selected.tokens,
      (isNoted) => { this.#chose(selected, blocks, domain, isNoted); });
  }

  /** Resolves when nothing is on its way to where it was raised to. */
  async settled(): Promise<void> {
    await this.raised.settled();
    await this.raisedTexts.settled();
  }

  /** Forgets what waits. */
  clear(): void {
    this.raisedTexts.clear();
    this.reordering.clear();
  }

  /** Begins to raise nothing any more. What that ends is over when all that is returned has resolved. */
  stopRaising(): Promise<unknown>[] {
    return [this.raised.stop(), this.raisedTexts.stop()].filter((each) => each !== undefined);
  }

  /** The same, and stores no block anew. */
  stop(): Promise<unknown>[] {
    const reordering = this.reordering.stop();
    return reordering === undefined ? this.stopRaising() : [reordering, ...this.stopRaising()];
  }

  /**
   * A request's layers have chosen of these blocks. What is made of it are hints: the request is none the worse for a
   * tier of a user's that throws.
   */
  #chose({ text }: SelectedText, blocks: readonly StoredBlock[], domain: PrefixDomain, isNoted: boolean): void {
    try {
      for (const block of blocks) this.raised.offer(block);
      this.raisedTexts.offer(domain, text, blocks.at(-1)!);
      if (isNoted) this.reordering.noted();
    } catch (error) {
      this.#report(error);
    }
  }
}

// RaisedBlocks: brings blocks of which parts were read from a slow tier to the memory of a faster one, where they are
// worth more than what has to go for them. A hint: one block at a time, beside everything else, and dropped when many
// wait.

/** Blocks that wait at most. */
const mostWaitingBlocks = 64;

export class RaisedBlocks {
  readonly #set: TierSet;
  readonly #report: (error: unknown) => void;
  readonly #waiting = new Set<StoredBlock>();
  #running: Promise<void> | undefined;
  #isOver = false;
  /** Blocks that were brought. Read only. */
  raised = 0;

  /** @param report Hears of failures that no call reports. */
  constructor(set: TierSet, report: (error: unknown) => void) {
    this.#set = set;
    this.#report = report;
  }

  /** A selection has read of the block, and what it chose of it is noted. */
  offer(block: StoredBlock): void {
    if (this.#isOver || this.#waiting.size >= mostWaitingBlocks || this.#waiting.has(block)
      || this.#goal(block) === undefined) return;
    block.pins += 1;
    this.#waiting.add(block);
    this.#running ??= this.#run();
  }

  /** Resolves when none is under way. */
  async settled(): Promise<void> {
    await this.#running;
  }

  /** Begins none any more. Resolves when none is under way; undefined: none is. */
  stop(): Promise<void> | undefined {
    this.#isOver = true;
    return this.#running;
  }

  async #run(): Promise<void> {
    for (const block of this.#waiting) {
      try {
        const goal = this.#isOver ? undefined : this.#goal(block);
        if (goal !== undefined && await this.#set.copy(block, goal)) this.raised += 1;
      } catch (error) {
        this.#report(error);
      } finally {
        this.#waiting.delete(block);
        block.pins -= 1;
        this.#set.texts.prune(block);
      }
    }
    this.#running = undefined;
  }

  /** The tier whose memory it is worth; undefined: none, or it is there. */
  #goal(block: StoredBlock): OpenTier | undefined {
    const goal = this.#set.all.find(({ tier, state }) => state === 'open' && tier.borrow !== undefined);
    if (goal === undefined || goal.contents.has(block) || block.tiers === 0) return undefined;
    return goal.contents.isWorthRoom(block, this.#set.bytesOf(block.tokens.length)) ? goal : undefined;
  }
}

// RaisedTexts: brings text of which selections read from its tiers to the device, whole and exact, where the eviction
// policy says that it is worth more there than what has to go for it. A hint: one text at a time, in runs of blocks
// that double, beside everything else. It makes way for what requests and hints of users wait for, and is dropped when
// many texts wait.

/** Texts that wait at most. */
const mostWaitingTexts = 16;
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
    if (!this.#isCurrent(domain) || this.#waiting.size >= mostWaitingTexts || this.#waiting.has(key)
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
