// LoadEstimate: how long a tier takes to load so many bytes, as measured while it works: a line through the latest
// loads, whose height at nothing is the latency and whose slope the bandwidth; but not less than the first block of a
// load takes, nor than that for each so many blocks as are read at a time. Old loads fade, so that a disk that becomes
// slow is found out. Answers: how soon a tier answers, and what it owes to requests that wait no more: while it does,
// it is left alone, but for one request in some. PrefillRate: how fast the engine computes. LoadDeadline: how long a
// request waits by all of these.

import { FreeTime, type LoadClock } from './load-clock.js';

/** Blocks of a load that are read at a time. */
export const readsAtATime = 16;
/** What remains of a load's weight when the next one is measured. */
const fading = 0.9;
/** Of so many of the latest answers it is known how long they took. */
const latest = 8;
/** Of requests that leave a tier alone, one in so many does not. */
const tryOneIn = 64;
/** A load that is longer than all before by more than this factor is not refused for what they took. */
const muchLonger = 4;
/** Weight of the newest rate of the engine. */
const newest = 0.2;
/**
 * Of the time that computing takes: what a request waits for an answer beyond what that took before, and for what
 * others have stored.
 */
const share = 0.05;
/** The same where neither the engine nor the tier was measured. */
const firstAnswerMs = 250;

/** Bytes that came, and how long they took. */
export interface TimedBytes {
  readonly bytes: number;
  readonly milliseconds: number;
}

/** What is under way, and how long it has been. */
export interface Awaited {
  readonly milliseconds: number;
}

/** How long the latest answers to one kind of question took, and those that no request waits for any more. */
export class Answers {
  /** Undefined: a load that had none. */
  readonly #latestMs: (number | undefined)[] = [];
  readonly #owed = new Set<Awaited>();
  #passedBy = 0;

  get knownMs(): readonly number[] {
    return this.#latestMs.filter((ms) => ms !== undefined);
  }

  /** Whether one is owed. */
  get isOwed(): boolean {
    return this.#owed.size > 0;
  }

