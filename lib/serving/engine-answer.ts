// EngineAnswer: what an engine has answered to a pass. Each part is read once, and checked before anything is taken
// from it. Rows of logits are views of the engine's own memory: an engine that answers with the same array every time
// costs no allocation.

import { createError } from '../base/errors.js';
import { formatCount, formatNumber } from '../base/format.js';
import { floatsOf, isArray, isFloat32Array, lengthOf, typedArrayKind } from '../base/typed-arrays.js';
import type { Pass } from './step-passes.js';

export type EngineCall = 'prefill' | 'decode';

export class EngineAnswer {
  readonly #vocabularyTokens: number;
  #tokens: ArrayLike<unknown> | undefined;
  #logits: Float32Array | undefined;
  #side: unknown;
  #rowsOf: Float32Array | undefined;
  readonly #rows: Float32Array[] = [];

  constructor(vocabularyTokens: number) {
    this.#vocabularyTokens = vocabularyTokens;
  }

  /**
   * Takes an answer to a pass. Throws KV_ENGINE_FAILED unless it has a row for each sequence up to the last that wants
   * logits.
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

  /** What the engine gave as the next token of a sequence, where `hasTokens`: unchecked, to be read once. */
  token(index: number): unknown {
    return this.#tokens?.[index];
  }

  /** Rows of side tensors, unchecked, to be read once; undefined: it gave none. */
  get side(): unknown {
    return this.#side;
  }

  /** Whether the engine has chosen the tokens. */
  get hasTokens(): boolean {
    return this.#tokens !== undefined;
  }

  /**
   * The logits of all sequences, as many rows as the last that wants some. Undefined: the engine has transferred their
   * memory since.
   */
  get logits(): Float32Array | undefined {
    return this.#rows.length > 0 && this.row(0) !== undefined ? this.#logits : undefined;
  }

  /** The logits of a sequence. Undefined: the engine has transferred their memory since. */
  row(index: number): Float32Array | undefined {
    const row = this.#rows[index]!;
    return lengthOf(row) === this.#vocabularyTokens ? row : undefined;
  }

  /** Takes an answer's parts; returns what is wrong with it, if something is. */
  #read(output: unknown, sequences: number): string | undefined {
    const isObject = typeof output === 'object' && output !== null;
    if (isObject && (ArrayBuffer.isView(output) || isArray(output))) {
      return 'it answered with an array itself instead of `{ logits }` or `{ tokens }`';
    }
    const { tokens, logits, side } =
      (isObject ? output : {}) as { readonly tokens?: unknown; readonly logits?: unknown; readonly side?: unknown };
    const hasTokens = tokens !== undefined;
    const given = hasTokens ? tokens : logits;
    const needed = hasTokens ? sequences : sequences * this.#vocabularyTokens;
    const length = countOf(given);
    const isRightKind = length !== undefined && (hasTokens || isFloat32Array(given));
    if (!isRightKind || !(length >= needed)) {
      return this.#complaint(given, length, isRightKind, hasTokens, sequences, needed);
    }
    this.#side = side;
    this.#tokens = hasTokens ? given as ArrayLike<unknown> : undefined;
    this.#logits = hasTokens ? undefined : given as Float32Array;
    if (this.#logits !== undefined) this.#cut(this.#logits, sequences);
    return undefined;
  }

  #complaint(
    given: unknown, length: number | undefined, isRightKind: boolean, hasTokens: boolean, sequences: number,
    needed: number,
  ): string {
    const count = length !== undefined ? `${formatNumber(length)} numbers` : 'nothing';
    const kind = isRightKind || given === undefined || given === null ? ''
      : `what is no ${hasTokens ? 'Int32Array' : 'Float32Array'}, `;
    const wanted =
      `${hasTokens ? 'tokens' : 'logits'} for ${formatCount('sequence', sequences)}, ${formatNumber(needed)} numbers`;
    return `it answered with ${kind}${count} instead of ${wanted}`;
  }

  /** Makes a view per row. Those of an array that came before are used again. */
  #cut(logits: Float32Array, sequences: number): void {
    if (logits !== this.#rowsOf || this.#rows.some((row) => lengthOf(row) !== this.#vocabularyTokens)) {
      this.#rowsOf = logits;
      this.#rows.length = 0;
    }
    const { length } = this.#rows;
    for (let at = length; at < sequences; at += 1) {
      this.#rows.push(floatsOf(logits, at * this.#vocabularyTokens, this.#vocabularyTokens));
    }
  }
}

/** Elements of an array or typed array; undefined for anything else. */
function countOf(list: unknown): number | undefined {
  if (typedArrayKind(list) !== undefined) return lengthOf(list as Float32Array);
  return isArray(list) ? list.length : undefined;
}
