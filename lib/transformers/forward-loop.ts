// ForwardLoop: forward calls of a model as passes over one cache. Calls of one turn of the event loop share a pass;
// prompts are computed in chunks beside what decodes. A text keeps its slot while it may go on; where slots or pages
// are short, those that no call computes give theirs up, and are found in the cache, or computed, when they are needed
// again. Loops whose caches share a pool do so for each other, and wait for each other's pages; a loop that waits has
// no pages of calls itself. Owns the texts' sequences.

import { createError, isKvError } from '../base/errors.js';
import type { Batch, KvCache, Sequence } from '../index.js';
import type { OnnxEngine } from '../onnx/index.js';
import { PastText } from './past.js';

/** Of one row of a call. */
export interface ForwardRow {
  readonly text: PastText;
  /**
   * [column whose logits are wanted]: which token of the text stands there, in rising order. The first ones may be -1:
   * padding before any token, whose logits are 0.
   */
  readonly places: readonly number[];
}

/** Sums of a model since it was loaded. */
export interface ForwardTotals {
  /** Forward calls that were answered. */
  calls: number;
  /** Passes: runs of the graph. */
  passes: number;
  /** Tokens that passes computed. */
  computedTokens: number;
  /** Tokens of prompts that were found in the cache. */
  cachedTokens: number;
  /** Rows of the pass with the most. */
  mostRows: number;
}

interface Row extends ForwardRow {
  /** The first of `places` that is not filled. */
  next: number;
  /** Its logits were no numbers, and it is computed once more. */
  isRetried: boolean;
}

interface Call {
  readonly rows: readonly Row[];
  /** [row, place, token of the vocabulary] */
  readonly logits: Float32Array;
  readonly submittedMs: number;
  readonly resolve: (logits: Float32Array) => void;
  readonly reject: (error: unknown) => void;
}

/** What a pass computes of a row: the next `tokens` tokens of its text. */
interface Member {
  readonly row: Row;
  readonly sequence: Sequence;
  readonly tokens: number;
}

/** Other sequences compute so much more of a prompt than is cached that waiting for them is worth it. */
const worthWaiting = 16;
/** How much one turn of the event loop evicts for a prompt; a page is unmapped in every slot that shares it. */
const evictedBytes = 2 ** 23;

export interface ForwardLoopOptions {
  readonly cache: KvCache;
  readonly engine: OnnxEngine;
  readonly prefillTokensPerStep: number;
  /** How long a call may wait for slots and pages while others have them, in milliseconds. */
  readonly waitMs: number;
  /** Loops whose caches share a pool. A loop is among them from its construction until it is closed. */
  readonly loops: Set<ForwardLoop>;
}

export class ForwardLoop {
  readonly totals: ForwardTotals = { calls: 0, passes: 0, computedTokens: 0, cachedTokens: 0, mostRows: 0 };
  readonly #options: ForwardLoopOptions;
  readonly #batch: Batch;
  /** Texts with a sequence, the one used longest ago first. */
  readonly #held = new Set<PastText>();
  /** Calls without all their sequences, in order. */
  readonly #waiting: Call[] = [];
  readonly #active: Call[] = [];
  /** Of other loops, called when a pass is over. */
  readonly #watchers: (() => void)[] = [];
  readonly #giveUp = new AbortController();
  /** Whether `#makeWay` runs: its sequences hold slots and pages for a call that has not begun. */
  #isMakingWay = false;
  #running: Promise<void> | undefined;

  constructor(options: ForwardLoopOptions) {
    this.#options = options;
    this.#batch = options.cache.createBatch();
    options.loops.add(this);
  }

