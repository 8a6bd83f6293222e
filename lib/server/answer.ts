// Answer: one choice of a response: the text of a token stream, piece by piece, up to a stop string. It has one reader. The request of the
// scheduler ends with it: at a stop string as answered, otherwise where the reader leaves as cancelled.

import type { TokenStream } from '../index.js';
import type { ServedTokenizer } from './server-options.js';
import { StopText } from './stop-text.js';

/** As OpenAI's API says why an answer ended. */
export type FinishWord = 'stop' | 'length';

export interface AnswerOptions {
  /** Its place among the choices. */
  readonly index: number;
  readonly stream: TokenStream;
  readonly tokenizer: ServedTokenizer;
  readonly stops: readonly string[];
}

export class Answer {
  readonly index: number;
  readonly #stream: TokenStream;
  readonly #pieces: ReturnType<ServedTokenizer['pieces']>;
  readonly #stop: StopText;
  #tokens = 0;
  #finishReason: FinishWord | undefined;

  constructor({ index, stream, tokenizer, stops }: AnswerOptions) {
    this.index = index;
    this.#stream = stream;
    this.#pieces = tokenizer.pieces();
    this.#stop = new StopText(stops);
  }

  /** Tokens of the answer so far, those of a stop string included. */
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

  /** The text, piece by piece, none of them empty. Throws what ended the request. */
  async *text(): AsyncGenerator<string, void, undefined> {
    const stop = this.#stop;
    for (;;) {
      const { done, value: token } = await this.#stream.next();
      if (done === true) break;
      this.#tokens += 1;
      const text = stop.push(this.#pieces.push(token));
      if (text !== '') yield text;
      if (!stop.isStopped) continue;
      this.#stream.finish();
      this.#finishReason = 'stop';
      return;
    }
    const { finishReason } = await this.#stream.result;
    const rest = stop.push(this.#pieces.end()) + stop.end();
    if (rest !== '') yield rest;
    this.#finishReason = stop.isStopped ? 'stop' : finishReason;
  }
}
