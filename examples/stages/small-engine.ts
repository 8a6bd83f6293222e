// SmallEngine: serves a SmallModel from a cache. A request's `input` has the rows that it is given for its tokens; the engine answers with
// the row of every new token for the side tensor `side`.

import type { Engine, EngineOutput, EnginePass } from 'virtual-kv';
import { givenTo, type GivenRows } from 'virtual-kv/llama';

import type { SmallModel } from './small-model.js';

export interface SmallEngineOptions {
  readonly model: SmallModel;
  /** Name of the side tensor [token, `model.sideWidth`], float32. */
  readonly side: string;
  /** Elements from the K of one token to that of the next in the cache. Default `model.width`. */
  readonly tokenStride?: number | undefined;
}

export class SmallEngine implements Engine {
  readonly vocabularyTokens: number;
  /** Tokens that it has computed. */
  computedTokens = 0;
  readonly #model: SmallModel;
  readonly #side: string;
  readonly #tokenStride: number;
  #rows = new Float32Array(0);
  #logits = new Float32Array(0);

  constructor({ model, side, tokenStride = model.width }: SmallEngineOptions) {
    this.#model = model;
    this.#side = side;
    this.#tokenStride = tokenStride;
    this.vocabularyTokens = model.vocabularyTokens;
  }

  /** The tensors that its cache must have. */
  sideTensors(): Record<string, { readonly width: number; readonly dtype: 'float32' }> {
    return { [this.#side]: { width: this.#model.sideWidth, dtype: 'float32' } };
  }

  prefill(pass: EnginePass): EngineOutput {
    const { length, tokenCounts, starts, wantsLogits } = pass;
    const model = this.#model;
    const count = starts[length - 1]! + tokenCounts[length - 1]!;
    if (this.#rows.length < count * model.sideWidth) this.#rows = new Float32Array(2 * count * model.sideWidth);
    if (this.#logits.length < length * this.vocabularyTokens) this.#logits = new Float32Array(length * this.vocabularyTokens);
    for (let index = 0; index < length; index += 1) {
      this.#computeOne(pass, index);
      if (wantsLogits[index] === 1) model.computeLogits(this.#logits.subarray(index * this.vocabularyTokens, (index + 1) * this.vocabularyTokens));
    }
    this.computedTokens += count;
    return { logits: this.#logits, side: { [this.#side]: this.#rows.subarray(0, count * model.sideWidth) } };
  }

  decode(pass: EnginePass): EngineOutput {
    return this.prefill(pass);
  }

  #computeOne({ sequences, positions, tokenCounts, starts, tokens, inputs }: EnginePass, index: number): void {
    const { sideWidth } = this.#model;
    const given = givenTo(inputs, index);
    const [keys, values] = [sequences[index]!.view(0) as Float32Array, sequences[index]!.view(1) as Float32Array];
    const context = { keys, values, tokenStride: this.#tokenStride };
    for (let offset = 0; offset < tokenCounts[index]!; offset += 1) {
      const at = positions[index]! + offset;
      const row = starts[index]! + offset;
      const side = this.#rows.subarray(row * sideWidth, (row + 1) * sideWidth);
      this.#model.compute(tokens[row]!, rowAt(given, at, this.#model.givenWidth), at, context, side);
    }
  }
}

function rowAt(given: readonly GivenRows[], token: number, width: number): Float32Array | undefined {
  for (const { at, rows } of given) {
    if (token >= at && (token - at) * width < rows.length) return rows.subarray((token - at) * width, (token - at + 1) * width);
  }
  return undefined;
}
