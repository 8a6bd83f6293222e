// EngineCalls: how a scheduler calls its engine: waits for the answer, takes the time, checks what came, chooses the next
// token of every sequence, and says whatever went wrong as an error of the catalogue.

import { createError } from '../errors/index.js';
import type { Engine, EngineOutput } from './engine.js';
import type { Generation } from './generation.js';
import { LogitRows } from './logit-rows.js';
import type { Pass } from './pass.js';
import type { ServingTotals } from './totals.js';

export type EngineCall = 'prefill' | 'decode';

export interface EngineCallsOptions {
  readonly engine: Engine;
  readonly totals: ServingTotals;
  readonly now: () => number;
}

export class EngineCalls {
  readonly #engine: Engine;
  readonly #totals: ServingTotals;
  readonly #now: () => number;
  readonly #rows: LogitRows;

  constructor({ engine, totals, now }: EngineCallsOptions) {
    this.#engine = engine;
    this.#totals = totals;
    this.#now = now;
    this.#rows = new LogitRows(engine.vocabularyTokens);
  }

  /**
   * Has the engine compute a pass, and chooses the next tokens at once: its logits are its own again with its next call.
   * Rejects with KV_ENGINE_FAILED, its cause what the engine threw. What is wrong with one sequence only is in
   * `pass.errors`.
   */
  async run(call: EngineCall, pass: Pass): Promise<void> {
    const startMs = this.#now();
    let output: EngineOutput;
    try {
      output = await (call === 'prefill' ? this.#engine.prefill(pass) : this.#engine.decode(pass));
    } catch (error) {
      throw createError('KV_ENGINE_FAILED', { call, sequences: pass.length, problem: 'it threw an error' }, { cause: error });
    } finally {
      this.#totals[`${call}Ms`] += this.#now() - startMs;
    }
    this.#check(call, pass.length, output);
    for (let index = 0; index < pass.length; index += 1) {
      if (pass.wantsLogits[index] === 0) continue;
      try {
        pass.nextTokens[index] = this.#next(call, output, index, pass);
      } catch (error) { // what the sampler of a request throws
        pass.errors[index] = error as Error;
      }
    }
  }

  /**
   * The next token of a generation all of whose text was cached, from the logits that were kept at its end. Undefined: its
   * last token is to be computed. Throws what its sampler throws.
   */
  nextOfCached(generation: Generation): number | undefined {
    const { sequence, textTokens } = generation;
    if (generation.length < textTokens) return undefined;
    const logits = sequence!.keptValue;
    if (logits instanceof Float32Array && logits.length === this.#engine.vocabularyTokens) {
      return this.#sample(logits, generation, 'prefill');
    }
    sequence!.truncate(textTokens - 1); // somebody else keeps values of his own in this cache
    generation.length = textTokens - 1;
    return undefined;
  }

  #next(call: EngineCall, output: EngineOutput, index: number, pass: Pass): number {
    const generation = pass.generations[index]!;
    if ('tokens' in output) return this.#checkToken(output.tokens[index]!, call);
    const logits = this.#rows.row(output.logits, index);
    if (generation.keepsLogits) pass.keptLogits[index] = logits.slice();
    return this.#sample(logits, generation, call);
  }

  #sample(logits: Float32Array, { request, generatedTokens }: Generation, call: EngineCall): number {
    const token = request.sampler(logits, generatedTokens);
    return this.#checkToken(Number.isNaN(logits[token]) ? Number.NaN : token, call);
  }

  #checkToken(token: number, call: EngineCall): number {
    if (Number.isInteger(token) && token >= 0 && token < this.#engine.vocabularyTokens) return token;
    const problem = Number.isNaN(token) ? 'its logits are not numbers' : `token ${token} is not in its vocabulary`;
    throw createError('KV_ENGINE_FAILED', { call, sequences: 1, problem });
  }

  /** Throws KV_ENGINE_FAILED unless `output` has an answer for each sequence of the pass. */
  #check(call: EngineCall, sequences: number, output: EngineOutput | null | undefined): void {
    const { vocabularyTokens } = this.#engine;
    const hasTokens = typeof output === 'object' && output !== null && 'tokens' in output;
    const given = hasTokens ? output.tokens : output?.logits;
    const needed = hasTokens ? sequences : sequences * vocabularyTokens;
    if (given !== undefined && given.length >= needed) return;
    const problem = `it answered with ${given?.length ?? 'no'} numbers instead of ${needed}`;
    throw createError('KV_ENGINE_FAILED', { call, sequences, problem });
  }
}
