// StampEngine: the engine of a replay. It stamps a test pattern where a model would write K and V, answers with the
// tokens that the trace's requests say, and verifies the pattern before a sequence is released. It counts the valid
// tokens of running sequences.

import type { Sequence } from '../index.js';
import type { Engine, EngineOutput, EnginePass } from '../serving/engine.js';
import { PAGED_BLOCK_TOKENS } from './memory-timeline.js';
import { oneKey, StampRuns, type StampKeys } from './stamps.js';
import type { RequestText } from './request-text.js';
import type { Verification } from './verification.js';

/** A sequence that the engine computes. */
interface StampedSequence {
  /** Undefined where the cache is not told what requests say. */
  readonly text: RequestText | undefined;
  readonly keys: StampKeys;
  readonly runs: StampRuns;
  /** Valid tokens. */
  length: number;
}

export class StampEngine implements Engine {
  readonly vocabularyTokens = 2 ** 31;
  readonly #verification: Verification;
  readonly #sequences = new Map<Sequence, StampedSequence>();
  readonly #answer: { readonly tokens: Int32Array };
  /** How fast prompts are taken to be computed, in tokens a millisecond; undefined: it does not matter. */
  readonly #tokensPerMs: number | undefined;
  /** What computing prompts would have taken until now, at that speed. Read only. */
  computedMs = 0;
  #admissions = 0;
  #usedTokens = 0;
  #pagedBlocks = 0;

  /** For passes of at most `maxBatch` sequences. */
  constructor(verification: Verification, maxBatch: number, tokensPerMs?: number) {
    this.#tokensPerMs = tokensPerMs;
    this.#verification = verification;
    this.#answer = { tokens: new Int32Array(maxBatch) };
  }

  /** Valid tokens of the running sequences. */
  get usedTokens(): number {
    return this.#usedTokens;
  }

  /** Tokens that a paged cache would hold for them: each sequence rounded up to whole blocks. */
  get pagedTokens(): number {
    return this.#pagedBlocks * PAGED_BLOCK_TOKENS;
  }

  /** Begins a sequence, whose cached tokens were stamped before. */
  start(sequence: Sequence, text: RequestText | undefined): void {
    const { length, cachedTokens } = sequence;
    this.#admissions += 1;
    const keys = text ?? oneKey(this.#verification.keyOf(this.#admissions));
    const runs = new StampRuns();
    this.#verification.recall(runs, keys, cachedTokens);
    this.#sequences.set(sequence, { text, keys, runs, length });
    this.#count(0, length);
  }

  /** Verifies a sequence, which is released after that. Returns its valid tokens. */
  end(sequence: Sequence): number {
    const { runs, keys, length } = this.#sequences.get(sequence)!;
    this.#verification.verify(sequence, runs, keys);
    this.#sequences.delete(sequence);
    this.#count(length, 0);
    return length;
  }

  prefill(pass: EnginePass): EngineOutput {
    if (this.#tokensPerMs !== undefined) {
      for (let index = 0; index < pass.length; index += 1) {
        this.computedMs += pass.tokenCounts[index]! / this.#tokensPerMs;
      }
    }
    return this.#compute(pass);
  }

  decode(pass: EnginePass): EngineOutput {
    return this.#compute(pass);
  }

  #compute({ length, sequences, positions, tokenCounts }: EnginePass): EngineOutput {
    for (let index = 0; index < length; index += 1) {
      const sequence = sequences[index]!;
      const stamped = this.#sequences.get(sequence)!;
      const from = positions[index]!;
      const tokens = tokenCounts[index]!;
      this.#verification.stamp(sequence, stamped.runs, stamped.keys, from, tokens);
      this.#count(from, from + tokens);
      stamped.length = from + tokens;
      this.#answer.tokens[index] = stamped.text?.tokenAt(from + tokens) ?? 0;
    }
    return this.#answer;
  }

  #count(tokensBefore: number, tokensNow: number): void {
    this.#usedTokens += tokensNow - tokensBefore;
    this.#pagedBlocks += Math.ceil(tokensNow / PAGED_BLOCK_TOKENS) - Math.ceil(tokensBefore / PAGED_BLOCK_TOKENS);
  }
}
