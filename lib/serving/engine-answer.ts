// EngineAnswer: what an engine has answered, each part read once and checked before anything is taken from it. Row by row, over
// the engine's own memory: an engine that answers with the same array every time costs no allocation per token.

import { isFloat32Array } from 'node:util/types';

import { createError } from '../errors/index.js';
import { formatCount, formatNumber } from '../format.js';
import type { Pass } from './pass.js';

export type EngineCall = 'prefill' | 'decode';

export class EngineAnswer {
  readonly #vocabularyTokens: number;
  #tokens: ArrayLike<number> | undefined;
  #logits: Float32Array | undefined;
  #rowsOf: Float32Array | undefined;
  readonly #rows: Float32Array[] = [];

  constructor(vocabularyTokens: number) {
    this.#vocabularyTokens = vocabularyTokens;
  }

  /**
   * Takes an answer to a pass. Throws KV_ENGINE_FAILED unless it has a part for each sequence up to the last whose answer is read.
   */
  take(call: EngineCall, { length, wantsLogits }: Pass, output: unknown): void {
    const sequences = 1 + wantsLogits.subarray(0, length).lastIndexOf(1);
    let problem: string | undefined;
    let cause: unknown;
    try {
      problem = this.#read(output, sequences);
    } catch (error) { // a getter's
      problem = 'its answer could not be read';
      cause = error;
    }
    if (problem !== undefined) throw createError('KV_ENGINE_FAILED', { call, sequences: length, problem }, { cause });
  }

  /** The token that the engine itself has chosen for a sequence; undefined where it gave logits. */
  token(index: number): number | undefined {
    return this.#tokens?.[index];
  }

  /** The logits of a sequence. Undefined: the engine has taken them back since. */
  row(index: number): Float32Array | undefined {
    const row = this.#rows[index]!;
    return row.length === this.#vocabularyTokens ? row : undefined;
  }

  /** What is wrong with it. */
  #read(output: unknown, sequences: number): string | undefined {
    const isObject = typeof output === 'object' && output !== null;
    if (isObject && (ArrayBuffer.isView(output) || Array.isArray(output))) {
      return 'it answered with an array itself instead of `{ logits }` or `{ tokens }`';
    }
    const hasTokens = isObject && 'tokens' in output;
    const given: unknown = hasTokens ? output.tokens : isObject && 'logits' in output ? output.logits : undefined;
    const needed = hasTokens ? sequences : sequences * this.#vocabularyTokens;
    const length: unknown = typeof given === 'object' && given !== null ? (given as ArrayLike<number>).length : undefined;
    const isRightKind = typeof length === 'number' && (hasTokens || isFloat32Array(given));
    if (!isRightKind || !(length >= needed)) return this.#complaint(given, length, isRightKind, hasTokens, sequences, needed);
    this.#tokens = hasTokens ? given as ArrayLike<number> : undefined;
    this.#logits = hasTokens ? undefined : given as Float32Array;
    if (this.#logits !== undefined) this.#cut(this.#logits, sequences);
    return undefined;
  }

  #complaint(given: unknown, length: unknown, isRightKind: boolean, hasTokens: boolean, sequences: number, needed: number): string {
    const count = typeof length === 'number' ? `${formatNumber(length)} numbers` : 'nothing';
    const kind = isRightKind || given === undefined || given === null ? '' : `what is no ${hasTokens ? 'Int32Array' : 'Float32Array'}, `;
    const wanted = `${hasTokens ? 'tokens' : 'logits'} for ${formatCount('sequence', sequences)}, ${formatNumber(needed)} numbers`;
    return `it answered with ${kind}${count} instead of ${wanted}`;
  }

  /** Rows of an array that came before are kept. */
  #cut(logits: Float32Array, sequences: number): void {
    if (logits !== this.#rowsOf || this.#rows[0]?.length === 0) {
      this.#rowsOf = logits;
      this.#rows.length = 0;
    }
    const { length } = this.#rows;
    for (let at = length; at < sequences; at += 1) {
      this.#rows.push(logits.subarray(at * this.#vocabularyTokens, (at + 1) * this.#vocabularyTokens));
    }
  }
}
