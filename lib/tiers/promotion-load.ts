// PromotionLoads: bring the blocks of one text from their tiers to the device, in their order, some of them at a time.
// A load ends where a tier answers later than it used to, or brings what is left more slowly than the engine computes
// it; the reads go on then, and measure the tier.

import { setMaxListeners } from 'node:events';

import { measureReads } from './left-reads.js';
import {
  FreeTime, type LoadClock, type LoadEstimate, type PrefillRate, readsAtATime, type TimedBytes,
} from './load-estimate.js';
import type { Fetched, Missed, OpenTier } from './open-tier.js';
import type { Promotion, PromotionEnd, PromotionRequest } from './promotion.js';
import type { StoredBlock } from './stored-texts.js';
import type { TierSet } from './tier-set.js';
import type { BlockPart, Load, Loaded, Transfer, Transfers } from './transfers.js';

/**
 * Loads of a promotion whose copies are queued at the same time: the second keeps the copying threads at work while
 * this one commits the first.
 */
const mostLoads = 2;

/** What a promotion's parts share: the request, and what ends it. */
export interface Attempt extends PromotionRequest {
  readonly limit: AbortController;
  readonly loadDeadline: LoadDeadline;
  /** Resolves when `limit` is reached. */
  readonly over: Promise<void>;
}

/** Blocks that are to be brought. */
export interface WantedBlocks {
  readonly blocks: readonly StoredBlock[];
  /** Tokens up to where they agree with the text. */
  readonly tokens: number;
  /** A tier that is likely to be too slow, and is tried all the same. */
  readonly tried: OpenTier | undefined;
}

/** What came. */
export type BroughtText = Pick<Promotion, 'promotedTokens' | 'promotedFrom' | 'end'>;

/** Blocks that are being loaded: how many, and how many were in the end; `end`: `complete` where going on may help. */
interface BlocksLoad {
  readonly blocks: number;
  readonly loaded: Promise<{ readonly blocks: number; readonly end: PromotionEnd }>;
}

export class PromotionLoads {
  readonly #tiers: TierSet;
  readonly #transfers: Transfers;
  readonly #prefill: PrefillRate;

  constructor(tiers: TierSet, transfers: Transfers, prefill: PrefillRate) {
    this.#tiers = tiers;
    this.#transfers = transfers;
    this.#prefill = prefill;
  }

  /** Brings these blocks, as far as that is worth it. `noteArrival` is called when some of them have. */
  async load(attempt: Attempt, wanted: WantedBlocks, clock: LoadClock, noteArrival: () => void): Promise<BroughtText> {
    const { domain, text, priority } = attempt;
    const transfer = this.#transfers.open({ domain, text, priority }, wanted.tokens, true);
    if (transfer === undefined) return { promotedTokens: 0, promotedFrom: {}, end: 'no-memory' };
    return new TextLoad(this.#tiers, this.#transfers, this.#prefill, { attempt, wanted, transfer, clock, noteArrival })
      .run();
  }
}

/** What a text's load is about. */
interface TextLoadOptions {
  readonly attempt: Attempt;
  readonly wanted: WantedBlocks;
  readonly transfer: Transfer;
  readonly clock: LoadClock;
  readonly noteArrival: () => void;
}

/** The load of one text. */
class TextLoad {
  readonly #tiers: TierSet;
  readonly #transfers: Transfers;
  readonly #prefill: PrefillRate;
  readonly #options: TextLoadOptions;
  readonly #blocks: readonly StoredBlock[];
  readonly #fetches: FetchQueue;
  readonly #progress: Progress;
  /** By tier, the bytes that are likely to come from it. */
  readonly #planned: ReadonlyMap<OpenTier, number>;
  /** Of these, what is not on the device yet. */
  readonly #left: Map<OpenTier, number>;
  readonly #underWay: BlocksLoad[] = [];
  /** Blocks whose load has begun, and that are on the device. */
  #begun = 0;
  #done = 0;
  #end: PromotionEnd = 'complete';