  /**
   * Computes what is new of some texts, none of which another call computes; resolves with the logits [row, place,
   * token of the vocabulary]. Rejects with KV_NO_FREE_SLOT or KV_OUT_OF_PAGES where they cannot have room,
   * KV_LENGTH_OUT_OF_RANGE, KV_CLOSED, and as the engine.
   */
  compute(rows: readonly ForwardRow[]): Promise<Float32Array> {
    const places = rows.reduce((sum, row) => sum + row.places.length, 0);
    return new Promise<Float32Array>((resolve, reject) => {
      const call: Call = {
        rows: rows.map((row) => ({ ...row, next: row.places.at(-1) === -1 ? row.places.length : 0, isRetried: false })),
        logits: new Float32Array(places * this.#options.engine.vocabularyTokens),
        submittedMs: performance.now(),
        resolve,
        reject,
      };
      for (const { text } of rows) text.isBusy = true;
      if (call.rows.some(needsSequence)) this.#waiting.push(call);
      else this.#active.push(call); // as it goes on, it waits for none that begins
      this.#running ??= this.#run();
    });
  }

  /** One past less refers to each of these texts. Those to which none refers any more give up their sequences. */
  release(texts: readonly PastText[]): void {
    for (const text of texts) {
      text.pasts -= 1;
      if (text.pasts === 0) this.#endSequence(text);
    }
  }

  /** Ends all calls, which reject: with KV_ABORTED those of the pass under way, with KV_CLOSED the others. */
  async close(): Promise<void> {
    this.#giveUp.abort();
    await this.#running;
    for (const text of [...this.#held]) this.#endSequence(text);
    this.#options.loops.delete(this);
  }

  async #run(): Promise<void> {
    while (this.#waiting.length + this.#active.length > 0) {
      await new Promise(setImmediate); // calls of this turn come together, and those that were answered come again
      try {
        if (this.#giveUp.signal.aborted)
          throw createError('KV_CLOSED', { operation: 'compute a pass', owner: 'OnnxDecoder' });
        await this.#admit();
        await this.#step();
      } catch (error) {
        // nothing can be computed any more
        for (const call of [...this.#active, ...this.#waiting]) this.#fail(call, error);
      }
      for (const watch of this.#watchers.splice(0)) watch();
      if (this.#active.length === 0 && this.#waiting.length > 0) await this.#passElsewhere();
    }
    this.#running = undefined;
  }

  async #admit(): Promise<void> {
    const { waitMs } = this.#options;
    while (this.#waiting.length > 0) {
      const [call] = this.#waiting as [Call];
      try {
        if (!(await this.#makeWay(call))) return;
      } catch (error) {
        this.#fail(call, error);
        continue;
      }
      const error = this.#begin(call);
      if (error === undefined) {
        this.#waiting.shift();
        this.#active.push(call);
      } else if (!isCapacity(error)) this.#fail(call, error);
      else if (this.#giveUpIdle(error)) continue;
      else if (this.#mayComeFree(error) && performance.now() - call.submittedMs < waitMs) return;
      else this.#fail(call, error);
    }
  }

  /**
   * Evicts earlier texts for a call's prompts, a part in each turn of the event loop, since unmapping a gigabyte takes
   * 70 ms. Sequences of the prompts hold their cached tokens meanwhile, and map pages part by part; `#begin` takes over
   * the slots with these pages. Evicts nothing where the pool cannot have room for the prompts now. Returns false where
   * another loop makes way: two loops at once would take the pages from each other.
   */
  async #makeWay({ rows }: Call): Promise<boolean> {
    const { cache, loops } = this.#options;
    const { tokensPerRow, pagesPerRow, pageBytes } = cache.layout;
    const partPages = evictedBytes / pageBytes;
    const fresh = rows.filter((row) => needsSequence(row) && row.text.forkOf?.sequence === undefined);
    const pages = fresh.reduce((sum, { text }) => sum + cache.pagesFor(text.tokens.length), 0);
    if (pages <= Math.max(partPages, cache.pool.native.available()) || pages > cache.counts().admissiblePages)
      return true;
    if ([...loops].some((loop) => loop.#isMakingWay)) return false;
    const partTokens = Math.ceil(tokensPerRow * Math.ceil(partPages / pagesPerRow));
    const sequences: Sequence[] = [];
    this.#isMakingWay = true;
    try {
      for (const row of fresh) sequences.push(this.#acquire(row, 'none'));
      const missing = fresh.map((row, at) => row.text.tokens.length - knownTokens(row, sequences[at]!));
      for (let most = partTokens; most < Math.max(...missing); most += partTokens) {
        this.#batch.clear();
        for (const [at, sequence] of sequences.entries()) this.#batch.add(sequence, Math.min(missing[at]!, most));
        cache.prepare(this.#batch);
        cache.discard(this.#batch); // what is mapped stays
        await new Promise(setImmediate);
      }
    } catch (error) {
      if (!isKvError(error) || error.recovery === 'fix') throw error;
      // `#begin` meets the others again, and decides on the call
    } finally {
      this.#isMakingWay = false;
      for (const sequence of sequences) sequence[Symbol.dispose](); // the cache may be closed
    }
    return true;
  }

  #acquire(row: Row, reserve: 'prompt' | 'none'): Sequence {
    const { tokens, adapter } = row.text;
    const caching = firstWanted(row) === 0 ? 'write' : 'read-write';
    return this.#options.cache.acquire({ tokens, adapter, caching, reserve });
  }

  /** Acquires sequences for all texts of a call that have none, or for none of them and returns why. */
  #begin({ rows }: Call): unknown {
    const begun: PastText[] = [];
    try {
      for (const row of rows) {
        if (!needsSequence(row)) continue;
        this.#beginText(row, true);
        begun.push(row.text);
      }
      return undefined;
    } catch (error) {
      for (const text of begun) this.#endSequence(text);
      return error;
    }
  }

  /** Gives a text a sequence; not yet where it may wait and others compute its prompt at the moment. */
  #beginText(row: Row, mayWait: boolean): void {
    const { text } = row;
    const from = firstWanted(row);
    let sequence = this.#forked(text);
    if (sequence === undefined) {
      sequence = this.#acquire(row, 'prompt');
      if (mayWait && knownTokens(row, sequence) > sequence.length + worthWaiting) {
        sequence.release();
        return;
      }
      this.totals.cachedTokens += Math.min(sequence.length, from);
    }
    if (sequence.length > from) {
      sequence.truncate(from);
      sequence.append(text.tokens.slice(from));
    }
    text.forkOf = undefined;
    text.sequence = sequence;
    this.#held.add(text);
  }

  #forked({ forkOf, forkTokens, tokens }: PastText): Sequence | undefined {
    const source = forkOf?.sequence;
    if (source === undefined || source.length < forkTokens) return undefined;
    const sequence = source.fork();
    sequence.truncate(forkTokens);
    sequence.append(tokens.slice(forkTokens));
    return sequence;
  }

  #endSequence(text: PastText): void {
    text.sequence?.release();
    text.sequence = undefined;
    this.#held.delete(text);
  }

  /**
   * Ends the sequence of the text that no call computes and that was used longest ago; where pages are short and there
   * is none, of another loop. False: there is none at all.
   */
  #giveUpIdle(error: unknown): boolean {
    for (const loop of [this, ...this.#others(error)]) {
      for (const text of loop.#held) {
        if (text.isBusy) continue;
        loop.#endSequence(text);
        return true;
      }
    }
    return false;
  }

  /** The loops that may have what is short: pages are everybody's, slots a cache's own. */
  #others(error: unknown): readonly ForwardLoop[] {
    return isKvError(error, 'KV_NO_FREE_SLOT') ? [] : [...this.#options.loops].filter((loop) => loop !== this);
  }

  #mayComeFree(error: unknown): boolean {
    return [this, ...this.#others(error)].some((loop) => loop.#active.length > 0 || loop.#isMakingWay);
  }

  /** Resolves when another loop has computed a pass; at once where none has a call. */
  async #passElsewhere(): Promise<void> {
    const busy = [...this.#options.loops].filter((loop) => loop.#active.length > 0);
    const passes = busy.map((loop) => new Promise<void>((resolve) => loop.#watchers.push(resolve)));
    if (passes.length > 0) await Promise.race(passes);
  }

  /** Computes the next pass, if there is one. */
  async #step(): Promise<void> {
    const members = this.#prepare();
    const { cache, engine } = this.#options;
    if (members.length > 0) {
      const { spans, tokens, wanted, targets } = rowsOf(members);
      let logits: Float32Array;
      try {
        const { firstPosition } = members[0]!.row.text;
        logits = await engine.computeRows({ spans, tokens, wanted, firstPosition }, { signal: this.#giveUp.signal });
      } catch (error) {
        cache.discard(this.#batch);
        const failed = new Set(members.map(({ row }) => row));
        for (const call of this.#active.filter(({ rows }) => rows.some((row) => failed.has(row))))
          this.#fail(call, error);
        return;
      }
      cache.commit(this.#batch);
      this.#count(members, tokens.length);
      this.#deliver(logits, targets);
      this.#checkNumbers(logits, targets);
    }
    for (const call of [...this.#active]) if (call.rows.every(isDone)) this.#answer(call);
  }

  #count(members: readonly Member[], tokens: number): void {
    this.totals.passes += 1;
    this.totals.computedTokens += tokens;
    this.totals.mostRows = Math.max(this.totals.mostRows, members.length);
    for (const { row: { text } } of members) if (this.#held.delete(text)) this.#held.add(text); // used last
  }

  #deliver(logits: Float32Array, targets: ReadonlyMap<Row, readonly number[]>): void {
    const { vocabularyTokens: width } = this.#options.engine;
    for (const call of this.#active) {
      let at = 0;
      for (const row of call.rows) {
        for (const wanted of targets.get(row) ?? []) {
          if (wanted >= 0)
            call.logits.set(logits.subarray(wanted * width, (wanted + 1) * width), (at + row.next) * width);
          row.next += 1;
        }
        at += row.places.length;
      }
    }
  }

  /**
   * Logits that are no numbers say that K or V is bad, of new tokens or of those that were found: the text and all that
   * begins as it does is dropped from the cache, and computed once more. Where they are none again, the call fails.
   */
  #checkNumbers(logits: Float32Array, targets: ReadonlyMap<Row, readonly number[]>): void {
    const { cache, engine } = this.#options;
    const { vocabularyTokens: width } = engine;
    for (const [row, own] of targets) {
      if (!own.some((at) => at >= 0 && logits.subarray(at * width, (at + 1) * width).includes(Number.NaN))) continue;
      const { tokens, adapter } = row.text;
      const start = tokens.slice(0, Math.max(1, cache.layout.tokensPerRow));
      cache.prefixes.drop({ tokens: start, adapter }).catch(() => {
        // the cache is closed
      });
      if (row.isRetried) {
        const error = createError('KV_ENGINE_FAILED', {
          call: 'prefill',
          sequences: targets.size,
          problem: 'its logits are not numbers',
        });
        for (const call of this.#active.filter(({ rows }) => rows.includes(row))) this.#fail(call, error);
      } else {
        row.isRetried = true;
        row.next = 0;
        this.#endSequence(row.text);
      }
    }
  }

  /** Plans a pass and gets memory for it; from calls that began last, where there is not enough. */
  #prepare(): readonly Member[] {
    for (;;) {
      this.#beginLate();
      const members = this.#plan();
      if (members.length === 0) return members;
      this.#batch.clear();
      for (const { sequence, tokens } of members) this.#batch.add(sequence, tokens);
      try {
        this.#options.cache.prepare(this.#batch);
        return members;
      } catch (error) {
        if (isCapacity(error)) this.#makeRoom(error);
        else for (const call of [...this.#active]) this.#fail(call, error);
      }
    }
  }

  /** Begins the texts of active calls that waited for others to compute their prompts. */
  #beginLate(): void {
    for (;;) {
      const late = this.#active.flatMap((call) => call.rows.filter(needsSequence).map((row) => ({ call, row })));
      const mayWait = this.#active.some(({ rows }) =>
        rows.some((row) => row.text.sequence !== undefined && !isDone(row)),
      );
      try {
        for (const { row } of mayWait ? late : late.slice(0, 1)) this.#beginText(row, mayWait);
        return;
      } catch (error) {
        if (isCapacity(error)) this.#makeRoom(error);
        else for (const call of new Set(late.map((each) => each.call))) this.#fail(call, error);
      }
    }
  }

  #makeRoom(error: unknown): void {
    if (this.#giveUpIdle(error)) return;
    const call = this.#active.pop()!;
    if (!this.#mayComeFree(error)) {
      this.#fail(call, error);
      return;
    }
    for (const { text } of call.rows) this.#endSequence(text);
    this.#waiting.unshift(call);
  }

  /** One token of each text that decodes, and as much of prompts as a step may have. */
  #plan(): readonly Member[] {
    const members: Member[] = [];
    let left = this.#options.prefillTokensPerStep;
    for (const row of this.#active.flatMap(({ rows }) => rows)) {
      const { tokens: all, sequence, firstPosition } = row.text;
      if (isDone(row) || sequence === undefined) continue;
      if (firstPosition !== (members[0]?.row.text.firstPosition ?? firstPosition)) continue; // a pass has one
      const remaining = all.length - sequence.length;
      const tokens = remaining === 1 ? 1 : Math.min(remaining, left);
      if (remaining > 1) left -= tokens;
      if (tokens > 0) members.push({ row, sequence, tokens });
    }
    return members;
  }

  #answer(call: Call): void {
    this.totals.calls += 1;
    this.#end(call);
    call.resolve(call.logits);
  }

  #fail(call: Call, error: unknown): void {
    for (const { text } of call.rows) this.#endSequence(text);
    this.#end(call);
    call.reject(error);
  }

  #end(call: Call): void {
    for (const calls of [this.#active, this.#waiting]) {
      const at = calls.indexOf(call);
      if (at >= 0) calls.splice(at, 1);
    }
    for (const { text } of call.rows) text.isBusy = false;
  }
}

const isCapacity = (error: unknown): boolean =>
  isKvError(error, 'KV_NO_FREE_SLOT') ||
  isKvError(error, 'KV_OUT_OF_PAGES') ||
  isKvError(error, 'KV_OUT_OF_DEVICE_MEMORY') ||
  isKvError(error, 'KV_OUT_OF_MAPPINGS');

const isDone = ({ next, places }: Row): boolean => next === places.length;

const needsSequence = (row: Row): boolean => row.text.sequence === undefined && !isDone(row);

/** The first token that must be computed for the logits that are wanted. */
function firstWanted({ next, places, text: { tokens } }: Row): number {
  const first = places.find((token, place) => place >= next && token >= 0);
  return first ?? tokens.length;
}

/** Tokens that need not be computed for a row: cached ones, or those that others compute. */
function knownTokens(row: Row, { cachedTokens, pendingTokens }: Sequence): number {
  return Math.max(cachedTokens, Math.min(pendingTokens, firstWanted(row)));
}

/** The arrays of a pass, and for each row the row of the logits, or -1, of each of its next places. */
function rowsOf(members: readonly Member[]) {
  const spans = new Int32Array(4 * members.length);
  const tokens: number[] = [];
  const wanted: number[] = [];
  const targets = new Map<Row, readonly number[]>();
  members.forEach(({ row, sequence, tokens: count }, index) => {
    const { text, places, next } = row;
    const { slot, length } = sequence;
    const own: number[] = [];
    for (let place = next; place < places.length && places[place]! < length + count; place += 1) {
      const graphRow = tokens.length + places[place]! - length;
      if (places[place]! >= 0 && wanted.at(-1) !== graphRow) wanted.push(graphRow);
      own.push(places[place]! < 0 ? -1 : wanted.length - 1);
    }
    targets.set(row, own);
    spans.set([slot, length, count, tokens.length], 4 * index);
    for (let token = length; token < length + count; token += 1) tokens.push(text.tokens[token]!);
  });
  if (wanted.length === 0) wanted.push(tokens.length - 1); // one at least
  return { spans, tokens: Int32Array.from(tokens), wanted: Int32Array.from(wanted), targets };
}
