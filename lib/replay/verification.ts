// Verification: stands in for the attention kernels, and proves that memory holds what was put there. It writes a pattern
// made of a key, the tensor and the token when tokens are computed, and reads it back before the sequence is released.
//
//   full      every token
//   sampled   the first and last token of every chunk, the tokens on both sides of every row border (where one page ends and
//             the next begins, in every tensor), and one decoded token in DECODE_SAMPLE, chosen by a hash
//   off       none

import { mix32 } from '../random.js';
import type { ReplayCache, ReplaySequence } from './replay-cache.js';
import { StampRuns } from './stamp-runs.js';

export const verifyModes = ['full', 'sampled', 'off'] as const;
export type VerifyMode = (typeof verifyModes)[number];

const DECODE_SAMPLE = 64;

export interface VerificationOptions {
  readonly cache: Pick<ReplayCache, 'stamp' | 'verifyStamp'>;
  readonly mode: VerifyMode;
  /** Chooses patterns and the sample. */
  readonly seed: number;
  /** Row borders lie at multiples of `pageBytes / maxTokenBytes` tokens, which need not be whole. */
  readonly layout: { readonly pageBytes: number; readonly maxTokenBytes: number };
}

export class Verification {
  readonly #cache: Pick<ReplayCache, 'stamp' | 'verifyStamp'>;
  readonly #mode: VerifyMode;
  readonly #pageBytes: number;
  readonly #tokenBytes: number;
  readonly #seed: number;
  #verifiedTokens = 0;
  #mismatches = 0;

  constructor({ cache, mode, layout, seed }: VerificationOptions) {
    this.#cache = cache;
    this.#mode = mode;
    this.#pageBytes = layout.pageBytes;
    this.#tokenBytes = layout.maxTokenBytes;
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

  /** The key of the n-th admission's pattern; no two are alike in a run. */
  keyOf(admission: number): number {
    return mix32(this.#seed, admission);
  }

  /** Writes the pattern of a pass that computes `tokens` tokens from `from` on, and notes in `runs` where. */
  stamp(sequence: ReplaySequence, runs: StampRuns, key: number, from: number, tokens: number): void {
    if (this.#mode === 'off') return;
    if (this.#mode === 'full') {
      this.#write(sequence, runs, key, from, tokens);
      return;
    }
    const end = from + tokens;
    const isDecode = tokens === 1 && from > 0;
    if (isDecode && mix32(key, from) % DECODE_SAMPLE !== 0 && !this.#isAtBorder(from)) return;
    this.#write(sequence, runs, key, from, 1);
    let written = from + 1;
    // Row `row` begins inside, or right before, token `border`: it and its left neighbour are the two sides.
    for (let row = this.#rowAfter(from); ; ++row) {
      const border = this.#firstTokenOf(row);
      if (border - 1 >= end) break;
      const start = Math.max(written, border - 1);
      const stop = Math.min(end, border + 1);
      if (stop <= start) continue;
      this.#write(sequence, runs, key, start, stop - start);
      written = stop;
    }
    if (written < end) this.#write(sequence, runs, key, end - 1, 1);
  }

  /** Reads back what was stamped, and empties `runs`. Call it before the sequence is released. */
  verify(sequence: ReplaySequence, runs: StampRuns, key: number): void {
    for (let run = 0; run < runs.length; ++run) {
      const tokens = runs.tokensOf(run);
      this.#mismatches += this.#cache.verifyStamp(sequence, runs.fromOf(run), tokens, key);
      this.#verifiedTokens += tokens;
    }
    runs.clear();
  }

  #write(sequence: ReplaySequence, runs: StampRuns, key: number, from: number, tokens: number): void {
    this.#cache.stamp(sequence, from, tokens, key);
    runs.push(from, tokens);
  }

  /** The first token that has bytes in this row of the largest tensor. */
  #firstTokenOf(row: number): number {
    return Math.floor((row * this.#pageBytes) / this.#tokenBytes);
  }

  /** The first row that begins in or after this token. */
  #rowAfter(token: number): number {
    return Math.max(1, Math.ceil((token * this.#tokenBytes) / this.#pageBytes));
  }

  #isAtBorder(token: number): boolean {
    const border = this.#firstTokenOf(this.#rowAfter(token));
    return token === border || token === border - 1;
  }
}
