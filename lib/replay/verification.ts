// Verification: writes a pattern made of a key, the tensor and the token where a model would write K and V, and reads
// it back before the sequence is released: this proves that memory holds what was written. Tokens that came from the
// cache were stamped when they were computed; they are only read.
//
//   full      every token
//   sampled   the marks: the tokens on both sides of every row border (where one page ends and the next begins, in
//   every
//             tensor) and of every border between runs of text; the first and last token of every chunk; and one
//             decoded token in DECODE_SAMPLE, chosen by a hash. Of cached tokens the marks, which are the same for
//             every sequence
//   off       none

import { mix32 } from '../base/random.js';
import type { Sequence } from '../index.js';
import type { StampKeys, StampRuns } from './stamps.js';

export const verifyModes = ['full', 'sampled', 'off'] as const;
export type VerifyMode = (typeof verifyModes)[number];

const DECODE_SAMPLE = 64;

/** Memory that can be stamped: a KvCache. Both return a number of tokens: that were stamped, that are wrong. */
export interface StampedMemory<S> {
  stamp(sequence: S, fromToken: number, tokens: number, key: number): number;
  verifyStamp(sequence: S, fromToken: number, tokens: number, key: number): number;
}

export interface VerificationOptions<S> {
  readonly cache: StampedMemory<S>;
  readonly mode: VerifyMode;
  /** Chooses patterns and the sample. */
  readonly seed: number;
  /** Row borders lie at multiples of `pageBytes / commonTokenBytes` tokens, which need not be whole. */
  readonly layout: { readonly pageBytes: number; readonly commonTokenBytes: number };
}

export class Verification<S = Sequence> {
  readonly #cache: StampedMemory<S>;
  readonly #mode: VerifyMode;
  readonly #pageBytes: number;
  readonly #tokenBytes: number;
  readonly #seed: number;
  #verifiedTokens = 0;
  #mismatches = 0;

  constructor({ cache, mode, layout, seed }: VerificationOptions<S>) {
    this.#cache = cache;
    this.#mode = mode;
    this.#pageBytes = layout.pageBytes;
    this.#tokenBytes = layout.commonTokenBytes;
    this.#seed = seed;
  }

  /** Tokens read back; a token counts once, however many tensors it has. */
  get verifiedTokens(): number {
    return this.#verifiedTokens;
  }

  /** Tokens whose pattern was wrong in some tensor. */
  get mismatches(): number {
    return this.#mismatches;
  }

  /** The key of the n-th admission's pattern; no two admissions of a run have the same. */
  keyOf(admission: number): number {
    return mix32(this.#seed, admission);
  }

  /** Writes the pattern of a pass that computes `tokens` tokens from `from` on, and notes in `runs` where. */
  stamp(sequence: S, runs: StampRuns, keys: StampKeys, from: number, tokens: number): void {
    if (this.#mode === 'off') return;
    if (this.#mode === 'full') {
      this.#write(sequence, runs, keys, from, from + tokens);
      return;
    }
    const end = from + tokens;
    const isDecode = tokens === 1 && from > 0;
    if (isDecode && mix32(keys.keyAt(from), from) % DECODE_SAMPLE !== 0 && this.#nextMark(keys, from) !== from) return;
    let mark = from;
    while (mark < end) {
      let behind = mark + 1;
      let next = this.#nextMark(keys, behind);
      for (; next === behind && behind < end; next = this.#nextMark(keys, behind)) behind += 1;
      this.#write(sequence, runs, keys, mark, behind);
      mark = next < end || behind === end ? next : end - 1;
    }
  }

  /**
   * Notes in `runs` which of the first `tokens` tokens of a sequence, which came from the cache, are to be verified.
   */
  recall(runs: StampRuns, keys: StampKeys, tokens: number): void {
    if (this.#mode === 'off' || tokens === 0) return;
    if (this.#mode === 'full') {
      runs.push(0, tokens);
      return;
    }
    for (let mark = this.#nextMark(keys, 0); mark < tokens; mark = this.#nextMark(keys, mark + 1)) runs.push(mark, 1);
  }

  /** Reads back what was stamped, and empties `runs`. Call it before the sequence is released. */
  verify(sequence: S, runs: StampRuns, keys: StampKeys): void {
    for (let run = 0; run < runs.length; ++run) {
      const tokens = runs.tokensOf(run);
      const from = runs.fromOf(run);
      forEachKey(keys, from, from + tokens, (start, end, key) => {
        this.#mismatches += this.#cache.verifyStamp(sequence, start, end - start, key);
      });
      this.#verifiedTokens += tokens;
    }
    runs.clear();
  }

  #write(sequence: S, runs: StampRuns, keys: StampKeys, from: number, end: number): void {
    forEachKey(keys, from, end, (start, stop, key) => {
      this.#cache.stamp(sequence, start, stop - start, key);
    });
    runs.push(from, end - from);
  }

  /**
   * The first mark from `token` on: a token that is stamped in every sequence with this text, however its chunks were
   * cut.
   */
  #nextMark(keys: StampKeys, token: number): number {
    const border = this.#firstTokenOf(this.#rowAfter(token)); // that row begins inside it, or right before it
    return Math.min(border - 1 < token ? border : border - 1, keys.nextEdge(token));
  }

  /** The first token that has bytes in this row of the largest tensor. */
  #firstTokenOf(row: number): number {
    return Math.floor((row * this.#pageBytes) / this.#tokenBytes);
  }

  /** The first row that begins in or after this token. */
  #rowAfter(token: number): number {
    return Math.max(1, Math.ceil((token * this.#tokenBytes) / this.#pageBytes));
  }
}

/** Calls `visit` for each stretch of [from, end) that has one key. */
function forEachKey(
  keys: StampKeys, from: number, end: number, visit: (start: number, stop: number, key: number) => void,
): void {
  for (let start = from; start < end; ) {
    const stop = Math.min(end, keys.runEnd(start));
    visit(start, stop, keys.keyAt(start));
    start = stop;
  }
}
