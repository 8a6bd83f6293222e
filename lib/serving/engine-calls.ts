// EngineCalls: how a scheduler calls its engine: one pass at a time, whoever else has the same engine; waits for the answer,
// takes the time, checks what came, chooses the next token of every sequence, and says whatever went wrong as an error of the
// catalogue.

import { createError } from '../errors/index.js';
import { formatCount, formatNumber } from '../format.js';
import { describe } from '../errors/phrases.js';
import { isArray, isFloat32Array, lengthOf, typedArrayKind } from '../typed-arrays.js';
import { asError } from './as-error.js';
import type { Engine } from './engine.js';
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

/** Engines that compute at this moment, and when they will have: several schedulers, or runs, may share one. */
const busy = new WeakMap<Engine, Promise<void>>();

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
    const engine = this.#engine;
    if (busy.has(engine)) {
      for (let other = busy.get(engine); other !== undefined; other = busy.get(engine)) await other;
      if (pass.sequences.some((sequence) => sequence.isReleased)) { // its memory may be gone
        throw createError('KV_ENGINE_FAILED', { call, sequences: pass.length, problem: 'a slot was taken away before its turn' });
      }
    }
    let setFree = (): void => {};
    busy.set(engine, new Promise((resolve) => { setFree = resolve; }));
    try {
      await this.#run(call, pass);
    } finally {
      busy.delete(engine);
      setFree();
    }
  }

  async #run(call: EngineCall, pass: Pass): Promise<void> {
    const startMs = this.#now();
    let answer: Answer;
    try {
      const output = await (call === 'prefill' ? this.#engine.prefill(pass) : this.#engine.decode(pass)) as Partial<Answer> | null | undefined;
      answer = { tokens: output?.tokens, logits: output?.logits }; // read once: a getter may answer otherwise the second time
    } catch (error) {
      throw createError('KV_ENGINE_FAILED', { call, sequences: pass.length, problem: 'it threw an error' }, { cause: error });
    } finally {
      this.#totals[`${call}Ms`] += this.#now() - startMs;
    }
    this.#check(call, pass, answer);
    for (let index = 0; index < pass.length; index += 1) {
      if (pass.wantsLogits[index] === 0) continue;
      try {
        pass.nextTokens[index] = this.#next(call, answer, index, pass);
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
    if (isFloat32Array(logits) && lengthOf(logits) === this.#engine.vocabularyTokens) {
      return this.#sample(new Float32Array(logits), generation, 'prefill'); // a sampler that changes them would change others' answers
    }
    sequence!.truncate(textTokens - 1); // somebody else keeps values of his own in this cache
    generation.length = textTokens - 1;
    return undefined;
  }

  #next(call: EngineCall, { tokens, logits: all }: Answer, index: number, pass: Pass): number {
    const generation = pass.generations[index]!;
    if (tokens !== undefined) {
      const token: unknown = tokens[index];
      if (this.#isToken(token)) return token;
      throw createError('KV_ENGINE_FAILED', { call, sequences: 1, problem: `token ${describe(token)} is not in its vocabulary` });
    }
    if (countOf(all) < (index + 1) * this.#engine.vocabularyTokens) { // since they were checked
      throw createError('KV_ENGINE_FAILED', { call, sequences: 1, problem: 'it has given the memory of its logits away' });
    }
    const logits = this.#rows.row(all as Float32Array, index);
    const kept = generation.keepsLogits ? new Float32Array(logits) : undefined;
    const token = this.#sample(logits, generation, call);
    pass.keptLogits[index] = kept; // only now: what gave no token is worth nothing to others
    return token;
  }

  #sample(logits: Float32Array, { request, generatedTokens }: Generation, call: EngineCall): number {
    let token: unknown;
    try {
      token = request.sampler(logits, generatedTokens);
    } catch (error) {
      throw asError(error, 'sampler');
    }
    if (this.#isToken(token)) {
      // Undefined: the engine, or the sampler, has given their memory away.
      const logit = logits[token];
      if (logit !== undefined && !Number.isNaN(logit)) return token;
      throw createError('KV_ENGINE_FAILED', { call, sequences: 1, problem: 'its logits are not numbers' });
    }
    throw createError('KV_INVALID_OPTION', {
      reason: typeof token === 'number' ? 'range' : 'type', owner: 'GenerationRequest', option: 'sampler',
      expected: `a function that returns a token from 0 to ${this.#engine.vocabularyTokens - 1}`, received: token,
    });
  }

  #isToken(token: unknown): token is number {
    return Number.isInteger(token) && (token as number) >= 0 && (token as number) < this.#engine.vocabularyTokens;
  }

  /** Throws KV_ENGINE_FAILED unless `output` has an answer for each sequence of the pass up to the last whose answer is read. */
  #check(call: EngineCall, { length, wantsLogits }: Pass, { tokens, logits }: Answer): void {
    const { vocabularyTokens } = this.#engine;
    const sequences = 1 + wantsLogits.subarray(0, length).lastIndexOf(1);
    const hasTokens = tokens !== undefined;
    const given = hasTokens ? tokens : logits;
    const needed = hasTokens ? sequences : sequences * vocabularyTokens;
    const isRightKind = hasTokens || isFloat32Array(given);
    const numbers = countOf(given);
    if (isRightKind && numbers >= needed) return;
    const found = given === undefined || given === null ? 'nothing' : `${isRightKind ? '' : 'what is no Float32Array, '}${numbers} numbers`;
    const wanted = `${hasTokens ? 'tokens' : 'logits'} for ${formatCount('sequence', sequences)}, ${formatNumber(needed)} numbers`;
    throw createError('KV_ENGINE_FAILED', { call, sequences: length, problem: `it answered with ${found} instead of ${wanted}` });
  }
}

/** What an engine answered, as far as it is looked at. */
interface Answer {
  readonly tokens: ArrayLike<unknown> | undefined;
  readonly logits: unknown;
}

/** Elements of a list; 0 for what is none. */
function countOf(list: unknown): number {
  if (typedArrayKind(list) !== undefined) return lengthOf(list as Float32Array);
  return isArray(list) ? list.length : 0;
}
