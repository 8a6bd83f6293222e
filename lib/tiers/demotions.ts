// Demotions: store finished text in the tiers that want it, block by block, in the background: later it can be evicted
// without loss and without a copy. One text at a time, each read through a transfer; what a tier has in memory goes on
// to slower ones from there.

import type { TextKeeper } from '../cache/cached-rows.js';
import type { KnownTokens } from '../cache/sequence-tokens.js';
import type { SlotMemory } from '../cache/slots.js';
import type { PrefixDomain, TextScope } from '../prefix/domain.js';
import type { ReleasedRequest } from '../prefix/eviction/eviction-policy.js';
import type { PrefixIndex } from '../prefix/prefix-index.js';
import type { OpenTier } from './open-tier.js';
import type { StoredBlock } from './stored-texts.js';
import type { TierSet } from './tier-set.js';
import type { Transfer, Transfers } from './transfers.js';

/** Texts that are tried again, at most. */
const mostPostponed = 256;

/** A block of a text that some tier wants. */
interface WantedBlock {
  readonly block: StoredBlock;
  readonly wanting: OpenTier[];
}

export class Demotions {
  readonly #memory: SlotMemory;
  readonly #tiers: TierSet;
  readonly #transfers: Transfers;
  readonly #finished: FinishedTexts;
  readonly #index: PrefixIndex;
  /**
   * Texts that could not be read, for queued work or want of room, and are still cached: tried again with the next one.
   */
  #postponed: FinishedText[] = [];
  #running: Promise<void> | undefined;
  /** Texts are stored after it: a tier that is still opening would not get them. */
  #opened: Promise<unknown> = Promise.resolve();
  #isOver = false;
  /** 1: a text is being stored. */
  #underWay = 0;
  /** Texts of which some tier wanted a part that was evicted before it could be read. */
  #unstored = 0;

  constructor(memory: SlotMemory, index: PrefixIndex, tiers: TierSet, transfers: Transfers, finished: FinishedTexts) {
    this.#memory = memory;
    this.#index = index;
    this.#tiers = tiers;
    this.#transfers = transfers;
    this.#finished = finished;
    finished.listen(() => {
      this.#wake();
    });
  }

  /** Stores texts once `opened` is over, which does not reject. Called before the first text is finished. */
  startAfter(opened: Promise<unknown>): void {
    this.#opened = opened;
  }

  /** Finished texts that wait to be stored, those to be tried again among them. */
  get waiting(): number {
    return this.#finished.count + this.#postponed.length;
  }

  /** Texts that were not stored: too many waited, or a part was evicted before it could be read. */
  get dropped(): number {
    return this.#finished.dropped + this.#unstored;
  }

  /** Finished texts that have not been stored, or are being, as far as tiers want them. */
  get unfinished(): number {
    return this.waiting + this.#underWay;
  }

