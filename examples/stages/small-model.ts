// SmallModel: one attention layer with weights made from a seed, for stages behind a language model. Every token is computed by itself,
// always in the same order, so what comes out does not depend on how a pass was cut or batched, to the last bit.

import type { ModelShape } from 'virtual-kv';

export interface SmallModelOptions {
  readonly seed: number;
  /** Tokens that it can read, from 0 on. */
  readonly vocabularyTokens: number;
  /** The first token that it can answer with; the last is the vocabulary's. */
  readonly firstAnswer: number;
  /** Elements of a row that it is given for a token. */
  readonly givenWidth: number;
  /** Elements of the row that it computes for each token, for the next stage. */
  readonly sideWidth: number;
  /** Elements of a token's state. Default 32. */
  readonly width?: number | undefined;
}

/** K and V of a text: of each token, `tokenStride` elements from that of the token before. */
export interface Context {
  readonly keys: Float32Array;
  readonly values: Float32Array;
  readonly tokenStride: number;
}

/** [outputs, inputs] */
interface Matrix {
  readonly outputs: number;
  readonly weights: Float32Array;
}

export class SmallModel {
  readonly vocabularyTokens: number;
  readonly sideWidth: number;
  readonly width: number;
  readonly givenWidth: number;
  readonly #firstAnswer: number;
  readonly #embedding: Matrix;
  readonly #given: Matrix;
  readonly #query: Matrix;
  readonly #key: Matrix;
  readonly #value: Matrix;
  readonly #output: Matrix;
  readonly #side: Matrix;
  readonly #head: Matrix;
  readonly #state: Float64Array;
  readonly #vector: Float64Array;
  readonly #attended: Float64Array;
  #scores = new Float64Array(64);

  constructor({ seed, vocabularyTokens, firstAnswer, givenWidth, sideWidth, width = 32 }: SmallModelOptions) {
    const random = uniform(seed);
    const matrix = (outputs: number, inputs: number): Matrix => {
      const scale = 2 / Math.sqrt(inputs);
      return { outputs, weights: Float32Array.from({ length: outputs * inputs }, () => scale * random()) };
    };
    this.vocabularyTokens = vocabularyTokens;
    this.sideWidth = sideWidth;
    this.width = width;
    this.#firstAnswer = firstAnswer;
    this.givenWidth = givenWidth;
    this.#embedding = matrix(vocabularyTokens, width);
    this.#given = matrix(width, givenWidth);
    [this.#query, this.#key, this.#value, this.#output] = [matrix(width, width), matrix(width, width), matrix(width, width), matrix(width, width)];
    this.#side = matrix(sideWidth, width);
    this.#head = matrix(vocabularyTokens - firstAnswer, width);
    this.#state = new Float64Array(width);
    this.#vector = new Float64Array(width);
    this.#attended = new Float64Array(width);
  }

  /** Of a cache for it. */
  get shape(): ModelShape {
    return { layers: 1, kvHeads: 1, headDim: this.width, dtype: 'float32' };
  }

  /**
   * Computes token `at` of a text, with the row that it is given, if any: writes its K and V behind those of the tokens before, attends to
   * all of them, and writes its row for the next stage.
   */
  compute(token: number, given: Float32Array | undefined, at: number, context: Context, side: Float32Array): void {
    const { keys, values, tokenStride: stride } = context;
    const { width } = this;
    const state = this.#state;
    for (let index = 0; index < width; index += 1) state[index] = 4 * this.#embedding.weights[token * width + index]!;
    if (given !== undefined) {
      multiply(this.#given, given, this.#vector, this.givenWidth);
      for (let index = 0; index < width; index += 1) state[index]! += this.#vector[index]!;
    }
    for (let index = 0; index < width; index += 1) state[index] = Math.tanh(state[index]!);
    multiply(this.#key, state, keys.subarray(at * stride, at * stride + width), width);
    multiply(this.#value, state, values.subarray(at * stride, at * stride + width), width);
    this.#attend(at, context);
    multiply(this.#output, this.#attended, this.#vector, width);
    for (let index = 0; index < width; index += 1) state[index] = Math.tanh(state[index]! + this.#vector[index]!);
    multiply(this.#side, state, side, width);
  }

  /** The logits behind the token that was computed last. */
  computeLogits(logits: Float32Array): void {
    logits.fill(-Infinity, 0, this.#firstAnswer);
    multiply(this.#head, this.#state, logits.subarray(this.#firstAnswer), this.width);
  }

  /** attended = softmax of the last token's query over all keys, times the values; near tokens count more. */
  #attend(at: number, { keys, values, tokenStride }: Context): void {
    const { width } = this;
    multiply(this.#query, this.#state, this.#vector, width);
    if (this.#scores.length <= at) this.#scores = new Float64Array(2 * at + 2);
    let most = -Infinity;
    for (let token = 0; token <= at; token += 1) {
      let score = (token - at) / 16;
      for (let index = 0; index < width; index += 1) score += this.#vector[index]! * keys[token * tokenStride + index]! / width;
      this.#scores[token] = score;
      most = Math.max(most, score);
    }
    let sum = 0;
    this.#attended.fill(0);
    for (let token = 0; token <= at; token += 1) {
      const weight = Math.exp(this.#scores[token]! - most);
      sum += weight;
      for (let index = 0; index < width; index += 1) this.#attended[index]! += weight * values[token * tokenStride + index]!;
    }
    for (let index = 0; index < width; index += 1) this.#attended[index]! /= sum;
  }
}

/** output = matrix · vector */
function multiply({ outputs, weights }: Matrix, vector: Float32Array | Float64Array, output: Float32Array | Float64Array, inputs: number): void {
  for (let row = 0; row < outputs; row += 1) {
    let sum = 0;
    for (let index = 0; index < inputs; index += 1) sum += weights[row * inputs + index]! * vector[index]!;
    output[row] = sum;
  }
}

/** Numbers from −0.5 to 0.5, the same for the same seed. */
export function uniform(seed: number): () => number {
  let state = seed >>> 0;
  return () => {
    state = (state + 0x6d2b79f5) >>> 0;
    let mixed = Math.imul(state ^ (state >>> 15), state | 1);
    mixed ^= mixed + Math.imul(mixed ^ (mixed >>> 7), mixed | 61);
    return ((mixed ^ (mixed >>> 14)) >>> 0) / 2 ** 32 - 0.5;
  };
}
