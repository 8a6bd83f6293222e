// TextLoad: brings the blocks of one text from their tiers to the device, in their order: some are read ahead, and up
// to two groups of those that have come are copied at a time. It ends where a tier answers later than it used to, or
// brings what is left more slowly than the engine computes it; the reads go on then, and measure the tier.

import { setMaxListeners } from 'node:events';

import { FreeTime, type LoadClock } from './load-clock.js';
import { LoadDeadline, type PrefillRate, readsAtATime, type TimedBytes } from './load-estimate.js';
import { LoadPlan, type WantedBlocks } from './load-plan.js';
import type { Fetched, Missed, OpenTier } from './open-tier.js';
import type { Promotion, PromotionEnd, PromotionRequest } from './promotion.js';
import type { StoredBlock } from './stored-texts.js';
import type { TierSet } from './tier-set.js';
import type { Tier } from './tier.js';
import type { BlockPart, Load, Loaded, Transfer, Transfers } from './transfers.js';

/** Loads that are copied at a time: the second keeps the copying threads at work while this one commits the first. */
const mostLoads = 2;

/** A request, and what ends it. */
export interface Attempt extends PromotionRequest {
  readonly limit: AbortController;
  readonly loadDeadline: LoadDeadline;
  /** Resolves when `limit` is reached. */
  readonly over: Promise<void>;
}

/** What came. */
export type BroughtText = Pick<Promotion, 'promotedTokens' | 'promotedFrom' | 'end'>;

export interface TextLoadOptions {
  readonly tiers: TierSet;
  readonly transfers: Transfers;
  readonly transfer: Transfer;
  readonly prefill: PrefillRate;
  readonly attempt: Attempt;
  readonly wanted: WantedBlocks;
  readonly clock: LoadClock;
  /** Called when some blocks have come. */
  readonly noteArrival: () => void;
}

/** A block's payload, or why there is none. */
type Read = Fetched | Missed;

/** A read of a block that is under way, or has ended. */
interface BlockRead {
  readonly over: Promise<Read>;
  end: Read | undefined;
}

/** What a load came to. `end`: `complete` where going on may help. */
interface LandedBlocks {
  readonly blocks: number;
  readonly end: PromotionEnd;
}

/** Blocks that are being copied. */
interface BlocksLoad {
  readonly blocks: number;
  readonly landed: Promise<LandedBlocks>;
}

/** What one tier brings of the text. */
interface TierShare {
  /** Bytes that it was likely to bring, and of these those that are not on the device yet. */
  readonly plannedBytes: number;
  leftBytes: number;
  /** What has come from it, and how long that was waited for. */
  bytes: number;
  milliseconds: number;
  first: TimedBytes | undefined;
  /**
   * Of its latest blocks, when each was there and `bytes` then: as many as are read at a time. Reads that begin
   * together may end together, and the next ones as much later; over so many of them that is the tier's rate, whether
   * latency or bandwidth makes it. Before the first of them lies the latency.
   */
  readonly arrivals: { readonly atMs: number; readonly bytes: number }[];
}

export class TextLoad {
  readonly #options: TextLoadOptions;
  readonly #blocks: readonly StoredBlock[];
  readonly #shares = new Map<OpenTier, TierShare>();
  readonly #brought: Record<string, number> = {};
  /** By block, reads that were begun and not taken. */
  readonly #reads: (BlockRead | undefined)[] = [];
  readonly #readsLimit = new AbortController();
  readonly #copying: BlocksLoad[] = [];
  /** Tokens of the text that are on the device. */
  #tokens: number;
  /** When it was last waited for a block. */
  #waitedUntilMs: number;
  /** Blocks whose copy has begun, and that are on the device. */
  #begun = 0;
  #done = 0;
  #end: PromotionEnd = 'complete';
  #isOver = false;