  /**
   * Resolves when every finished text has been offered to the tiers, as far as it can be read: what was interrupted is
   * read again.
   */
  async settled(): Promise<void> {
    await this.#quiet();
    for (;;) {
      const [waiting, interrupted] = [this.waiting, this.#transfers.interrupted];
      if (waiting === 0 || this.#isOver) return;
      this.#wake();
      await this.#quiet();
      if (this.waiting >= waiting && this.#transfers.interrupted === interrupted) return;
    }
  }

  async #quiet(): Promise<void> {
    while (this.#running !== undefined) await this.#running;
  }

  /** Forgets what waits. */
  clear(): void {
    this.#postponed = [];
    this.#finished.clear();
  }

  /** Forgets what waits of text that is dropped. What of it is being stored is seen to by its blocks. */
  drop(scope: TextScope): void {
    this.#postponed = this.#postponed.filter(({ domain, text }) => !scope.covers(domain, text));
    this.#finished.drop(scope);
  }

  /** Stores nothing any more: what waits is dropped. */
  stop(): void {
    if (this.#isOver) return;
    this.#isOver = true;
    this.#unstored += this.waiting;
    this.#postponed = [];
    this.#finished.listen(undefined);
  }

  #wake(): void {
    if (this.#running !== undefined || this.#isOver) return;
    // Not in the middle of the release that brought the text.
    this.#running = this.#opened.then(() => this.#run()).finally(() => {
      this.#running = undefined;
      if (this.#finished.count > 0) this.#wake();
    });
  }

  async #run(): Promise<void> {
    for (let left = this.#postponed.length; left > 0; left -= 1) {
      const finished = this.#postponed.shift(); // those that are put back go to the end
      if (finished !== undefined) await this.#storeOrPostpone(finished);
    }
    for (let finished = this.#finished.take(); finished !== undefined; finished = this.#finished.take()) {
      await this.#storeOrPostpone(finished);
    }
  }

  async #storeOrPostpone(finished: FinishedText): Promise<void> {
    this.#underWay += 1;
    try {
      const { clears } = this.#tiers;
      const { domain, text } = finished;
      if (await this.#store(finished) || this.#tiers.clears !== clears) return;
      if (this.#isOver || this.#index.match(domain, text, text.length).tokens < text.length) this.#unstored += 1;
      else if (this.#postponed.length < mostPostponed) this.#postponed.push(finished);
      else this.#unstored += 1;
    } catch (error) {
      this.#unstored += 1;
      this.#memory.background.report(error);
    } finally {
      this.#underWay -= 1;
    }
  }

  /** False: it could not be read to its end. */
  async #store(finished: FinishedText): Promise<boolean> {
    const { clears } = this.#tiers; // what was begun before another is not stored
    const blocks = this.#blocksOf(finished);
    try {
      const wanted = blocks.map((block): WantedBlock => ({ block, wanting: this.#wanting(block) }))
        .filter(({ wanting }) => wanting.length > 0);
      if (wanted.length === 0) return true;
      let transfer: Transfer | undefined;
      try {
        for (const { block, wanting } of wanted) {
          if (this.#isOver || this.#tiers.clears !== clears) return false;
          if (block.isDropped) return true;
          if (this.#isInMemory(block)) {
            await this.#tiers.spread(block, wanting);
            continue;
          }
          const { domain, text } = finished;
          transfer ??= this.#transfers.open({ domain, text, priority: 0 }, wanted.at(-1)!.block.to, false);
          if (transfer === undefined || transfer.isOver || transfer.cachedTokens < block.to) return false;
          if (!await this.#storeBlock(transfer, block, wanting, clears)) return false;
        }
        return true;
      } finally {
        if (transfer !== undefined) this.#transfers.close(transfer);
      }
    } finally {
      for (const block of blocks) block.pins -= 1;
      for (const block of blocks.reverse()) this.#tiers.texts.prune(block);
    }
  }

  async #storeBlock(transfer: Transfer, block: StoredBlock, wanting: OpenTier[], clears: number): Promise<boolean> {
    const lent = await this.#tiers.lend(block, wanting);
    if (lent === undefined) return false;
    let sums: Uint32Array | undefined;
    try {
      sums = await this.#transfers.store(transfer, lent.payload, block.from, block.tokens.length);
    } finally {
      if (sums === undefined) this.#tiers.giveBack(lent);
    }
    if (sums === undefined) return false;
    await this.#tiers.store(block, lent, sums, wanting, clears);
    return true;
  }

  /** The blocks of a text, the last of which may be short, each kept in the tree until the text is done with. */
  #blocksOf({ domain, text, request, level }: FinishedText): StoredBlock[] {
    const { texts, keys, sightings } = this.#tiers;
    const blocks: StoredBlock[] = [];
    let parent = this.#tiers.rootFor(domain);
    for (let at = 0; at < text.length; at += keys.blockTokens) {
      const count = Math.min(keys.blockTokens, text.length - at);
      const key = keys.key(parent.key, text, at, count, this.#tiers.names);
      const block = texts.add(parent, key, text.slice(at, at + count));
      block.pins += 1;
      blocks.push(block);
      sightings.set(key, (sightings.get(key) ?? 0) + 1);
      parent = block;
    }
    this.#tiers.finish(parent, text, request, level);
    return blocks;
  }

  #wanting(block: StoredBlock): OpenTier[] {
    return this.#tiers.wanting(block, block.tokens.length, this.#tiers.sightings.get(block.key) ?? 0);
  }

  #isInMemory(block: StoredBlock): boolean {
    return this.#tiers.all.some((open) => open.tier.borrow !== undefined && open.has(block));
  }
}

// FinishedTexts: text that was computed and whose sequence is over, waiting to be stored in tiers. Bounded in tokens:
// first the texts are dropped whose prompts found nothing, which return least (a prompt that found something goes on
// with a text that has returned), those that wait longest first; and counted. Without tiers nothing is kept.

/** What a sequence has left in the cache. */
export interface FinishedText {
  readonly domain: PrefixDomain;
  readonly text: Int32Array;
  readonly request: ReleasedRequest;
  /** Priority level of the request. */
  readonly level: number;
}

export class FinishedTexts implements TextKeeper {
  readonly #waiting: FinishedText[] = [];
  #tokens = 0;
  #listener: (() => void) | undefined;
  readonly #mostTokens: number;
  /** Texts that were dropped, so far. Read only. */
  dropped = 0;

  /** @param mostTokens Tokens that wait at most. */
  constructor(mostTokens = 2 ** 22) {
    this.#mostTokens = mostTokens;
  }

  get count(): number {
    return this.#waiting.length;
  }

  /** `listener` hears when there is a text, and takes it when it likes. Undefined: texts are dropped from now on. */
  listen(listener: (() => void) | undefined): void {
    this.#listener = listener;
    if (listener === undefined) this.clear();
  }

  /** A sequence is over; `known`: what is known of its text. Transfers and what is not to be cached leave none. */
  note(known: KnownTokens | undefined, index: PrefixIndex): void {
    if (this.#listener === undefined || known === undefined) return;
    const { path, buffer } = known;
    if (!path.isStored || path.isTransfer || path.length === 0) return;
    const { length, promptTokens = length, sharedTokens } = path;
    const request = {
      promptTokens, newTokens: Math.max(0, promptTokens - sharedTokens),
      answerTokens: Math.max(0, length - promptTokens),
    };
    this.#waiting.push({ domain: index.domainOf(path), text: buffer.slice(0, length), request, level: path.level });
    this.#tokens += path.length;
    while (this.#tokens > this.#mostTokens && this.#waiting.length > 1) this.#dropLeast();
    this.#listener();
  }

  #dropLeast(): void {
    const least = this.#waiting.findIndex(({ request }) => request.newTokens === request.promptTokens);
    const [dropped] = this.#waiting.splice(Math.max(0, least), 1);
    this.#tokens -= dropped!.text.length;
    this.dropped += 1;
  }

  /** Forgets those that are dropped. */
  drop(scope: TextScope): void {
    const kept = this.#waiting.filter(({ domain, text }) => !scope.covers(domain, text));
    this.clear();
    this.#waiting.push(...kept);
    this.#tokens = kept.reduce((sum, { text }) => sum + text.length, 0);
  }

  /** Forgets all of them. */
  clear(): void {
    this.#waiting.length = 0;
    this.#tokens = 0;
  }

  /** The one that waits longest. */
  take(): FinishedText | undefined {
    const finished = this.#waiting.shift();
    if (finished !== undefined) this.#tokens -= finished.text.length;
    return finished;
  }
}
