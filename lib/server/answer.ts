// Answer: one choice of a response: the text of a token stream, piece by piece, up to a stop string, and how likely its tokens were. It
// has one reader. The request of the scheduler ends with it: where the reader leaves, as cancelled.

import type { TokenLogProbability, TokenStream } from '../index.js';
import type { Logprobs } from './logprobs.js';

/** As OpenAI's API says why an answer ended. */
export type FinishWord = 'stop' | 'length';

/** What came next of an answer. */
export interface AnswerPart {
  readonly text: string;
  /** Of the tokens that came since the last part; none where they were not asked for. */
  readonly logProbabilities: readonly TokenLogProbability[];
}

export interface AnswerOptions {
  /** Its place among the choices. */
  readonly index: number;
  readonly stream: TokenStream;
  /** Writes its log-probabilities; undefined: they were not asked for. */
  readonly logprobs: Logprobs | undefined;
}

export class Answer {
  readonly index: number;
  readonly logprobs: Logprobs | undefined;
  readonly #stream: TokenStream;
  #tokens = 0;
  #finishReason: FinishWord | undefined;

  constructor({ index, stream, logprobs }: AnswerOptions) {
    this.index = index;
    this.logprobs = logprobs;
    this.#stream = stream;
  }

  /** Tokens of the answer, those of a stop string included; 0 before its end. */
  get tokens(): number {
    return this.#tokens;
  }

  /** Tokens of the prompt that were cached; 0 while it waits for a slot. */
  get cachedTokens(): number {
    return this.#stream.admission?.cachedTokens ?? 0;
  }

  /** Why it ended; undefined before. */
  get finishReason(): FinishWord | undefined {
    return this.#finishReason;
  }

  /** Ends it at once. Nothing happens when it has ended. */
  cancel(): void {
    this.#stream.cancel();
  }

  /** Its parts as they come, none of them empty. Throws what ended the request. */
  async *parts(): AsyncGenerator<AnswerPart, void, undefined> {
    let given = 0;
    const next = (): readonly TokenLogProbability[] => {
      const news = this.#stream.logProbabilities?.slice(given) ?? [];
      given += news.length;
      return news;
    };
    for await (const text of this.#stream.pieces()) yield { text, logProbabilities: next() };
    const { finishReason, tokens } = await this.#stream.result;
    const logProbabilities = next();
    if (logProbabilities.length > 0) yield { text: '', logProbabilities };
    this.#tokens = tokens.length;
    this.#finishReason = finishReason;
  }
}