  /** How long the one that is owed longest has been; 0: none is. */
  get owedMs(): number {
    return Math.max(0, ...[...this.#owed].map(({ milliseconds }) => milliseconds));
  }

  came(milliseconds: number | undefined): void {
    if (this.#latestMs.push(milliseconds) > latest) this.#latestMs.shift();
  }

  /** One is owed. Returns what is called when it has come. */
  owe(answer: Awaited): () => void {
    this.#owed.add(answer);
    return () => { this.#owed.delete(answer); };
  }

  /** Whether a request leaves the tier alone: one in so many does not, unless more than one answer is owed. */
  passBy(): boolean {
    this.#passedBy += 1;
    if (this.#passedBy < tryOneIn || this.#owed.size > 1) return true;
    this.#passedBy = 0;
    return false;
  }

  forget(): void {
    this.#owed.clear();
    this.#latestMs.length = 0;
  }
}

export class LoadEstimate {
  /** Faded sums over loads: their bytes x, their milliseconds y, and products. */
  #loads = { count: 0, x: 0, y: 0, xx: 0, xy: 0 };
  /** The same of their first blocks. */
  #firsts = { count: 0, bytes: 0, milliseconds: 0 };
  /** Of the loads that were measured, and those tried since. */
  #mostBytes = 0;
  /** Of each load the longest wait for a block. */
  readonly #answers = new Answers();
  /** The same since a load was measured. */
  #newAnswerMs: number | undefined;

  /** Whether a load was measured. */
  get isMeasured(): boolean {
    return this.#loads.count > 0;
  }

  /** Whether it owes an answer that no request waits for any more. */
  get isAwaited(): boolean {
    return this.#answers.isOwed;
  }

  /** About the longest that a load lately waited for the next of its blocks; undefined: none came yet. */
  get answerMs(): number | undefined {
    const known = [...this.#answers.knownMs, this.#newAnswerMs ?? -1];
    const mostMs = Math.max(...known);
    return mostMs < 0 ? undefined : mostMs;
  }

  /** Milliseconds before the first byte; undefined: not measured. */
  get latencyMs(): number | undefined {
    return this.#line?.latencyMs;
  }

  /** Bytes a millisecond from then on; undefined: not measured. */
  get bytesPerMs(): number | undefined {
    return this.#line?.bytesPerMs;
  }

  /** Reads that are under way, which no request waits for. Returns what is called when they are over. */
  awaited(reads: Awaited): () => void {
    return this.#answers.owe(reads);
  }

  /** A load waited so long for its next block. */
  answered(milliseconds: number): void {
    this.#newAnswerMs = Math.max(milliseconds, this.#newAnswerMs ?? 0);
  }

  /** What was measured no longer counts, nor what it owes. */
  startOver(): void {
    this.#answers.forget();
    this.#loads = { count: 0, x: 0, y: 0, xx: 0, xy: 0 };
    this.#firsts = { count: 0, bytes: 0, milliseconds: 0 };
    this.#newAnswerMs = undefined;
  }

  /** A load took so long, or was given up after as much. `first`: its first block. */
  measured({ bytes, milliseconds }: TimedBytes, first?: TimedBytes): void {
    const y = Math.max(milliseconds, 0.001);
    this.#mostBytes = Math.max(this.#mostBytes, bytes);
    add(this.#loads, { count: 1, x: bytes, y, xx: bytes * bytes, xy: bytes * y });
    if (first !== undefined) add(this.#firsts, { count: 1, ...first });
    this.#answers.came(this.#newAnswerMs);
    this.#newAnswerMs = undefined;
  }

  /**
   * How long a load of so many bytes is likely to take: not less than how long the tier has owed an answer. 0 while
   * nothing is known.
   */
  milliseconds(bytes: number): number {
    const [line, firsts] = [this.#line, this.#firsts];
    const lineMs = line === undefined ? 0 : line.latencyMs + bytes / line.bytesPerMs;
    const firstsMs = firsts.count === 0 ? 0
      : (firsts.milliseconds / firsts.count) * Math.max(1, bytes / (readsAtATime * (firsts.bytes / firsts.count)));
    return Math.max(lineMs, firstsMs, this.#answers.owedMs);
  }

  /**
   * Whether a load that is estimated too slow is refused. One in so many is not; nor one that is much longer than all
   * before it: a few blocks take a latency, and do not tell that many blocks take little more.
   */
  refuses(bytes = 0): boolean {
    if (bytes <= muchLonger * this.#mostBytes || this.isAwaited) return this.#answers.passBy();
    this.#mostBytes = bytes;
    return false;
  }

  get #line(): { readonly latencyMs: number; readonly bytesPerMs: number } | undefined {
    const { count, xx, xy } = this.#loads;
    if (count === 0) return undefined;
    const [x, y] = [this.#loads.x / count, this.#loads.y / count];
    const spread = xx / count - x * x;
    // Loads of one size tell latency and bandwidth apart badly: all of it is bandwidth then.
    const slope = spread > 1e-3 * x * x ? (xy / count - x * y) / spread : y / x;
    // neither negative, nor so steep that the latency would be
    const msPerByte = Math.min(Math.max(slope, 1e-9 * y / x), y / x);
    return { latencyMs: Math.max(0, y - msPerByte * x), bytesPerMs: 1 / msPerByte };
  }
}

function add<Name extends string>(sums: Record<Name, number>, load: Record<Name, number>): void {
  for (const name of Object.keys(sums) as Name[]) sums[name] = fading * sums[name] + load[name];
}

/** Tokens a millisecond that the engine computes of prompts; undefined: not measured. */
export class PrefillRate {
  tokensPerMs: number | undefined = undefined;

  /** It computed so many tokens in so long; none, where all were cached, say nothing. */
  measured(tokens: number, milliseconds: number): void {
    if (tokens === 0) return;
    const rate = tokens / Math.max(milliseconds, 0.001);
    this.tokensPerMs = this.tokensPerMs === undefined ? rate : this.tokensPerMs + newest * (rate - this.tokensPerMs);
  }

  /** How long computing so many tokens is likely to take; Infinity while nothing was measured. */
  milliseconds(tokens: number): number {
    return this.tokensPerMs === undefined ? Infinity : tokens / this.tokensPerMs;
  }
}

/** The promotion that waits for a load. */
export interface WaitingRequest {
  /** Whether no request waits for the promotion. */
  readonly isHint: boolean;
  readonly deadlineMs: number | undefined;
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
    { isHint, deadlineMs }: WaitingRequest, estimate: LoadEstimate | undefined,
    { loadMs, computeMs, isTrial }: WaitCost,
  ): number {
    const answerMs = estimate?.answerMs;
    if (isHint) return Infinity;
    if (computeMs === Infinity) return answerMs === undefined && deadlineMs === undefined ? firstAnswerMs : Infinity;
    if (isTrial || answerMs === undefined) return share * computeMs;
    return share * computeMs + Math.min(answerMs, computeMs, estimate!.isMeasured ? loadMs : Infinity);
  }

  /**
   * How long a request waits to hear what others have stored of text that takes so long to compute; Infinity: as long
   * as it takes; 0: it is not waited for.
   */
  static findMs({ isHint, deadlineMs }: WaitingRequest, { knownMs }: Answers, computeMs: number): number {
    if (isHint) return Infinity;
    const leastMs = knownMs.length === 0 ? 0 : Math.min(...knownMs);
    if (computeMs === Infinity) return deadlineMs === undefined ? firstAnswerMs + leastMs : Infinity;
    return leastMs > share * computeMs ? 0 : share * computeMs;
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
