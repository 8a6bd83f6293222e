// OpenTier: one tier at work for a cache: what it has, how full it is, how fast, and what it did. It makes room before
// it puts, and forgets what the tier lost. Calls of the tier that fail are refusals and misses.

import { setMaxListeners } from 'node:events';

import { EitherSignal } from '../base/either-signal.js';
import { RecentMap } from '../base/recent-map.js';
import type { HostMemory } from './host-memory.js';
import { Answers, LoadEstimate } from './load-estimate.js';
import type { StoredBlock, StoredTexts } from './stored-texts.js';
import {
  type BlockAbsence, readBorrowed, readGet, readPut, readRemoval, readStatistics, readTokensGet, TierCalls, TierCounts,
} from './tier-calls.js';
import { type BlockWorth, TierContents } from './tier-contents.js';
import {
  type BlockRecord, type BorrowedBlock, type GetMiss, isTierInUse, type PutRefusal, type Tier, type TierGet,
  type TierPut, type TierStatistics, type TierTokens, type TierTokensGet,
} from './tier.js';

/** A payload that can be loaded, until `release`. */
export interface Fetched {
  readonly payload: Uint8Array;
  readonly sums: Uint32Array;
  readonly from: OpenTier;
  release(): void;
}

/** Why there is none. `no-memory`: there is no room for the payload now. */
export interface Missed {
  readonly reason: GetMiss | 'no-memory';
}

/** What a tier is opened with, beside the tier. */
export interface OpenTierOptions {
  /** Its place among the tiers, the fastest first. */
  readonly number: number;
  readonly texts: StoredTexts;
  readonly worth: BlockWorth;
  /** Of a block. */
  readonly stripes: number;
  /** Hears of failures that no call reports. */
  readonly report: (error: unknown) => void;
}

export class OpenTier {
  readonly tier: Tier;
  readonly contents: TierContents;
  readonly estimate = new LoadEstimate();
  /** To what others have stored in it (`find`). */
  readonly finds = new Answers();
  /** Whether it could not say, when it was last asked, what others have stored in it. */
  isSilent = false;
  readonly counts = new TierCounts();
  readonly puts = new PutLimit();
  /** Every call that is waited for goes through it. */
  readonly calls = new TierCalls();
  /** Resolves when it has opened, or failed to; undefined: it was not told to open. */
  opened: Promise<void> | undefined;
  /** By block key: why it does not have a block that it had or was offered. */
  readonly absences = new RecentMap<BlockAbsence>(4096);
  state: 'opening' | 'open' | 'failed' | 'closed' = 'opening';
  /** Whether it works for another cache, which closes it. */
  #isAnothers = false;
  /** Whether it gave its statistics when it was last asked. */
  #hasStatistics = true;
  /** Ends what reads of it. */
  readonly #ending = new AbortController();
  readonly #texts: StoredTexts;
  readonly #stripes: number;
  readonly #report: (error: unknown) => void;
  /** Puts that are not over, each of a block, and whether that may still be found. */
  readonly #underWay = new Map<Promise<boolean>, { readonly block: StoredBlock; readonly isWanted: () => boolean }>();
  /** Blocks that came when they were not wanted any more, and of whose removal the store took no note. */
  readonly #unremoved = new WeakSet<StoredBlock>();
  /** Keys of each removal that is under way, and when it is over. */
  readonly #leaving = new Map<ReadonlySet<string>, Promise<boolean>>();
  /** For each question of `find` that is under way the same, and those of removals that began since. */
  readonly #finding = new Set<ReadonlySet<string>[]>();
  /** By block, the sums that it was stored with here. */
  readonly #sums = new WeakMap<StoredBlock, Uint32Array>();

