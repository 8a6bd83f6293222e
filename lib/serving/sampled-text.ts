// TextOf: the text of a generation as samplers see it: one object for all its tokens.

import type { Generation } from './generation.js';
import type { SampledText } from './sampling.js';

export class TextOf implements SampledText {
  readonly #generation: Generation;

  constructor(generation: Generation) {
    this.#generation = generation;
  }

  get tokens(): Int32Array {
    return this.#generation.text;
  }

  get length(): number {
    return this.#generation.textTokens;
  }

  get promptTokens(): number {
    return this.#generation.promptTokens;
  }
}
