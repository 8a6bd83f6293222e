// LoadEstimate: how long a tier takes to load so many bytes, as measured while it works: a line through the latest
// loads, whose height at nothing is the latency and whose slope the bandwidth; but not less than the first block of a
// load takes, which loads of one size do not tell otherwise, nor than that for each so many blocks as are read at a
// time. Old loads fade, so that a disk that becomes slow is found out. PrefillRate: how fast the engine computes. A
// tier that is left alone because it was slow is tried again now and then. While a tier owes an answer that no request
// waits for any more, it is left alone too; where nothing else is known of it, all that is known is how long that has
// been.

/** Blocks of a load that are read at a time. */
export const readsAtATime = 16;
/** What remains of a load's weight when the next one is measured. */
const fading = 0.9;
/** Of so many of the latest loads the longest wait for an answer is known. */
const lateLoads = 8;
/** After so many refusals one load is tried all the same. */
const retryAfter = 64;
/** A load that is longer than all before by more than this factor is not refused for what they took. */
const muchLonger = 4;
/** Weight of the newest rate of the engine. */
const newest = 0.2;

/** Bytes that came, and how long they took. */
export interface TimedBytes {
  readonly bytes: number;
  readonly milliseconds: number;
}

/** Reads that are under way, and how long they have been. */
export interface Awaited {
  readonly milliseconds: number;
}

export class LoadEstimate {
  // Faded sums over loads: how many, their bytes x, their milliseconds y, and products.
  #count = 0;
  #x = 0;
  #y = 0;
  #xx = 0;
  #xy = 0;
  /** The first blocks of loads: their faded sums. */
  #firsts = { bytes: 0, milliseconds: 0, count: 0 };
  #refusals = 0;
  /** Of the loads that were measured, and those tried since. */
  #mostBytes = 0;
  /** Reads that no request waits for, by how long they have been under way. */
  readonly #owed = new Set<Awaited>();
  /** The longest wait for an answer of each of the latest loads; undefined: it had none. */
  readonly #answersMs: (number | undefined)[] = [];
  /** The same since a load was measured. */
  #newAnswerMs: number | undefined;

  /** Whether a load was measured. */
  get isMeasured(): boolean {
    return this.#count > 0;
  }

  /** Whether it owes an answer that no request waits for any more. */
  get isAwaited(): boolean {
    return this.#owed.size > 0;
  }

