// BatchSampler: chooses the next tokens of a pass by native code, all in one call, on one thread per processor where
// that pays. What is chosen depends neither on the threads nor on the instructions of the machine. Its lists and arrays
// are kept: it allocates nothing for a token. For the cache's thread.

import { availableParallelism } from 'node:os';

import type { Instructions } from '../device/native-kernels.js';
import type { NativeSampling } from '../device/native-kernels.js';
import { native } from '../device/native.js';
import { hasPenalties, type LikelyToken, type TokenLogProbability } from './plain-sampling.js';
import type { SampledText } from './sampled-text.js';
import { uniformOf, type KnownSampler } from './sampling.js';

/** Numbers of a choice, as native/addon/sampling_binding.cc reads them. */
const numbersOfChoice = 12;
/** Arguments before those of each choice. */
const head = 9;

type Argument = Parameters<NativeSampling['choose']>[number];

export interface BatchSamplerOptions {
  readonly vocabularyTokens: number;
  readonly threads?: number;
  readonly instructions?: Instructions;
}

/** The next token of an answer. */
export interface ChosenToken {
  readonly token: number;
  /** Undefined unless its request asks for it. */
  readonly logProbability: TokenLogProbability | undefined;
}

/** An answer that goes on. */
export interface Answering {
  readonly seed: number;
  /** Tokens that it has. */
  readonly generatedTokens: number;
  readonly sampledText: SampledText;
}

export class BatchSampler {
  readonly #native: NativeSampling;
  readonly #arguments: Argument[] = [];
  #numbers = new Float64Array(0);
  #best = 0;
  #hasLists = false;
  #count = 0;
  #capacity = 0;
  /** [choice]: what was chosen: a token, whose logit is NaN where one is. */
  tokens: Int32Array = new Int32Array(0);
  /** [choice]: the logarithm of its probability, by the logits as they were given; only where it was asked for. */
  logProbabilities: Float64Array = new Float64Array(0);
  /** [choice, place]: the most likely tokens, -1 where there are no more. */
  bestTokens: Int32Array = new Int32Array(0);
  bestLogProbabilities: Float64Array = new Float64Array(0);

  constructor({ vocabularyTokens, threads = availableParallelism(), instructions = 'auto' }: BatchSamplerOptions) {
    this.#native = new (native().NativeSampling)({ threads, instructions });
    this.#arguments.length = head;
    this.#arguments[1] = vocabularyTokens;
  }

  /** The instructions that it uses. */
  get target(): string {
    return this.#native.target();
  }

  get count(): number {
    return this.#count;
  }

  /** Begins a batch of at most `capacity` choices, which want at most `best` most likely tokens each. */
  begin(capacity: number, best: number): void {
    this.#count = 0;
    this.#hasLists = false;
    this.#best = best;
    this.#arguments.length = head;
    if (capacity > this.#capacity) {
      this.#capacity = capacity;
      this.#numbers = new Float64Array(capacity * numbersOfChoice);
      this.tokens = new Int32Array(capacity);
      this.logProbabilities = new Float64Array(capacity);
    }
    if (this.#capacity * best > this.bestTokens.length) {
      this.bestTokens = new Int32Array(this.#capacity * best);
      this.bestLogProbabilities = new Float64Array(this.#capacity * best);
    }
  }

  /**
   * Adds a choice from a row of the logits, for the next token of an answer. `wants`: whether its log-probability is
   * asked for.
   */
  add(
    row: number, rules: KnownSampler, { seed, generatedTokens, sampledText: text }: Answering, wants = this.#best > 0,
  ): void {
    const numbers = this.#numbers;
    let at = this.#count * numbersOfChoice;
    const isPenalized = hasPenalties(rules);
    numbers[at++] = row;
    numbers[at++] = rules.temperature;
    numbers[at++] = rules.topK < 2 ** 31 - 1 ? rules.topK : 0;
    numbers[at++] = rules.topP;
    numbers[at++] = rules.minP;
    numbers[at++] = rules.repetitionPenalty;
    numbers[at++] = rules.presencePenalty;
    numbers[at++] = rules.frequencyPenalty;
    numbers[at++] = rules.temperature === 0 ? 0 : uniformOf(seed, generatedTokens);
    numbers[at++] = text.length;
    numbers[at++] = text.promptTokens;
    numbers[at] = wants ? 1 : 0;
    const hasBias = rules.biasTokens.length > 0;
    this.#hasLists ||= isPenalized || hasBias;
    this.#arguments.push(isPenalized ? text.tokens : undefined, hasBias ? rules.biasTokens : undefined, rules.bias);
    this.#count += 1;
  }

  /**
   * How likely a choice was that wanted to know, and the `best` most likely tokens, at most as many as the batch began
   * with.
   */
  logProbabilityOf(choice: number, best: number): TokenLogProbability {
    const likely: LikelyToken[] = [];
    for (let at = choice * this.#best; at < choice * this.#best + best && this.bestTokens[at]! >= 0; at += 1) {
      likely.push({ token: this.bestTokens[at]!, logProbability: this.bestLogProbabilities[at]! });
    }
    return { token: this.tokens[choice]!, logProbability: this.logProbabilities[choice]!, best: likely };
  }

  /** Chooses. Pre: `logits` has all rows that were added. */
  choose(logits: Float32Array): void {
    const given = this.#arguments;
    if (!this.#hasLists) given.length = head;
    given[0] = logits;
    given[2] = this.#count;
    given[3] = this.#numbers;
    given[4] = this.#best;
    given[5] = this.tokens;
    given[6] = this.logProbabilities;
    given[7] = this.bestTokens;
    given[8] = this.bestLogProbabilities;
    this.#native.choose(...given);
    given.length = head; // keeps no text
    given[0] = undefined;
  }
}
