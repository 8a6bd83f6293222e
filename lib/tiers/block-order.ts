// LevelOrder: which block of a tier goes first: one of the lowest priority level, and within a level what an order of
// its own says: what is likely to return (ReuseOrder), or what is important (BlockRanking). A block counts with the
// level that it had when it was set last. Levels are few: each in use has an order.

import { Heap } from '../base/heap.js';
import type { ReleasedRequest } from '../prefix/eviction/eviction-policy.js';
import { NodeLists } from '../prefix/eviction/node-lists.js';
import { ReuseHistory } from '../prefix/eviction/reuse-history.js';
import { ReuseRates, textClass, textClasses, type Turn, turns } from '../prefix/eviction/reuse-rates.js';
import type { StoredBlock } from './stored-texts.js';

/** Which block of one level goes first. */
export interface BlockOrder {
  /** Blocks. */
  readonly size: number;
  has(block: StoredBlock): boolean;
  /** Adds a block as the one used last, or makes it that. */
  set(block: StoredBlock): void;
  /** Whether it was there. */
  delete(block: StoredBlock): boolean;
  /** Takes out the block that goes first of those that `skips` does not say so of; undefined: none. */
  take(skips: (block: StoredBlock) => boolean): StoredBlock | undefined;
  /** Whether a block is worth more than some block that is there; left out: that is not known. */
  isAboveLowest?(block: StoredBlock): boolean;
  /** Ranks all blocks anew, where what they are worth changes by itself. */
  refresh?(): void;
}

/** The blocks of one level. */
interface Level {
  readonly level: number;
  readonly order: BlockOrder;
}

export class LevelOrder {
  readonly #makeOrder: () => BlockOrder;
  /** Those that have blocks, the lowest first. */
  readonly #levels: Level[] = [];

  constructor(makeOrder: () => BlockOrder) {
    this.#makeOrder = makeOrder;
  }

  has(block: StoredBlock): boolean {
    return this.#levels.some(({ order }) => order.has(block));
  }

  /** The lowest level that has a block; undefined: there is none. */
  get lowest(): number | undefined {
    return this.#levels[0]?.level;
  }

  /** Adds a block as the one used last, or makes it that. */
  set(block: StoredBlock): void {
    const order = this.#orderOf(block.level);
    if (!order.has(block)) this.delete(block); // from the level that it had
    order.set(block);
  }

  delete(block: StoredBlock): void {
    const level = this.#levels.find(({ order }) => order.delete(block));
    if (level !== undefined) this.#forgetIfEmpty(level);
  }

  /** Takes out the block that goes first of those up to a level that `skips` does not say so of; undefined: none. */
  take(skips: (block: StoredBlock) => boolean, mostLevel: number): StoredBlock | undefined {
    for (const level of this.#levels) {
      if (level.level > mostLevel) break;
      const block = level.order.take(skips);
      if (block === undefined) continue;
      this.#forgetIfEmpty(level);
      return block;
    }
    return undefined;
  }

  /** Whether a block is worth more than some block that is there. */
  isAboveLowest(block: StoredBlock): boolean {
    const [lowest] = this.#levels;
    if (lowest === undefined || block.level !== lowest.level) {
      return lowest !== undefined && block.level > lowest.level;
    }
    return lowest.order.isAboveLowest?.(block) ?? false;
  }

  /** Ranks all blocks anew, where what they are worth changes by itself. */
  refresh(): void {
    for (const { order } of this.#levels) order.refresh?.();
  }

  #orderOf(name: number): BlockOrder {
    const place = this.#levels.findIndex(({ level }) => level >= name);
    const found = this.#levels[place];
    if (found?.level === name) return found.order;
    const order = this.#makeOrder();
    this.#levels.splice(place < 0 ? this.#levels.length : place, 0, { level: name, order });
    return order;
  }

  #forgetIfEmpty(level: Level): void {
    if (level.order.size === 0) this.#levels.splice(this.#levels.indexOf(level), 1);
  }
}

// ReuseOrder: which block of a tier goes first: the one that is least likely to be used again (TextReuse). Blocks are
// in a list for each class of text, the one used longest ago first; within a class worth may fall or rise with age, so
// the two ends of each list are compared and nothing else, as the eviction policy `adaptive` does.

