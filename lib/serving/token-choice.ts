// TokenChoice: chooses the next token of every sequence of a pass from the engine's answer: by native code, all in one
// call, for the samplers that it knows, by calling the others; and takes the log-probabilities that requests ask for.
// What is wrong with one sequence only ends that one.

import { createError, isKvError } from '../base/errors.js';
import { formatCount, formatNumber } from '../base/format.js';
import { describe } from '../base/phrases.js';
import { BatchSampler, type ChosenToken } from './batch-sampler.js';
import type { EngineAnswer, EngineCall } from './engine-answer.js';
import type { Generation } from './generation.js';
import { logProbabilityOf, mostLikely } from './plain-sampling.js';
import { asError } from './scheduler-options.js';
import type { Pass } from './step-passes.js';

export class TokenChoice {
  readonly #vocabularyTokens: number;
  readonly #sampler: BatchSampler;
  /** [choice]: its place in the pass. */
  readonly #places: number[] = [];

  constructor(vocabularyTokens: number) {
    this.#vocabularyTokens = vocabularyTokens;
    this.#sampler = new BatchSampler({ vocabularyTokens });
  }

  /**
   * Chooses for all sequences of a pass that want it: fills its `nextTokens`, `logProbabilities`, `keptLogits` and
   * `errors`.
   */
  chooseAll(call: EngineCall, pass: Pass, answer: EngineAnswer): void {
    const { hasTokens } = answer;
    if (!hasTokens) this.#chooseNatively(call, pass, answer);
    for (let index = 0; index < pass.length; index += 1) {
      const generation = pass.generations[index]!;
      if (pass.wantsLogits[index] === 0 || generation.hasEnded || (!hasTokens && generation.rules !== undefined)) {
        continue;
      }
      try {
        if (hasTokens) pass.nextTokens[index] = this.#given(call, index, generation, answer);
        else this.#sampled(call, index, pass, answer);
      } catch (error) { // what the sampler of a request throws
        pass.errors[index] = error as Error;
      }
    }
  }

  /** Chooses from the logits behind a text that was cached. Throws what the sampler throws. */
  chooseOne(logits: Float32Array, generation: Generation): ChosenToken {
    const { rules } = generation;
    const best = generation.request.logProbabilities;
    if (rules === undefined) return this.#sample(logits, generation, 'prefill');
    this.#sampler.begin(1, best ?? 0);
    this.#sampler.add(0, rules, generation, best !== undefined);
    this.#sampler.choose(logits);
    return this.#chosen(0, generation);
  }

  /** Chooses for all requests whose samplers native code can take over, in one call. */
  #chooseNatively(call: EngineCall, pass: Pass, answer: EngineAnswer): void {
    const sampler = this.#sampler;
    let best = 0;
    for (let index = 0; index < pass.length; index += 1) {
      best = Math.max(best, pass.generations[index]!.request.logProbabilities ?? 0);
    }
    sampler.begin(pass.length, best);
    for (let index = 0; index < pass.length; index += 1) {
      const generation = pass.generations[index]!;
      if (pass.wantsLogits[index] === 0 || generation.hasEnded || generation.rules === undefined) continue;
      this.#places[sampler.count] = index;
      sampler.add(index, generation.rules, generation, generation.logProbabilities !== undefined);
    }
    if (sampler.count === 0) return;
    const { logits } = answer;
    if (logits !== undefined) sampler.choose(logits);
    for (let choice = 0; choice < sampler.count; choice += 1) {
      const index = this.#places[choice]!;
      const generation = pass.generations[index]!;
      const row = logits && answer.row(index);
      const token = sampler.tokens[choice]!;
      pass.nextTokens[index] = token;
      if (row === undefined) pass.errors[index] = logitsError(call, 'its logits were gone before they were read');
      else if (Number.isNaN(row[token])) pass.errors[index] = notNumbers(call);
      else {
        if (generation.logProbabilities !== undefined) {
          pass.logProbabilities[index] = this.#chosen(choice, generation).logProbability;
        }
        if (generation.keepsLogits) pass.keptLogits[index] = new Float32Array(row);
      }
    }
  }

  #chosen(choice: number, { request: { logProbabilities: best } }: Generation): ChosenToken {
    return {
      token: this.#sampler.tokens[choice]!,
      logProbability: best === undefined ? undefined : this.#sampler.logProbabilityOf(choice, best),
    };
  }

  /** The token that the engine has chosen. */
  #given(call: EngineCall, index: number, { logProbabilities }: Generation, answer: EngineAnswer): number {
    const token = answer.token(index);
    if (!this.#isToken(token)) {
      throw createError('KV_ENGINE_FAILED', {
        call, sequences: 1, problem: `token ${describe(token)} is not in its vocabulary`,
      });
    }
    if (logProbabilities === undefined) return token;
    throw createError('KV_ENGINE_FAILED', {
      call, sequences: 1, problem: 'it answered with tokens, and the request asks for log-probabilities',
    });
  }

  /** Has the function of the request choose. */
  #sampled(call: EngineCall, index: number, pass: Pass, answer: EngineAnswer): void {
    const generation = pass.generations[index]!;
    const logits = answer.row(index);
    if (logits === undefined) throw logitsError(call, 'its logits were gone before they were read');
    const kept = generation.keepsLogits ? new Float32Array(logits) : undefined;
    const chosen = this.#sample(logits, generation, call);
    pass.nextTokens[index] = chosen.token;
    pass.logProbabilities[index] = chosen.logProbability;
    pass.keptLogits[index] = kept; // only now: logits that gave no token are not kept
  }

  #sample(
    logits: Float32Array, { request, generatedTokens, arrival, sampledText }: Generation, call: EngineCall,
  ): ChosenToken {
    if (Number.isNaN(logits[mostLikely(logits)])) throw notNumbers(call); // not what the function makes of them
    let token: unknown;
    try {
      token = request.sampler(logits, generatedTokens, sampledText);
    } catch (error) {
      const operation =
        `choosing token ${formatNumber(generatedTokens)} of the answer to a prompt of ${formatCount('token', request.tokens.length)}`;
      throw asError(error, 'sampler', { operation, arrivals: [arrival] });
    }
    if (this.#isToken(token)) {
      // Undefined: the engine, or the sampler, has transferred their memory.
      const logit = logits[token];
      if (logit === undefined) throw logitsError(call, 'its logits were gone before they were read');
      const { logProbabilities: best } = request;
      return { token, logProbability: best === undefined ? undefined : logProbabilityOf(logits, token, best) };
    }
    throw createError('KV_INVALID_OPTION', {
      reason: typeof token === 'number' ? 'range' : 'type', owner: 'GenerationRequest', option: 'sampler',
      expected: `a function that returns a token from 0 to ${this.#vocabularyTokens - 1}`, received: token,
    });
  }

  #isToken(token: unknown): token is number {
    return Number.isInteger(token) && (token as number) >= 0 && (token as number) < this.#vocabularyTokens;
  }
}

const notNumbersProblem = 'its logits are not numbers';

function notNumbers(call: EngineCall): Error {
  return logitsError(call, notNumbersProblem);
}

/**
 * Whether no token could be chosen since logits were no numbers: what the request has computed, or found, may be bad.
 */
export function saysNotNumbers(error: Error): boolean {
  return isKvError(error, 'KV_ENGINE_FAILED') && error.details.problem === notNumbersProblem;
}

function logitsError(call: EngineCall, problem: string): Error {
  return createError('KV_ENGINE_FAILED', { call, sequences: 1, problem });
}
