// Promotions: bring stored text back to the device ahead of the request that needs it. What comes is cached as if a sequence had computed
// it; the request then finds it. A promotion stops where going on would cost more than computing, at its deadline, and when it is
// cancelled; what has come by then stays. A hint is a promotion that no request waits for: requests come first, and it takes its time.

import { setMaxListeners } from 'node:events';

import type { PrefixDomain } from '../prefix/domain.js';
import type { StoredBlock } from '../tiers/stored-texts.js';
import type { Fetched, OpenTier } from '../tiers/open-tier.js';
import type { TierSet } from '../tiers/tier-set.js';
import { compareLoad, type LoadComparison, type LoadStretch } from '../tiers/load-comparison.js';
import { PrefillRate } from '../tiers/load-estimate.js';
import type { CachedRows } from './cached-rows.js';
import type { ItemNames } from '../prefix/prompt-encoder.js';
import { FetchQueue, type FetchEnd } from './fetch-queue.js';
import type { Promotion, PromotionEnd } from './promotion.js';
import { Patience, Progress } from './promotion-progress.js';
import { PromotionTotals } from './promotion-totals.js';
import type { BlockPart, Transfer, Transfers } from './transfers.js';

/** A prompt, and how long bringing its text may take. */
export interface PromotionRequest {
  readonly domain: PrefixDomain;
  readonly text: Int32Array;
  readonly priority: number;
  readonly deadlineMs: number | undefined;
  readonly signal: AbortSignal | undefined;
  /** Whether no request waits for it. */
  readonly isHint: boolean;
}

/** Promotions that load at the same time; others wait for one of them. */
export const mostPromotions = 3;
/** Of these, hints. */
const mostHints = 1;

/** What a promotion's parts share: the request, and what ends it. */
interface Attempt extends PromotionRequest {
  readonly limit: AbortController;
  readonly patience: Patience;
  /** Resolves when `limit` is reached. */
  readonly over: Promise<void>;
}

/** Blocks that are to be brought, and tokens up to where they agree with the text. */
export interface Missing {
  readonly blocks: readonly StoredBlock[];
  readonly tokens: number;
}

export class Promotions {
  readonly prefill = new PrefillRate();
  readonly totals: PromotionTotals;
  readonly #cached: CachedRows;
  readonly #tiers: TierSet;
  readonly #transfers: Transfers;
  readonly #names: ItemNames;
  /** Promotions under way, by the key of the first block that each brings. */
  readonly #running = new Map<string, Promise<unknown>>();
  #hints = 0;

  constructor(cached: CachedRows, tiers: TierSet, transfers: Transfers, names: ItemNames, now: () => number) {
    this.totals = new PromotionTotals(now);
    this.#cached = cached;
    this.#tiers = tiers;
    this.#transfers = transfers;
    this.#names = names;
  }

  /** Tokens of a text behind the first `cachedTokens` that tiers are known to have. */
  demotedTokens(domain: PrefixDomain, text: Int32Array, cachedTokens: number): number {
    return this.missing(domain, text, Math.max(0, text.length - 1), cachedTokens).tokens - cachedTokens;
  }