export class ReuseOrder implements BlockOrder {
  readonly #reuse: TextReuse;
  readonly #lists = new NodeLists(textClasses);
  readonly #numbers = new Map<StoredBlock, number>();
  readonly #blocks: (StoredBlock | undefined)[] = [];
  readonly #free: number[] = [];

  constructor(reuse: TextReuse) {
    this.#reuse = reuse;
  }

  get size(): number {
    return this.#numbers.size;
  }

  has(block: StoredBlock): boolean {
    return this.#numbers.has(block);
  }

  /** Adds a block as the one used last, or makes it that. Of a text's blocks the last one comes first. */
  set(block: StoredBlock): void {
    let number = this.#numbers.get(block);
    if (number === undefined) {
      number = this.#free.pop() ?? this.#blocks.length;
      this.#numbers.set(block, number);
      this.#blocks[number] = block;
    } else {
      this.#lists.remove(number);
    }
    this.#lists.add(number, this.#reuse.classOf(block));
  }

  delete(block: StoredBlock): boolean {
    const number = this.#numbers.get(block);
    if (number === undefined) return false;
    this.#lists.remove(number);
    this.#blocks[number] = undefined;
    this.#free.push(number);
    return this.#numbers.delete(block);
  }

  /**
   * Takes out the block that goes first of those with none behind them here that `skips` does not say so of; undefined:
   * none.
   */
  take(skips: (block: StoredBlock) => boolean): StoredBlock | undefined {
    const skipped: StoredBlock[] = [];
    let found: StoredBlock | undefined;
    for (let block = this.#least(); block !== undefined; block = this.#least()) {
      const end = this.#endOf(block);
      if (!skips(end)) {
        found = end;
        this.delete(end);
        break;
      }
      // what it hangs on stays, too
      for (let at: StoredBlock | undefined = end; at !== undefined && this.#isListed(at); at = at.parent) {
        skipped.push(at);
        this.#lists.remove(this.#numbers.get(at)!);
      }
    }
    for (const block of skipped) this.set(block); // they are read, or what comes goes on behind them: they are used now
    return found;
  }

  /** The block worth least that is in a list. */
  #least(): StoredBlock | undefined {
    let [least, worst] = [Infinity, -1];
    for (let list = 0; list < textClasses; list += 1) {
      const oldest = this.#lists.oldest(list);
      if (oldest < 0) continue;
      for (const number of [oldest, this.#lists.newest(list)]) {
        const value = this.#reuse.valueOf(this.#blocks[number]!, list);
        if (value >= least) continue;
        least = value;
        worst = number;
      }
    }
    return this.#blocks[worst];
  }

  /**
   * A block behind it that is in a list and has none behind it that is: what uses a block uses those before it, so it
   * is worth no more.
   */
  #endOf(block: StoredBlock): StoredBlock {
    for (let end = block; ;) {
      const next = end.children.find((child) => this.#isListed(child));
      if (next === undefined) return end;
      end = next;
    }
  }

  #isListed(block: StoredBlock): boolean {
    const number = this.#numbers.get(block);
    return number !== undefined && this.#lists.listOf(number) >= 0;
  }
}

// BlockRanking: which block of a tier goes first by score: what a use of it is worth × how often its text was used, the
// least first. Only blocks with none behind them in the tier are in it.

/** A block in the ranking. */
interface RankedBlock {
  readonly block: StoredBlock;
  /** Of equal scores the block that came first goes first. */
  readonly number: number;
  score: number;
  /** In the heap. */
  index: number;
}