  constructor(options: TextLoadOptions) {
    const { tiers, transfer: { cachedTokens }, prefill, attempt, wanted: { blocks, tokens }, clock } = options;
    this.#options = options;
    this.#blocks = blocks.filter(({ to }) => Math.min(to, tokens) > cachedTokens);
    this.#tokens = cachedTokens;
    this.#waitedUntilMs = clock.now();
    const plan = new LoadPlan(tiers, { blocks: this.#blocks, tokens }, cachedTokens, prefill);
    for (const open of tiers.all) {
      const bytes = plan.bytesFrom(open, this.#blocks);
      if (bytes > 0) this.#shareOf(open, bytes);
    }
    setMaxListeners(0, this.#readsLimit.signal); // one for each block under way
    const { limit: { signal }, over } = attempt;
    void over.then(() => { if (signal.reason !== 'recompute-cheaper') this.#readsLimit.abort(); });
  }

  async run(): Promise<BroughtText> {
    const { tiers, transfers, transfer, wanted: { tried }, attempt: { priority, isPlacement } } = this.#options;
    try {
      while (this.#canBegin || this.#copying.length > 0) {
        // The next ones are copied behind those under way, without a wait for this thread.
        if (this.#canBegin) await this.#beginNext();
        else await this.#finishOldest();
      }
    } finally {
      await Promise.allSettled(this.#copying.map(({ landed }) => landed));
      this.#measure(tried);
      this.#isOver = true;
      for (const read of this.#reads) release([read?.end]);
      transfers.close(transfer);
    }
    if (this.#done > 0 && isPlacement !== true) tiers.use(this.#blocks[this.#done - 1]!, priority);
    return { promotedTokens: this.#tokens - transfer.cachedTokens, promotedFrom: this.#brought, end: this.#end };
  }

  get #canBegin(): boolean {
    return this.#end === 'complete' && this.#begun < this.#blocks.length && this.#copying.length < mostLoads
      && this.#copying.at(-1)?.blocks !== 0;
  }

  /** How long computing what is not on the device would take. */
  get #computeMs(): number {
    return this.#options.prefill.milliseconds(this.#options.wanted.tokens - this.#tokens);
  }

  /** Begins to copy the next blocks that come, or ends where they come too late. */
  async #beginNext(): Promise<void> {
    const { tiers, attempt, attempt: { loadDeadline, limit: { signal }, over }, wanted: { tried } } = this.#options;
    const next = this.#blocks[this.#begun]!;
    const open = tiers.sourceOf(next);
    loadDeadline.last(LoadDeadline.answerMs(attempt, open?.estimate, {
      loadMs: open?.estimate.milliseconds(this.#shares.get(open)?.plannedBytes ?? 0) ?? 0, computeMs: this.#computeMs,
      isTrial: open !== undefined && open === tried,
    }));
    await Promise.race([this.#readAhead(), over]);
    const waitedMs = loadDeadline.end();
    if (signal.aborted) {
      this.#end = signal.reason as PromotionEnd;
      if (open !== undefined) this.#leave(open, tiers.bytesOf(next.tokens.length));
      return;
    }
    const read = this.#takeRead();
    if (!('reason' in read[0]!)) read[0]!.from.estimate.answered(waitedMs);
    const load = this.#copy(read);
    this.#begun += load.blocks;
    this.#copying.push(load);
  }

  /** Has the next blocks read, some ahead of those that are copied. Resolves when the first of them was. */
  #readAhead(): Promise<Read> {
    for (let at = this.#begun; at < Math.min(this.#begun + readsAtATime, this.#blocks.length); at += 1) {
      this.#reads[at] ??= this.#read(this.#blocks[at]!);
    }
    return this.#reads[this.#begun]!.over;
  }

  #read(block: StoredBlock): BlockRead {
    const over = this.#options.tiers.fetch(block, this.#readsLimit.signal).then((end) => {
      if (this.#isOver) release([end]);
      else read.end = end;
      return end;
    });
    over.catch(() => { /* thrown where the read is awaited, when its turn comes */ });
    const read: BlockRead = { over, end: undefined };
    return read;
  }

  /** The next blocks that have come, without a gap between them, at least one. The caller releases them. */
  #takeRead(): Read[] {
    const taken: Read[] = [];
    for (let at = this.#begun; taken.length < readsAtATime / 2 && this.#reads[at]?.end !== undefined; at += 1) {
      taken.push(this.#reads[at]!.end!);
      this.#reads[at] = undefined;
    }
    return taken;
  }

  /** Its reads go on without it, where it has turned to computing, and tell how fast the tier is. */
  #leave(open: OpenTier, leastBytes: number): void {
    const { wanted: { tried }, clock } = this.#options;
    const waitedMs = clock.now() - this.#waitedUntilMs;
    if (this.#end === 'recompute-cheaper') {
      const reads = this.#reads.flatMap((read) => (read === undefined ? [] : [read.over]));
      measureReads(open, { waitedMs, leastBytes, reads, isTrial: open === tried }, clock);
    } else if (open.estimate.isMeasured && waitedMs > open.estimate.milliseconds(leastBytes)) {
      this.#waited(open, leastBytes); // a request that ends sooner tells nothing
    }
  }

  /** Begins to copy the next blocks, as far as they were read. */
  #copy(read: readonly Read[]): BlocksLoad {
    const { transfers, transfer, wanted: { tokens } } = this.#options;
    const missed = read.findIndex((one) => 'reason' in one);
    const whole = (missed < 0 ? read : read.slice(0, missed)) as readonly Fetched[];
    if (missed >= 0) release(read.slice(missed + 1)); // behind one that is missed
    if (whole.length === 0) {
      const end = missEnds[(read[0] as Missed).reason];
      return { blocks: 0, landed: Promise.resolve({ blocks: 0, end }) };
    }
    const blocks = this.#blocks.slice(this.#begun, this.#begun + whole.length);
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
      load = transfers.load(transfer, parts);
    } catch (error) {
      release(whole);
      throw error;
    }
    const begun = Math.max(1, load.parts);
    release(whole.slice(begun));
    return { blocks: load.parts, landed: this.#land(load.loaded, blocks, whole.slice(0, begun)) };
  }

  /** Notes which blocks are on the device. */
  async #land(
    loading: Promise<Loaded>, blocks: readonly StoredBlock[], whole: readonly Fetched[],
  ): Promise<LandedBlocks> {
    try {
      const { parts, end } = await loading;
      for (const [index, block] of blocks.slice(0, parts).entries()) {
        this.#reach(Math.min(block.to, this.#options.wanted.tokens), whole[index]!);
      }
      if (end === 'done') return { blocks: parts, end: 'complete' };
      if (end !== 'damaged') return { blocks: parts, end: 'no-memory' };
      const damaged = blocks[parts]!;
      whole[parts]!.from.damaged(damaged);
      return { blocks: parts, end: damaged.tiers === 0 ? 'corrupt' : 'complete' };
    } finally {
      release(whole);
    }
  }

  /** Blocks up to `tokens` are on the device; the last of them came as `fetched`. */
  #reach(tokens: number, { from: open, payload }: Fetched): void {
    const brought = tokens - this.#tokens;
    this.#tokens = tokens;
    this.#brought[open.tier.name] = (this.#brought[open.tier.name] ?? 0) + brought;
    open.counts.promotedTokens += brought;
    const tierShare = this.#waited(open, payload.length);
    tierShare.leftBytes = Math.max(0, tierShare.leftBytes - payload.length);
  }

  /** It waited until now for so many bytes of a tier. */
  #waited(open: OpenTier, bytes: number): TierShare {
    const nowMs = this.#options.clock.now();
    const milliseconds = nowMs - this.#waitedUntilMs;
    const tierShare = this.#shares.get(open) ?? this.#shareOf(open, 0);
    tierShare.first ??= { bytes, milliseconds };
    tierShare.bytes += bytes;
    tierShare.milliseconds += milliseconds;
    tierShare.arrivals.push({ atMs: nowMs, bytes: tierShare.bytes });
    if (tierShare.arrivals.length > readsAtATime + 1) tierShare.arrivals.shift();
    this.#waitedUntilMs = nowMs;
    return tierShare;
  }

  #shareOf(open: OpenTier, bytes: number): TierShare {
    const made =
      { plannedBytes: bytes, leftBytes: bytes, bytes: 0, milliseconds: 0, first: undefined, arrivals: [] };
    this.#shares.set(open, made);
    return made;
  }

  /** Notes what the oldest load under way came to. */
  async #finishOldest(): Promise<void> {
    const { attempt: { isHint }, noteArrival } = this.#options;
    const oldest = this.#copying.shift()!;
    const { blocks, end } = await oldest.landed;
    this.#done += blocks;
    if (blocks > 0) noteArrival();
    if (blocks < oldest.blocks) { // nothing behind it was loaded
      await Promise.all(this.#copying.splice(0).map(({ landed }) => landed));
      this.#begun = this.#done;
    }
    if (this.#end === 'complete') this.#end = end;
    if (this.#end === 'complete' && !isHint && this.#leftMs > this.#computeMs) this.#end = 'recompute-cheaper';
  }

  /** How long what is left is likely to take, at the rate of each tier's latest blocks; 0 where fewer than two came. */
  get #leftMs(): number {
    let sum = 0;
    for (const { arrivals, leftBytes } of this.#shares.values()) {
      if (arrivals.length < 2) continue;
      const [first, last] = [arrivals[0]!, arrivals.at(-1)!];
      sum += ((last.atMs - first.atMs) / (last.bytes - first.bytes)) * leftBytes;
    }
    return sum;
  }

  /** Tells the tiers how fast they were. What `tried` was before no longer counts. */
  #measure(tried: OpenTier | undefined): void {
    for (const [open, { bytes, milliseconds, first }] of this.#shares) {
      if (first === undefined) continue;
      if (open === tried) open.estimate.startOver();
      open.estimate.measured({ bytes, milliseconds }, first);
    }
  }
}

const missEnds = {
  'absent': 'lost', 'corrupt': 'corrupt', 'timeout': 'unreachable', 'failed': 'unreachable', 'no-memory': 'no-memory',
} as const;

function release(reads: readonly (Read | undefined)[]): void {
  for (const read of reads) if (read !== undefined && !('reason' in read)) read.release();
}

/** Reads that go on though the request that began them has turned to computing. */
export interface LeftReads {
  /** How long it had waited for them. */
  readonly waitedMs: number;
  /** Of the block that it waited for: what so long was too short for where the tier does not answer. */
  readonly leastBytes: number;
  readonly reads: readonly Promise<Read>[];
  /** Whether the tier was tried although it had been slow: what it was before no longer counts. */
  readonly isTrial: boolean;
}

/** Measures a tier by reads that go on; what they bring is not used. Until they end it is left alone. */
export function measureReads(
  { estimate, tier }: OpenTier, { waitedMs, leastBytes, reads, isTrial }: LeftReads, clock: LoadClock,
): void {
  const time = new FreeTime(clock, waitedMs, false);
  const over = estimate.awaited(time);
  let first: TimedBytes | undefined;
  const ends = reads.map(async (read): Promise<Read> => {
    const end = await read;
    const bytes = bytesOf(end, tier);
    if (bytes > 0) first ??= { bytes, milliseconds: time.milliseconds };
    return end;
  });
  void Promise.all(ends).catch((): Read[] => []).then((ended) => {
    const milliseconds = time.end();
    over();
    const bytes = ended.reduce((sum, end) => sum + bytesOf(end, tier), 0);
    const hasFailed = ended.some((end) => 'reason' in end && (end.reason === 'timeout' || end.reason === 'failed'));
    if (bytes === 0 && !hasFailed) return;
    if (isTrial) estimate.startOver();
    estimate.answered(milliseconds);
    estimate.measured({ bytes: Math.max(bytes, leastBytes), milliseconds }, first);
  });
}

/** Bytes that this tier gave. */
function bytesOf(end: Read, tier: Tier): number {
  return 'reason' in end || end.from.tier !== tier ? 0 : end.payload.length;
}