  /** Never rejects for what a tier does; for what the driver refuses. */
  async promote(request: PromotionRequest): Promise<Promotion> {
    const limit = new AbortController();
    setMaxListeners(0, limit.signal); // one for each block under way
    const timer = request.deadlineMs === undefined ? undefined : setTimeout(() => { limit.abort('deadline'); }, request.deadlineMs);
    const abort = (): void => { limit.abort('aborted'); };
    request.signal?.addEventListener('abort', abort, { once: true });
    if (request.signal?.aborted === true) abort();
    const patience = new Patience(limit);
    const beganMs = performance.now();
    try {
      const promotion = { ...await this.#promote({ ...request, limit, patience, over: aborted(limit.signal) }), milliseconds: performance.now() - beganMs };
      const { domain, text, isHint } = request;
      const { cachedTokens } = promotion;
      const left = promotion.end === 'complete' ? undefined : this.missing(domain, text, text.length, cachedTokens).blocks[0];
      this.totals.note(promotion, isHint, left?.key);
      return promotion;
    } finally {
      clearTimeout(timer);
      patience.end();
      request.signal?.removeEventListener('abort', abort);
    }
  }

  async #promote(attempt: Attempt): Promise<Omit<Promotion, 'milliseconds'>> {
    const { domain, text, isHint, limit: { signal: limit }, patience, over } = attempt;
    await this.findElsewhere(domain, text, limit);
    let estimate: LoadComparison | undefined;
    for (;;) {
      const cachedTokens = this.cachedTokens(domain, text);
      const ended = (end: PromotionEnd): Omit<Promotion, 'milliseconds'> => ({ cachedTokens, promotedTokens: 0, promotedFrom: {}, end, estimate });
      const missing = this.missing(domain, text, text.length, cachedTokens);
      const first = missing.blocks[0];
      if (first === undefined) return ended('complete');
      if (limit.aborted) return ended(limit.reason as PromotionEnd);
      estimate ??= this.compare(missing, cachedTokens);
      if (!isHint) patience.last(this.prefill.milliseconds(missing.tokens - cachedTokens));
      const same = this.#running.get(first.key); // another prompt with the same text
      if (same !== undefined || this.#running.size >= mostPromotions || (isHint && this.#hints >= mostHints)) {
        await Promise.race([same ?? Promise.race(this.#running.values()), over]).catch(() => { /* it was told elsewhere */ });
        continue;
      }
      const worth = isHint ? missing : this.#worthLoading(missing, cachedTokens);
      if (worth.blocks.length === 0) return ended('recompute-cheaper');
      const loading = this.#load(attempt, worth);
      this.#running.set(first.key, loading);
      this.#hints += isHint ? 1 : 0;
      try {
        const loaded = await loading;
        return { ...loaded, estimate, end: loaded.end === 'complete' && worth !== missing ? 'recompute-cheaper' : loaded.end };
      } finally {
        this.#running.delete(first.key);
        this.#hints -= isHint ? 1 : 0;
      }
    }
  }

  /** Blocks behind the first `cachedTokens` of text[0, limit) that tiers have, without a hole, and tokens up to where they agree. */
  missing(domain: PrefixDomain, text: Int32Array, limit: number, cachedTokens: number): Missing {
    const { blocks, partial, tokens } = this.#tiers.match(domain, text, limit);
    const missing: StoredBlock[] = [];
    for (const block of partial === undefined ? blocks : [...blocks, partial]) {
      if (block.to <= cachedTokens) continue;
      if (block.tiers === 0) break;
      missing.push(block);
    }
    return { blocks: missing, tokens: Math.max(cachedTokens, Math.min(tokens, missing.at(-1)?.to ?? 0)) };
  }

  /** Asks tiers whose blocks others store too, for whole blocks that are not known yet. */
  async findElsewhere(domain: PrefixDomain, text: Int32Array, limit: AbortSignal): Promise<void> {
    for (const open of this.#tiers.all) {
      if (open.state !== 'open' || open.tier.find === undefined) continue;
      const keys = this.#tiers.keys.ofText(domain, text, this.#names);
      // What it has may lead on to blocks that are known, and behind these there may be more.
      for (let missing = -1, from = this.#wholeBlocks(domain, text); from < keys.length && from !== missing; from = this.#wholeBlocks(domain, text)) {
        const found = await open.find(keys.slice(from), limit);
        if (found === 0) break;
        this.#addFound(open, domain, text, keys.slice(0, from + found), from);
        missing = from + found;
      }
    }
  }

  /** Whole blocks from the text's start that some tier has. */
  #wholeBlocks(domain: PrefixDomain, text: Int32Array): number {
    const { blocks } = this.#tiers.match(domain, text);
    const hole = blocks.findIndex(({ tokens, tiers }) => tokens.length < this.#tiers.keys.blockTokens || tiers === 0);
    return hole < 0 ? blocks.length : hole;
  }

  /** A tier has the blocks of these keys, those from `from` on. */
  #addFound({ contents }: OpenTier, domain: PrefixDomain, text: Int32Array, keys: readonly string[], from: number): void {
    const { texts, keys: { blockTokens } } = this.#tiers;
    let parent = texts.root(this.#tiers.rootOf(domain));
    for (const [index, key] of keys.entries()) {
      const start = index * blockTokens;
      parent = texts.add(parent, key, text.slice(start, start + blockTokens));
      if (index >= from) contents.add(parent, this.#tiers.bytesOf(blockTokens));
    }
  }

  /** Loading these blocks against computing their tokens; undefined: there are none. */
  compare({ blocks, tokens }: Missing, cachedTokens: number): LoadComparison | undefined {
    if (blocks.length === 0) return undefined;
    let at = cachedTokens;
    const stretches = blocks.map((block): LoadStretch => {
      const from = at;
      at = Math.min(block.to, tokens);
      return { tier: this.#fastest(block), tokens: at - from, bytes: this.#tiers.bytesOf(block.tokens.length) };
    });
    return compareLoad(stretches, this.#tiers.all, this.prefill);
  }

  /** The first of these blocks that tiers are likely to bring sooner than the engine computes them; now and then all, to measure anew. */
  #worthLoading(missing: Missing, cachedTokens: number): Missing {
    const { blocks, tokens } = missing;
    const end = cachedTokens + this.compare(missing, cachedTokens)!.loadTokens;
    const worth = blocks.filter((block) => Math.min(block.to, tokens) <= end);
    if (worth.length === blocks.length || this.#fastest(blocks[worth.length]!)?.estimate.refuses() !== true) return missing;
    return { blocks: worth, tokens: end };
  }

  #fastest(block: StoredBlock): OpenTier | undefined {
    return this.#tiers.all.find(({ contents, state }) => state === 'open' && contents.has(block));
  }

  async #load({ domain, text, priority, isHint, limit, patience, over }: Attempt, { blocks: missing, tokens }: Missing): Promise<Omit<Promotion, 'estimate' | 'milliseconds'>> {
    const transfer = this.#transfers.open({ domain, text, priority }, tokens, true);
    if (transfer === undefined) {
      return { cachedTokens: this.cachedTokens(domain, text), promotedTokens: 0, promotedFrom: {}, end: 'no-memory' };
    }
    const { signal } = limit;
    const blocks = missing.filter(({ to }) => Math.min(to, tokens) > transfer.cachedTokens);
    const fetches = new FetchQueue(blocks, (block) => this.#tiers.fetch(block, signal));
    const progress = new Progress(transfer.cachedTokens);
    let end: PromotionEnd = 'complete';
    let at = 0;
    try {
      while (at < blocks.length && end === 'complete') {
        const arriving = fetches.next(at);
        await Promise.race([arriving, over]);
        if (signal.aborted) {
          progress.waited(this.#fastest(blocks[at]!), this.#tiers.bytesOf(blocks[at]!.tokens.length));
          arriving.then(releaseEach, () => { /* a miss like any other */ });
          end = signal.reason as PromotionEnd;
          break;
        }
        const fetched = await arriving;
        const loaded = await this.#loadBlocks(transfer, blocks.slice(at, at + fetched.length), fetched, tokens, progress, signal);
        at += loaded.blocks;
        end = loaded.end;
        const remaining = this.prefill.milliseconds(tokens - progress.tokens);
        if (isHint) continue;
        patience.last(remaining);
        if (end === 'complete' && progress.msOf(blocks.length - at, at) > remaining) end = 'recompute-cheaper';
      }
    } finally {
      progress.measure();
      fetches.releaseAll();
      this.#transfers.close(transfer);
    }
    if (progress.tokens > 0 && at > 0) this.#tiers.use(blocks[at - 1]!);
    return { cachedTokens: progress.tokens, promotedTokens: progress.tokens - transfer.cachedTokens, promotedFrom: progress.from, end };
  }

  /** Loads blocks that follow each other, as far as they were fetched and are whole; `end`: `complete` where going on may help. */
  async #loadBlocks(
    transfer: Transfer, blocks: readonly StoredBlock[], fetched: readonly FetchEnd[], tokens: number, progress: Progress, limit: AbortSignal,
  ): Promise<{ readonly blocks: number; readonly end: PromotionEnd }> {
    const whole: Fetched[] = [];
    const missed = fetched.find((one): one is Exclude<FetchEnd, Fetched> => {
      if ('reason' in one) return true;
      whole.push(one);
      return false;
    });
    for (const one of fetched.slice(whole.length + 1)) if (!('reason' in one)) one.release(); // behind one that is missed
    try {
      if (limit.aborted) return { blocks: 0, end: limit.reason as PromotionEnd };
      if (whole.length === 0) return { blocks: 0, end: missEnds[missed!.reason] };
      let from = progress.tokens;
      const parts = whole.map(({ payload, sums }, index): BlockPart => {
        const block = blocks[index]!;
        const to = Math.min(block.to, tokens);
        const part = { payload, sums, from, tokens: to - from, skipped: from - block.from, blockTokens: block.tokens.length };
        from = to;
        return part;
      });
      const loaded = await this.#transfers.load(transfer, parts);
      for (let index = 0; index < loaded.parts; index += 1) {
        const block = blocks[index]!;
        progress.reach(Math.min(block.to, tokens), whole[index]!);
        block.sums ??= whole[index]!.sums.slice();
      }
      if (loaded.end === 'done') return { blocks: loaded.parts, end: 'complete' };
      if (loaded.end !== 'damaged') return { blocks: loaded.parts, end: 'no-memory' };
      const damaged = blocks[loaded.parts]!;
      whole[loaded.parts]!.from.damaged(damaged);
      return { blocks: loaded.parts, end: damaged.tiers === 0 ? 'corrupt' : 'complete' };
    } finally {
      for (const one of whole) one.release();
    }
  }

  /** Tokens of the text's start that are on the device. */
  cachedTokens(domain: PrefixDomain, text: Int32Array): number {
    this.#cached.flushCommits();
    return this.#cached.index.match(domain, text, text.length).tokens;
  }
}

const missEnds = { 'absent': 'corrupt', 'corrupt': 'corrupt', 'timeout': 'unreachable', 'failed': 'unreachable', 'no-memory': 'no-memory' } as const;

function releaseEach(fetched: readonly FetchEnd[]): void {
  for (const one of fetched) if (!('reason' in one)) one.release();
}

function aborted(signal: AbortSignal): Promise<void> {
  return new Promise((resolve) => {
    if (signal.aborted) resolve();
    else signal.addEventListener('abort', () => { resolve(); }, { once: true });
  });
}