export class BlockRanking implements BlockOrder {
  readonly #worthOf: (block: StoredBlock) => number;
  readonly #heap = new Heap<RankedBlock>(
    (a, b) => a.score - b.score || a.number - b.number, (ranked, index) => { ranked.index = index; });
  readonly #ranked = new Map<StoredBlock, RankedBlock>();
  #nextNumber = 0;

  /** @param worthOf What a use of the block is worth, 0 or more. */
  constructor(worthOf: (block: StoredBlock) => number) {
    this.#worthOf = worthOf;
  }

  get size(): number {
    return this.#ranked.size;
  }

  has(block: StoredBlock): boolean {
    return this.#ranked.has(block);
  }

  /** Adds a block, or ranks it anew. */
  set(block: StoredBlock): void {
    const ranked = this.#ranked.get(block);
    if (ranked !== undefined) {
      ranked.score = this.#scoreOf(block);
      this.#heap.update(ranked.index);
      return;
    }
    const made = { block, number: this.#nextNumber++, score: this.#scoreOf(block), index: 0 };
    this.#ranked.set(block, made);
    this.#heap.push(made);
  }

  delete(block: StoredBlock): boolean {
    const ranked = this.#ranked.get(block);
    if (ranked !== undefined) this.#heap.remove(ranked.index);
    return this.#ranked.delete(block);
  }

  /** Takes out the block that goes first of those that `skips` does not say so of; undefined: none. */
  take(skips: (block: StoredBlock) => boolean): StoredBlock | undefined {
    const skipped: RankedBlock[] = [];
    let first = this.#heap.shift();
    for (; first !== undefined && skips(first.block); first = this.#heap.shift()) skipped.push(first);
    for (const ranked of skipped) this.#heap.push(ranked);
    if (first !== undefined) this.#ranked.delete(first.block);
    return first?.block;
  }

  /** Whether a block scores more than some block that is there. */
  isAboveLowest(block: StoredBlock): boolean {
    const { first } = this.#heap;
    return first !== undefined && first.score < this.#scoreOf(block);
  }

  /** Ranks all blocks anew: their uses have changed. */
  refresh(): void {
    for (const block of this.#ranked.keys()) this.set(block);
  }

  #scoreOf(block: StoredBlock): number {
    return this.#worthOf(block) * block.uses;
  }
}

// TextReuse: which stored text is likely to be used again, learnt from what was, as the eviction policy `adaptive`
// learns it on the device: by the turn of the request that brought a text, how often it was used, and the latest
// request that used it. It learns of every finished text, stored or not. Tiers that keep what is likely to return share
// one of it.

/** What is known of a block's text. */
interface ReuseTraits {
  /** Finished texts that had it, those before it was stored last included, as far as they are remembered. */
  uses: number;
  /** Of the request that brought it. */
  readonly turn: Turn;
  /** Class of the latest request that used it. */
  ofRequest: number;
  /** Number of the latest finished text that had it. */
  lastUse: number;
}

export class TextReuse {
  readonly #rates = new ReuseRates();
  readonly #history: ReuseHistory;
  readonly #traits = new WeakMap<StoredBlock, ReuseTraits>();
  #finished = 0;

  /** @param hashSeed A number that clients cannot guess. */
  constructor(hashSeed: number) {
    this.#history = new ReuseHistory(this.#rates, hashSeed);
  }

  /** A text was finished that ends in `last`. Texts of different roots are different texts. */
  note(last: StoredBlock, text: Int32Array, request: ReleasedRequest): void {
    this.#finished += 1;
    let root = last;
    while (root.parent !== undefined) root = root.parent;
    const known = this.#history.note(Number.parseInt(root.key.slice(0, 8), 16), text, text.length, request);
    for (let block = last; block.parent !== undefined; block = block.parent) {
      const traits = this.#traits.get(block);
      if (traits === undefined) {
        const uses = known.tokens > block.from ? Math.max(1, known.uses) : 1;
        this.#traits.set(block, { uses, turn: known.turn, ofRequest: known.ofRequest, lastUse: this.#finished });
        continue;
      }
      traits.uses += 1;
      traits.ofRequest = known.ofRequest;
      traits.lastUse = this.#finished;
    }
  }

  /** The text up to the block's end was used by a request that goes on. */
  touch(last: StoredBlock): void {
    for (let block: StoredBlock | undefined = last; block !== undefined; block = block.parent) {
      const traits = this.#traits.get(block);
      if (traits !== undefined) traits.lastUse = this.#finished;
    }
  }

  /** The class of a block's text, 0 … textClasses − 1. */
  classOf(block: StoredBlock): number {
    const traits = this.#traits.get(block);
    return traits === undefined ? textClass(1, turns.first, 0) : textClass(traits.uses, traits.turn, traits.ofRequest);
  }

  /** What keeping a block of a class is worth now. */
  valueOf(block: StoredBlock, ofClass: number): number {
    return this.#rates.value(ofClass, this.#finished + 1 - (this.#traits.get(block)?.lastUse ?? 0));
  }
}