  constructor(tier: Tier, { number, texts, worth, stripes, report }: OpenTierOptions) {
    this.tier = tier;
    this.contents = new TierContents(tier, number, texts, worth);
    this.#texts = texts;
    this.#stripes = stripes;
    this.#report = report;
    setMaxListeners(0, this.#ending.signal); // one for each block that is being read
  }

  /** The tier has a block of so many bytes, which was stored with these sums, unless it had it before. */
  add(block: StoredBlock, bytes: number, sums: Uint32Array): void {
    if (this.contents.has(block)) return;
    this.#sums.set(block, sums);
    this.contents.add(block, bytes);
  }

  /** Whether it is in service and has the block. */
  has(block: StoredBlock): boolean {
    return this.state === 'open' && this.contents.has(block);
  }

  /**
   * Puts a block, after making room for it; resolves when the tier is done with the payload: whether it was put, and a
   * payload that the tier lent is its own again. `isWanted`: whether it may still be found, asked again whenever time
   * has passed.
   */
  async put(block: StoredBlock, record: BlockRecord, payload: Uint8Array, isWanted: () => boolean): Promise<boolean> {
    const isStillWanted = (): boolean => isWanted() && !block.isDropped;
    const over = this.#put(block, record, payload, isStillWanted);
    this.#underWay.set(over, { block, isWanted: isStillWanted });
    try {
      return await over;
    } finally {
      this.#underWay.delete(over);
    }
  }

  async #put(block: StoredBlock, record: BlockRecord, payload: Uint8Array, isWanted: () => boolean): Promise<boolean> {
    const { contents, contents: { tenants }, tier, counts } = this;
    block.pins += 1;
    // What is leaving would be taken for what comes.
    for (let over = this.#leavingAs(block.key); over !== undefined; over = this.#leavingAs(block.key)) {
      if (!isWanted()) break; // then it may be this put itself
      await over;
    }
    await this.puts.begin();
    let size = 0;
    let isPut = false;
    try {
      if (!isWanted() || contents.has(block)) return false;
      if (this.state !== 'open') {
        this.#refused(block, 'failed');
        return false;
      }
      size = contents.sizeOf(record.bytes);
      tenants?.coming(block, size);
      const evicted = contents.makeRoom(record.bytes, block, true);
      const isWithinBound = contents.tenantExcess(block, 0) === 0; // what others bring next to it makes room for itself
      await this.#drop(evicted);
      if (!isWanted()) return false;
      const isFull = !isWithinBound || !contents.takes(block, record.bytes);
      if (isFull || this.#leavingAs(block.key) !== undefined) {
        this.#refused(block, isFull ? 'full' : 'busy');
        return false;
      }
      const beganMs = performance.now();
      const store =
        async (): Promise<TierPut> => readPut(await this.calls.track(tier.put(record, payload)), tier.name, 'put');
      let put = await store();
      if (!put.isStored && put.reason === 'full' && this.#isOpen) {
        await this.#drop(contents.evictFor(block, size));
        put = await store();
      }
      isPut = put.isStored;
      if (!this.#isOpen) return isPut; // what it answers is of no use any more
      if (put.isStored && !isWanted()) {
        if (!await this.#remove([block.key])) this.#unremoved.add(block);
      } else if (put.isStored) {
        this.add(block, record.bytes, record.sums);
        counts.putTimes.observe(performance.now() - beganMs);
        counts.storedBlocks += 1;
        counts.storedBytes += record.bytes;
        if (block.level !== record.level) this.setLevel(block.key, block.level);
        this.#supersede(block);
      } else {
        this.#refused(block, put.reason);
        if (put.error !== undefined) this.#report(put.error);
      }
    } catch (error) { // a tier of the user's that throws
      this.#refused(block, 'failed');
      this.#report(error);
    } finally {
      this.puts.end();
      tenants?.arrived(block, size);
      block.pins -= 1;
      this.#texts.prune(block);
    }
    return isPut;
  }

  /** The block's payload: the tier's own, or its copy in memory of `scratch`. */
  fetch(
    block: StoredBlock, bytes: number, scratch: HostMemory, signal: AbortSignal | undefined,
  ): Promise<Fetched | Missed> {
    return this.tier.borrow === undefined ? this.#get(block, bytes, scratch, signal)
      : Promise.resolve(this.borrow(block, bytes));
  }

  /** The block's payload in the tier's own memory; a tier that lends none has none there. */
  borrow(block: StoredBlock, bytes: number): Fetched | Missed {
    let borrowed: BorrowedBlock | undefined;
    try {
      borrowed = readBorrowed(this.tier.borrow?.(block.key), this.tier.name, bytes, this.#stripes);
    } catch (error) { // a tier of the user's that throws
      this.#report(error);
      return { reason: 'failed' };
    }
    if (borrowed === undefined) {
      if (this.tier.borrow !== undefined) this.#lose(block, 'lost');
      return { reason: 'absent' };
    }
    const release = (): void => this.#atOnce(() => borrowed.release());
    if (!this.#isStored(block, borrowed.sums)) {
      release();
      this.damaged(block);
      return { reason: 'corrupt' };
    }
    this.contents.beginReading(block);
    let isOver = false;
    return {
      payload: borrowed.payload, sums: borrowed.sums, from: this,
      release: () => {
        if (isOver) return;
        isOver = true;
        this.contents.endReading(block);
        release();
      },
    };
  }

  /** Whether others may have stored blocks in it that are not known here. */
  get canFind(): boolean {
    return this.state === 'open' && this.tier.find !== undefined;
  }

  /**
   * How many of these blocks the tier has, from the first on, which others may have stored; undefined: it cannot say.
   * Does not reject.
   */
  async find(keys: readonly string[], signal: AbortSignal): Promise<number | undefined> {
    const either = new EitherSignal(this.#ending.signal, signal);
    const leaving = [...this.#leaving.keys()];
    this.#finding.add(leaving);
    try {
      const found: number | null | undefined = await this.tier.find?.(keys, either.signal);
      if (found === undefined || found === null) {
        this.isSilent ||= !signal.aborted; // who asked may have taken the question back
        return undefined;
      }
      this.isSilent = false;
      const stays = keys.slice(0, Math.max(0, Math.floor(found) || 0));
      const gone = stays.findIndex((key) =>
        leaving.some((keys) => keys.has(key)) || this.#leavingAs(key) !== undefined);
      return gone < 0 ? stays.length : gone;
    } catch (error) { // a tier of the user's that throws
      this.#report(error);
      this.isSilent = true;
      return undefined;
    } finally {
      either.forget();
      this.#finding.delete(leaving);
    }
  }

  /** Removes what is too much once a payload of so many bytes comes. */
  async makeRoom(bytes: number, coming: StoredBlock): Promise<void> {
    await this.#drop(this.contents.makeRoom(bytes, coming));
  }

  /** Drops blocks, which are found there no more. */
  forget(blocks: readonly StoredBlock[]): void {
    for (const block of blocks) this.contents.remove(block);
    void this.#remove(blocks.map(({ key }) => key));
  }

  /**
   * Drops blocks that are in no text any more, and what is stored under `keys` besides, though it is not known here.
   * Resolves when nothing of it is on its way there either: false: its store has not taken note of that, or is out of
   * service.
   */
  async drop(blocks: readonly StoredBlock[], keys: readonly string[]): Promise<boolean> {
    const known = blocks.filter((block) => this.contents.has(block));
    for (const block of known) this.contents.remove(block);
    const dropped = new Set(blocks);
    const coming = [...this.#underWay].filter(([, { block }]) => dropped.has(block)).map(([over]) => over);
    const gone = [...new Set([...(this.tier.find === undefined ? known : blocks).map(({ key }) => key), ...keys])];
    const hasNone = gone.length === 0 && coming.length === 0;
    if (!this.#isOpen) return hasNone && this.state !== 'failed';
    const [isRemoved] = await Promise.all([hasNone ? this.#removeNow([]) : this.#remove(gone), ...coming]);
    return isRemoved && !blocks.some((block) => this.#unremoved.has(block));
  }

  /** Drops all that it has, and what is on its way there; a store that others share keeps what it has. */
  clear(): void {
    this.absences.clear();
    const blocks = [...this.contents.blocks()];
    if (this.tier.find === undefined) this.forget(blocks);
    else for (const block of blocks) this.contents.remove(block);
  }

  /** What came from it was not what was stored. */
  damaged(block: StoredBlock): void {
    this.counts.damaged += 1;
    this.#lose(block, 'corrupt');
  }

  /** The tier says that it no longer has the block. */
  lose(key: string): void {
    const block = this.#texts.find(key);
    if (block === undefined) return;
    this.contents.remove(block);
    this.absences.set(key, 'lost');
  }

  /** Tells it that what reads of it is not wanted any more. */
  cancelReads(): void {
    this.#ending.abort();
  }

  /**
   * Puts under way of what is not wanted any more. Each removes its block at its end, where the tier is not closed yet:
   * a store that lasts would have it again.
   */
  get unwanted(): Promise<boolean>[] {
    return [...this.#underWay].filter(([, { isWanted }]) => !isWanted()).map(([over]) => over);
  }

  /** It could not be opened. */
  failed(error: unknown): void {
    this.state = 'failed';
    this.#isAnothers = isTierInUse(error);
  }

  /** Ends it once it has opened. Rejects with what a tier of the user's throws. */
  async close(): Promise<void> {
    this.cancelReads();
    this.state = 'closed';
    await this.opened;
    if (!this.#isAnothers) await this.calls.track(this.tier.close());
  }

  // What a tier answers at once. What one of the user's throws is reported, and the call counts as not answered.

  /** Its own numbers; undefined: it gave none. That is counted, and the first of several failures is reported. */
  statistics(): TierStatistics | undefined {
    try {
      const statistics = readStatistics(this.tier.statistics(), this.tier.name);
      this.#hasStatistics = true;
      return statistics;
    } catch (error) {
      this.counts.failedStatistics += 1;
      if (this.#hasStatistics) this.#report(error);
      this.#hasStatistics = false;
      return undefined;
    }
  }

  /** Memory of the tier in which a payload can be made; undefined: it lends none now. */
  lend(bytes: number): Uint8Array | undefined {
    return this.#atOnce(() => this.tier.lend?.(bytes));
  }

  /** Gives back memory that it lent and has not put. */
  giveBack(payload: Uint8Array): void {
    this.#atOnce(() => this.tier.giveBack?.(payload));
  }

  /** Tells it the level of a block that it has. */
  setLevel(key: string, level: number): void {
    this.#atOnce(() => this.tier.setLevel?.(key, level));
  }

  #atOnce<T>(call: () => T): T | undefined {
    try {
      const answer = call();
      if (answer instanceof Promise) answer.catch(this.#report); // of an async method: the cache uses no answer of it
      return answer;
    } catch (error) {
      this.#report(error);
      return undefined;
    }
  }

  get #isOpen(): boolean {
    return this.state === 'open';
  }

  /** The end of a shorter text that a longer one has whole is of no further use. */
  #supersede(block: StoredBlock): void {
    const shorter = this.#texts.startOf(block);
    if (shorter === undefined || shorter.children.length > 0 || !this.contents.has(shorter)
      || this.contents.isRead(shorter)) return;
    this.#texts.raise(block, shorter.level);
    this.contents.use(block);
    this.forget([shorter]);
  }

  async #get(
    block: StoredBlock, bytes: number, scratch: HostMemory, signal: AbortSignal | undefined,
  ): Promise<Fetched | Missed> {
    const { contents, counts } = this;
    const payload = scratch.take(bytes);
    if (payload === undefined) return { reason: 'no-memory' };
    contents.beginReading(block);
    const beganMs = performance.now();
    const either = new EitherSignal(this.#ending.signal, signal);
    let got: TierGet;
    try {
      got = readGet(
        await this.calls.track(this.tier.get(block.key, payload, either.signal)), this.tier.name, this.#stripes);
    } catch (error) { // a tier of the user's that throws
      got = { isFound: false, reason: 'failed', error };
    } finally {
      either.forget();
      contents.endReading(block);
    }
    if (got.isFound
      && (!this.#isStored(block, got.sums) || (got.record !== undefined && got.record.key !== block.key))) {
      scratch.give(payload);
      this.damaged(block); // another block's
      return { reason: 'corrupt' };
    }
    if (got.isFound) {
      counts.getTimes.observe(performance.now() - beganMs);
      counts.loadedBytes += bytes;
      return { payload, sums: got.sums, from: this, release: () => { scratch.give(payload); } };
    }
    scratch.give(payload);
    this.#missed(block, got);
    return { reason: got.reason };
  }

  /** Rows of tokens of the block, which the tier checks. */
  async getTokens(
    block: StoredBlock, parts: readonly TierTokens[], into: Uint8Array, signal: AbortSignal,
  ): Promise<TierTokensGet> {
    this.contents.beginReading(block);
    let got: TierTokensGet;
    try {
      got = readTokensGet(await this.tier.getTokens!(block.key, parts, into, signal), this.tier.name);
    } catch (error) { // a tier of the user's that throws
      got = { isFound: false, reason: 'failed', error, readBytes: 0, chunks: 0 };
    } finally {
      this.contents.endReading(block);
    }
    if (!got.isFound) this.#missed(block, got);
    return got;
  }

  #missed(block: StoredBlock, { reason, error }: { readonly reason: GetMiss; readonly error?: unknown }): void {
    this.counts.misses[reason] += 1;
    if (error !== undefined) this.#report(error);
    if (reason === 'absent') this.#lose(block, 'lost');
    if (reason === 'corrupt') this.damaged(block);
  }

  /**
   * Whether these are the sums that the block was stored with; of a store that others share, where it may have been
   * stored anew, any are.
   */
  #isStored(block: StoredBlock, sums: Uint32Array): boolean {
    const known = this.tier.find === undefined ? this.#sums.get(block) : undefined;
    return known === undefined || known.every((sum, stripe) => sum === sums[stripe]);
  }

  /** The tier has to remove these, which its contents have let go of. */
  async #drop(evicted: readonly StoredBlock[]): Promise<void> {
    this.counts.evicted += evicted.length;
    for (const { key } of evicted) this.absences.set(key, 'evicted');
    await this.#remove(evicted.map(({ key }) => key));
  }

  #refused(block: StoredBlock, reason: PutRefusal): void {
    this.counts.refusals[reason] += 1;
    this.absences.set(block.key, reason);
  }

  #lose(block: StoredBlock, reason: BlockAbsence): void {
    this.absences.set(block.key, reason);
    this.forget([block]);
  }

  /** Does not reject. False: its store has not taken note of that. */
  #remove(keys: readonly string[]): Promise<boolean> {
    if (keys.length === 0) return Promise.resolve(true);
    const leaving = new Set(keys);
    const over = this.#removeNow(keys).finally(() => { this.#leaving.delete(leaving); });
    this.#leaving.set(leaving, over);
    for (const finding of this.#finding) finding.push(leaving);
    return over;
  }

  async #removeNow(keys: readonly string[]): Promise<boolean> {
    try {
      const { isRemoved, error } = readRemoval(await this.calls.track<unknown>(this.tier.remove(keys)));
      if (error !== undefined) this.#report(error);
      return isRemoved;
    } catch (error) { // a tier of the user's that throws
      this.#report(error);
      return false;
    }
  }

  /**
   * When a removal of this key is over, or a put of it that is not wanted any more; undefined: none is under way.
   */
  #leavingAs(key: string): Promise<unknown> | undefined {
    for (const [keys, over] of this.#leaving) if (keys.has(key)) return over;
    for (const [over, { block, isWanted }] of this.#underWay) if (block.key === key && !isWanted()) return over;
    return undefined;
  }
}

// PutLimit: so many puts of a tier are under way at most; others wait until one is over, so that a tier which writes
// slowly has its writers wait.

/** Puts that are under way at most. */
const mostPuts = 16;

export class PutLimit {
  #puts = 0;
  readonly #waiting: (() => void)[] = [];

  /** Resolves when one more may be under way. */
  async room(): Promise<void> {
    while (this.#puts >= mostPuts) await this.#over();
  }

  /** Resolves when none is under way. */
  async idle(): Promise<void> {
    while (this.#puts > 0) await this.#over();
  }

  /** Resolves when one more is under way, until `end`. */
  async begin(): Promise<void> {
    while (this.#puts >= mostPuts) await this.#over();
    this.#puts += 1; // at once: of those that wait together only one has looked
  }

  end(): void {
    this.#puts -= 1;
    for (const wake of this.#waiting.splice(0)) wake(); // each looks again
  }

  #over(): Promise<void> {
    return new Promise((resolve) => { this.#waiting.push(resolve); });
  }
}