  /** About the longest that a load lately waited for the next of its blocks; undefined: none came yet. */
  get answerMs(): number | undefined {
    const known = [...this.#answersMs, this.#newAnswerMs].filter((ms) => ms !== undefined);
    return known.length === 0 ? undefined : Math.max(...known);
  }

  /** Reads that are under way, which no request waits for. Returns what is called when they are over. */
  awaited(reads: Awaited): () => void {
    this.#owed.add(reads);
    return () => { this.#owed.delete(reads); };
  }

  /** A load waited so long for its next block. */
  answered(milliseconds: number): void {
    this.#newAnswerMs = Math.max(milliseconds, this.#newAnswerMs ?? 0);
  }

  /** Milliseconds before the first byte; undefined: not measured. */
  get latencyMs(): number | undefined {
    return this.#line?.latencyMs;
  }

  /** Bytes a millisecond from then on; undefined: not measured. */
  get bytesPerMs(): number | undefined {
    return this.#line?.bytesPerMs;
  }

  /** What was measured no longer counts, nor what it owes. */
  startOver(): void {
    this.#owed.clear();
    this.#count = this.#x = this.#y = this.#xx = this.#xy = 0;
    this.#firsts = { bytes: 0, milliseconds: 0, count: 0 };
    this.#answersMs.length = 0;
    this.#newAnswerMs = undefined;
  }

  /** A load took so long, or was given up after as much. `first`: its first block. */
  measured({ bytes, milliseconds }: TimedBytes, first?: TimedBytes): void {
    const y = Math.max(milliseconds, 0.001);
    this.#mostBytes = Math.max(this.#mostBytes, bytes);
    this.#count = fading * this.#count + 1;
    this.#x = fading * this.#x + bytes;
    this.#y = fading * this.#y + y;
    this.#xx = fading * this.#xx + bytes * bytes;
    this.#xy = fading * this.#xy + bytes * y;
    if (first !== undefined) {
      const { bytes: sum, milliseconds: ms, count } = this.#firsts;
      this.#firsts = {
        bytes: fading * sum + first.bytes, milliseconds: fading * ms + first.milliseconds, count: fading * count + 1,
      };
    }
    if (this.#answersMs.push(this.#newAnswerMs) > lateLoads) this.#answersMs.shift();
    this.#newAnswerMs = undefined;
  }

  /**
   * How long a load of so many bytes is likely to take: not less than how long the tier has owed an answer. 0 while
   * nothing is known.
   */
  milliseconds(bytes: number): number {
    const [line, firsts] = [this.#line, this.#firsts];
    let ms = line === undefined ? 0 : line.latencyMs + bytes / line.bytesPerMs;
    if (firsts.count > 0) ms = Math.max(
      ms, (firsts.milliseconds / firsts.count) * Math.max(1, bytes / (readsAtATime * (firsts.bytes / firsts.count))));
    for (const reads of this.#owed) ms = Math.max(ms, reads.milliseconds);
    return ms;
  }

  /**
   * Whether a load that is estimated too slow is refused. One in so many is not, unless more than one load's reads are
   * owed already; nor one that is much longer than all before it: a few blocks take a latency, and do not tell that
   * many blocks take little more.
   */
  refuses(bytes = 0): boolean {
    if (bytes > muchLonger * this.#mostBytes && this.#owed.size === 0) {
      this.#mostBytes = bytes;
      return false;
    }
    this.#refusals += 1;
    if (this.#refusals < retryAfter || this.#owed.size > 1) return true;
    this.#refusals = 0;
    return false;
  }

  get #line(): { readonly latencyMs: number; readonly bytesPerMs: number } | undefined {
    if (this.#count === 0) return undefined;
    const [x, y] = [this.#x / this.#count, this.#y / this.#count];
    const spread = this.#xx / this.#count - x * x;
    // Loads of one size tell latency and bandwidth apart badly: all of it is bandwidth then.
    const slope = spread > 1e-3 * x * x ? (this.#xy / this.#count - x * y) / spread : y / x;
    // neither negative, nor so steep that the latency would be
    const msPerByte = Math.min(Math.max(slope, 1e-9 * y / x), y / x);
    return { latencyMs: Math.max(0, y - msPerByte * x), bytesPerMs: 1 / msPerByte };
  }
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

// LoadClock: the time by which loads are measured and waited for, so that a test can step one of its own.

export interface LoadClock {
  /** Milliseconds from some time on. */
  now(): number;
  /**
   * Calls `wake` in so many ms, once; returns what cancels it. An alarm that is not `lasting` does not keep the process
   * alive.
   */
  after(wake: () => void, delayMs: number, lasting: boolean): () => void;
}

/** That of the process. */
export const processClock: LoadClock = {
  now: () => performance.now(),
  after: (wake, delayMs, lasting) => {
    const timer = setTimeout(wake, delayMs);
    if (!lasting) timer.unref();
    return () => { clearTimeout(timer); };
  },
};

// FreeTime: milliseconds in which this thread could have noticed that something arrived: while it computes, it would
// notice nothing, however fast a tier is.

const tickMs = 5;
/** Timers wait no shorter. */
const leastMs = 1;

export class FreeTime {
  readonly #clock: LoadClock;
  readonly #isLasting: boolean;
  /** What happens when it has come to so much. */
  #alarm: { readonly atMs: number; readonly wake: () => void } | undefined;
  #ms: number;
  #lastMs: number;
  #cancel: (() => void) | undefined;

  /** @param ms What has passed before. @param isLasting Whether the process stays alive for it. */
  constructor(clock: LoadClock, ms: number, isLasting: boolean) {
    this.#clock = clock;
    this.#isLasting = isLasting;
    this.#ms = ms;
    this.#lastMs = clock.now();
    this.#next();
  }

  get milliseconds(): number {
    this.#count();
    return this.#ms;
  }

  /**
   * Calls `wake` once so much has passed in all, in a turn of the event loop to come; instead of what was to be called
   * before.
   */
  at(ms: number, wake: () => void): void {
    this.#alarm = { atMs: ms, wake };
    this.#cancel?.();
    this.#next();
  }

  /** Ends it. Returns what has passed. */
  end(): number {
    this.#cancel?.();
    this.#cancel = undefined;
    this.#alarm = undefined;
    return this.milliseconds;
  }

  #next(): void {
    const leftMs = (this.#alarm?.atMs ?? Infinity) - this.#ms;
    this.#cancel = this.#clock.after(
      () => { this.#tick(); }, Math.max(leastMs, Math.min(tickMs, leftMs)), this.#isLasting);
  }

  #tick(): void {
    this.#count();
    const due = this.#alarm !== undefined && this.#ms >= this.#alarm.atMs ? this.#alarm : undefined;
    if (due !== undefined) this.#alarm = undefined;
    this.#next();
    due?.wake();
  }

  #count(): void {
    const nowMs = this.#clock.now();
    this.#ms += Math.min(nowMs - this.#lastMs, 2 * tickMs);
    this.#lastMs = nowMs;
  }
}

// FindTimes: how long a tier takes to say what others have stored there, and whether it owes an answer that no request
// waits for any more. Until such an answer comes, the tier is not asked, but for one request in some.

/** Of so many of the latest answers the time is known. */
const latest = 8;
/** After so many requests that did not ask, one does. */
const askAfter = 64;
/** Answers that are owed at most. */
const mostOwed = 2;

export class FindTimes {
  readonly #latestMs: number[] = [];
  #owed = 0;
  #passedBy = 0;

  /** How long the fastest of the latest answers took; undefined: there was none. */
  get leastMs(): number | undefined {
    return this.#latestMs.length === 0 ? undefined : Math.min(...this.#latestMs);
  }

  /** An answer took so long. */
  answered(milliseconds: number): void {
    if (this.#latestMs.push(milliseconds) > latest) this.#latestMs.shift();
  }

  /** No request waits for an answer any more. Returns what is called when it has come. */
  owes(): () => void {
    this.#owed += 1;
    return () => { this.#owed -= 1; };
  }

  /** Whether a request leaves the tier alone, since it owes an answer. */
  passesBy(): boolean {
    if (this.#owed === 0) return false;
    this.#passedBy += 1;
    if (this.#passedBy < askAfter || this.#owed >= mostOwed) return true;
    this.#passedBy = 0;
    return false;
  }
}
