// SampledText: the text that an answer goes on from, as samplers see it.

/** What a request's answer goes on from. Valid during the call of a sampler. */
export interface SampledText {
  /** Prompt and answer; only the first `length` count. Must not be changed or kept. */
  readonly tokens: Int32Array;
  /** Tokens of both. */
  readonly length: number;
  /** Of these, the prompt's. */
  readonly promptTokens: number;
}

/** What a generation keeps of its text. */
interface GrowingText {
  /** Room for more than it has. */
  readonly text: Int32Array;
  readonly textTokens: number;
  readonly promptTokens: number;
}

/** The text of a generation: one object for all its tokens. */
export class GeneratedText implements SampledText {
  readonly #generation: GrowingText;

  constructor(generation: GrowingText) {
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