  constructor(tiers: TierSet, transfers: Transfers, prefill: PrefillRate, options: TextLoadOptions) {
    const { attempt: { limit: { signal }, over }, wanted: { blocks, tokens }, transfer, clock } = options;
    this.#tiers = tiers;
    this.#transfers = transfers;
    this.#prefill = prefill;
    this.#options = options;
    this.#blocks = blocks.filter(({ to }) => Math.min(to, tokens) > transfer.cachedTokens);
    this.#progress = new Progress(transfer.cachedTokens, clock);
    const reads = new AbortController();
    setMaxListeners(0, reads.signal); // one for each block under way
    void over.then(() => { if (signal.reason !== 'recompute-cheaper') reads.abort(); });
    this.#fetches = new FetchQueue(this.#blocks, (block) => tiers.fetch(block, reads.signal));
    this.#planned = this.#bytesByTier();
    this.#left = new Map(this.#planned);
  }

  async run(): Promise<BroughtText> {
    const { wanted: { tried }, transfer, attempt: { priority, isPlacement } } = this.#options;
    try {
      for (;;) {
        if (this.#canBegin) { // the next ones are copied behind those under way, without a wait for this thread
          await this.#beginNext();
          continue;
        }
        const oldest = this.#underWay.shift();
        if (oldest === undefined) break;
        await this.#finish(oldest);
      }
    } finally {
      await Promise.allSettled(this.#underWay.map((load) => load.loaded));
      this.#progress.measure(tried);
      this.#fetches.releaseAll();
      this.#transfers.close(transfer);
    }
    const { tokens, from } = this.#progress;
    if (tokens > 0 && this.#done > 0 && isPlacement !== true) this.#tiers.use(this.#blocks[this.#done - 1]!, priority);
    return { promotedTokens: tokens - transfer.cachedTokens, promotedFrom: from, end: this.#end };
  }

  get #canBegin(): boolean {
    return this.#end === 'complete' && this.#begun < this.#blocks.length && this.#underWay.length < mostLoads
      && this.#underWay.at(-1)?.blocks !== 0;
  }

  /** How long computing what is not on the device would take. */
  get #computeMs(): number {
    return this.#prefill.milliseconds(this.#options.wanted.tokens - this.#progress.tokens);
  }

  /** Begins to load the next blocks that come, or ends where they come too late. */
  async #beginNext(): Promise<void> {
    const { attempt, attempt: { loadDeadline, limit: { signal }, over }, wanted: { tried } } = this.#options;
    const next = this.#blocks[this.#begun]!;
    const arriving = this.#fetches.next(this.#begun);
    const open = this.#tiers.sources().of(next);
    const loadMs = open?.estimate.milliseconds(this.#planned.get(open) ?? 0) ?? 0;
    loadDeadline.last(LoadDeadline.answerMs(attempt, open?.estimate, {
      loadMs, computeMs: this.#computeMs, isTrial: open !== undefined && open === tried,
    }));
    await Promise.race([arriving, over]);
    const waitedMs = loadDeadline.end();
    if (signal.aborted) {
      this.#end = signal.reason as PromotionEnd;
      this.#leave(open, this.#tiers.bytesOf(next.tokens.length));
      arriving.then(releaseEach, () => { /* a miss like any other */ });
      return;
    }
    const arrived = await arriving;
    if (!('reason' in arrived[0]!)) arrived[0]!.from.estimate.answered(waitedMs);
    const load = this.#begin(arrived);
    this.#begun += load.blocks;
    this.#underWay.push(load);
  }

  /** Its reads go on without it, where it has turned to computing, and tell how fast the tier is. */
  #leave(open: OpenTier | undefined, leastBytes: number): void {
    const { wanted: { tried }, clock } = this.#options;
    const { waitingMs } = this.#progress;
    if (open !== undefined && this.#end === 'recompute-cheaper') {
      measureReads(
        open, { waitedMs: waitingMs, leastBytes, reads: this.#fetches.underWay, isTrial: open === tried }, clock);
    } else if (open?.estimate.isMeasured === true && waitingMs > open.estimate.milliseconds(leastBytes)) {
      this.#progress.waited(open, leastBytes); // a request that ends sooner tells nothing
    }
  }

  /** Notes what the oldest load under way came to. */
  async #finish(oldest: BlocksLoad): Promise<void> {
    const { attempt: { isHint }, noteArrival } = this.#options;
    const loaded = await oldest.loaded;
    this.#done += loaded.blocks;
    if (loaded.blocks > 0) noteArrival();
    if (loaded.blocks < oldest.blocks) { // nothing behind it was loaded
      await Promise.all(this.#underWay.splice(0).map((load) => load.loaded));
      this.#begun = this.#done;
    }
    if (this.#end === 'complete') this.#end = loaded.end;
    if (this.#end === 'complete' && !isHint && this.#progress.msOf(this.#left) > this.#computeMs) {
      this.#end = 'recompute-cheaper';
    }
  }

  #bytesByTier(): Map<OpenTier, number> {
    const bytes = new Map<OpenTier, number>();
    const sources = this.#tiers.sources();
    for (const block of this.#blocks) {
      const open = sources.of(block);
      if (open !== undefined) bytes.set(open, (bytes.get(open) ?? 0) + this.#tiers.bytesOf(block.tokens.length));
    }
    return bytes;
  }

  /** Begins to load the next blocks, as far as they were fetched. */
  #begin(fetched: readonly FetchEnd[]): BlocksLoad {
    const { wanted: { tokens }, transfer } = this.#options;
    const blocks = this.#blocks.slice(this.#begun, this.#begun + fetched.length);
    const missed = fetched.findIndex((one) => 'reason' in one);
    const whole = (missed < 0 ? fetched : fetched.slice(0, missed)) as Fetched[];
    if (missed >= 0) releaseEach(fetched.slice(missed + 1)); // behind one that is missed
    if (whole.length === 0) {
      return { blocks: 0, loaded: Promise.resolve({ blocks: 0, end: missEnds[(fetched[0] as Missed).reason] }) };
    }
    const from = this.#begun === 0 ? transfer.cachedTokens : this.#blocks[this.#begun - 1]!.to;
    const parts = whole.map(({ payload, sums }, index): BlockPart => {
      const block = blocks[index]!;
      const first = Math.max(from, block.from);
      return {
        payload, sums, from: first, tokens: Math.min(block.to, tokens) - first, skipped: first - block.from,
        blockTokens: block.tokens.length,
      };
    });
    let load: Load;
    try {
      load = this.#transfers.load(transfer, parts);
    } catch (error) {
      releaseEach(whole);
      throw error;
    }
    releaseEach(whole.slice(Math.max(1, load.parts)));
    return { blocks: load.parts, loaded: this.#land(load.loaded, blocks, whole.slice(0, Math.max(1, load.parts))) };
  }

  /** Notes which blocks are on the device. `end`: `complete` where going on may help. */
  async #land(
    loading: Promise<Loaded>, blocks: readonly StoredBlock[], whole: readonly Fetched[],
  ): Promise<{ readonly blocks: number; readonly end: PromotionEnd }> {
    const left = this.#left;
    try {
      const loaded = await loading;
      for (let index = 0; index < loaded.parts; index += 1) {
        const block = blocks[index]!;
        const { from, payload } = whole[index]!;
        this.#progress.reach(Math.min(block.to, this.#options.wanted.tokens), whole[index]!);
        left.set(from, Math.max(0, (left.get(from) ?? 0) - payload.length));
        block.sums ??= whole[index]!.sums.slice();
      }
      if (loaded.end === 'done') return { blocks: loaded.parts, end: 'complete' };
      if (loaded.end !== 'damaged') return { blocks: loaded.parts, end: 'no-memory' };
      const damaged = blocks[loaded.parts]!;
      whole[loaded.parts]!.from.damaged(damaged);
      return { blocks: loaded.parts, end: damaged.tiers === 0 ? 'corrupt' : 'complete' };
    } finally {
      releaseEach(whole);
    }
  }
}

const missEnds = {
  'absent': 'lost', 'corrupt': 'corrupt', 'timeout': 'unreachable', 'failed': 'unreachable', 'no-memory': 'no-memory',
} as const;

function releaseEach(fetched: readonly FetchEnd[]): void {
  for (const one of fetched) if (!('reason' in one)) one.release();
}

// FetchQueue: blocks on their way from tiers, in their order, some ahead of those that are loaded. What has arrived
// belongs to the caller, which releases it; `releaseAll` gives back the rest.

/** A block's payload, or why there is none. */
export type FetchEnd = Fetched | Missed;

export class FetchQueue {
  readonly #blocks: readonly StoredBlock[];
  readonly #fetch: (block: StoredBlock) => Promise<FetchEnd>;
  /** By block: on its way; undefined: not yet, or taken. */
  readonly #pending: (Promise<FetchEnd> | undefined)[] = [];
  readonly #arrived: (FetchEnd | undefined)[] = [];
  #isOver = false;

  constructor(blocks: readonly StoredBlock[], fetch: (block: StoredBlock) => Promise<FetchEnd>) {
    this.#blocks = blocks;
    this.#fetch = fetch;
  }

  /**
   * What has arrived from block `at` on without a gap, one at least, which it waits for, and half as many as are read
   * at a time at most. They are the caller's.
   */
  async next(at: number): Promise<FetchEnd[]> {
    for (let ahead = at; ahead < Math.min(at + readsAtATime, this.#blocks.length); ahead += 1) this.#begin(ahead);
    await this.#pending[at];
    const arrived: FetchEnd[] = [];
    for (let index = at; index < at + readsAtATime / 2 && this.#arrived[index] !== undefined; index += 1) {
      arrived.push(this.#arrived[index]!);
      this.#arrived[index] = undefined;
      this.#pending[index] = undefined;
    }
    return arrived;
  }

  /** The reads that are under way; with `releaseAll` what they bring goes back. */
  get underWay(): readonly Promise<FetchEnd>[] {
    return this.#pending.filter((pending) => pending !== undefined);
  }

  /** Nothing more is wanted: what has arrived and what still comes goes back. */
  releaseAll(): void {
    this.#isOver = true;
    for (const arrived of this.#arrived) if (arrived !== undefined && !('reason' in arrived)) arrived.release();
  }

  #begin(index: number): void {
    if (this.#pending[index] !== undefined) return;
    const pending = this.#pending[index] = this.#fetch(this.#blocks[index]!).then((end) => {
      if (this.#isOver && !('reason' in end)) end.release();
      else this.#arrived[index] = end;
      return end;
    });
    pending.catch(() => { /* `next` rejects with it, once it waits for it */ });
  }
}

// Progress and Patience of a promotion: how far it has come and how fast each tier was, and how long it waits before
// its request had better compute.

/**
 * Of the latest blocks of a tier, by which its rate within a load is measured: as many as are read at a time. Reads
 * that begin together may end together, and the next ones as much later; over so many of them that is the tier's rate,
 * whether latency or bandwidth makes it.
 */
const latest = readsAtATime;

interface TierLoad {
  readonly first: TimedBytes;
  bytes: number;
  ms: number;
  /**
   * When the latest blocks were there, and how many bytes with each of them; before the first of them lies the latency.
   */
  readonly arrivals: { readonly atMs: number; readonly bytes: number }[];
}

/** How far a promotion has come, and what that took. */
export class Progress {
  tokens: number;
  readonly from: Record<string, number> = {};
  readonly #clock: LoadClock;
  readonly #loads = new Map<OpenTier, TierLoad>();
  #lastMs: number;

  constructor(tokens: number, clock: LoadClock) {
    this.tokens = tokens;
    this.#clock = clock;
    this.#lastMs = clock.now();
  }

  /** Blocks up to `tokens` are on the device; the last of them came as `fetched`. */
  reach(tokens: number, { from: open, payload }: Fetched): void {
    const brought = tokens - this.tokens;
    this.from[open.tier.name] = (this.from[open.tier.name] ?? 0) + brought;
    open.counts.promotedTokens += brought;
    this.tokens = tokens;
    this.waited(open, payload.length);
  }

  /** It waited for so many bytes of a tier. */
  waited(open: OpenTier | undefined, bytes: number): void {
    const nowMs = this.#clock.now();
    if (open !== undefined) {
      const milliseconds = nowMs - this.#lastMs;
      let load = this.#loads.get(open);
      if (load === undefined) {
        this.#loads.set(open, load = { first: { bytes, milliseconds }, bytes: 0, ms: 0, arrivals: [] });
      }
      load.bytes += bytes;
      load.ms += milliseconds;
      load.arrivals.push({ atMs: nowMs, bytes: load.bytes });
      if (load.arrivals.length > latest + 1) load.arrivals.shift();
    }
    this.#lastMs = nowMs;
  }

  /** How long it has waited for what comes next. */
  get waitingMs(): number {
    return this.#clock.now() - this.#lastMs;
  }

  /**
   * How long so many bytes more of each tier are likely to take, at the rate of its latest blocks; no time where fewer
   * than two of them came.
   */
  msOf(left: ReadonlyMap<OpenTier, number>): number {
    let sum = 0;
    for (const [open, bytes] of left) {
      const arrivals = this.#loads.get(open)?.arrivals ?? [];
      if (arrivals.length < 2) continue;
      const [first, last] = [arrivals[0]!, arrivals.at(-1)!];
      sum += ((last.atMs - first.atMs) / (last.bytes - first.bytes)) * bytes;
    }
    return sum;
  }

  /** Tells the tiers how fast they were. What `tried` was before no longer counts. */
  measure(tried: OpenTier | undefined): void {
    for (const [open, { bytes, ms, first }] of this.#loads) {
      if (open === tried) open.estimate.startOver();
      open.estimate.measured({ bytes, milliseconds: ms }, first);
    }
  }
}

/** By what a wait for a tier is measured. */
export interface WaitCost {
  /** How long the whole load of the tier was likely to take. */
  readonly loadMs: number;
  /** How long computing what is left would take; Infinity: not known. */
  readonly computeMs: number;
  /** Whether the tier is tried although it was slow: then it is not waited for as long as that took. */
  readonly isTrial: boolean;
}

/**
 * Of the time that computing takes: what a request waits for an answer beyond what that took before, and for what
 * others have stored.
 */
const share = 0.05;
/** The same where neither the engine nor the tier was measured. */
const firstAnswerMs = 250;

/** Ends a promotion that has waited too long. Time in which this thread computed is none. */
export class LoadDeadline {
  readonly #limit: AbortController;
  readonly #clock: LoadClock;
  #time: FreeTime | undefined;

  constructor(limit: AbortController, clock: LoadClock) {
    this.#limit = limit;
    this.#clock = clock;
  }

  /** How long a request waits for the next answer of a tier; Infinity: as long as it takes. */
  static answerMs(
    { isHint, deadlineMs }: PromotionRequest, estimate: LoadEstimate | undefined,
    { loadMs, computeMs, isTrial }: WaitCost,
  ): number {
    const answerMs = estimate?.answerMs;
    if (isHint) return Infinity;
    if (computeMs === Infinity) return answerMs === undefined && deadlineMs === undefined ? firstAnswerMs : Infinity;
    if (isTrial || answerMs === undefined) return share * computeMs;
    return share * computeMs + Math.min(answerMs, computeMs, estimate!.isMeasured ? loadMs : Infinity);
  }

  /**
   * How long a request waits to hear what others have stored of text that takes so long to compute, `leastMs` being how
   * long the fastest of the tier's latest answers took; Infinity: as long as it takes; 0: it is not waited for.
   */
  static findMs(
    { isHint, deadlineMs }: Pick<PromotionRequest, 'isHint' | 'deadlineMs'>, leastMs: number | undefined,
    computeMs: number,
  ): number {
    if (isHint) return Infinity;
    if (computeMs === Infinity) return deadlineMs === undefined ? firstAnswerMs + (leastMs ?? 0) : Infinity;
    const mostMs = share * computeMs;
    return leastMs !== undefined && leastMs > mostMs ? 0 : mostMs;
  }

  /** It lasts so long from now on; then, each time, as long as `moreMs` says, until that is nothing. */
  last(milliseconds: number, moreMs: (waitedMs: number) => number = () => 0): void {
    this.end();
    const time = this.#time = new FreeTime(this.#clock, 0, true);
    const lastFor = (ms: number): void => {
      if (ms === Infinity) return;
      const untilMs = time.milliseconds + ms;
      // What arrived while the engine had the thread is looked at first.
      time.at(untilMs, () => { time.at(untilMs, ask); });
    };
    const ask = (): void => {
      const ms = moreMs(time.milliseconds);
      if (ms > 0) {
        lastFor(ms);
        return;
      }
      this.end();
      this.#limit.abort('recompute-cheaper');
    };
    lastFor(milliseconds);
  }

  /** It is not counted any more. Returns how long that was. */
  end(): number {
    const ms = this.#time?.end() ?? 0;
    this.#time = undefined;
    return ms;
  }
}
