// Answer: one choice of a response: the text of a token stream, piece by piece, up to a stop string, parted into what a
// chat's answer consists of, and how likely its tokens were. It has one reader. The request of the scheduler ends with
// it: where the reader leaves, as cancelled.

import type { TokenLogProbability, TokenStream } from '../index.js';
import type { ChatDelta, ChatText } from './chat-text.js';
import type { Logprobs } from './logprobs.js';

/** As OpenAI's API says why an answer ended. */
export type FinishWord = 'stop' | 'length' | 'tool_calls';

/** What came next of an answer. */
export interface AnswerPart {
  readonly deltas: readonly ChatDelta[];
  /** Of the tokens that came since the last part; none where they were not asked for. */
  readonly logProbabilities: readonly TokenLogProbability[];
}

export interface AnswerOptions {
  /** Its place among the choices. */
  readonly index: number;
  readonly stream: TokenStream;
  /** Writes its log-probabilities; undefined: they were not asked for. */
  readonly logprobs: Logprobs | undefined;
  /** Parts the text of a chat; undefined: it is the answer as it is. */
  readonly chatText: ChatText | undefined;
  /** What stands before the answer: its prompt, where that is asked for. Rejects as a request does. */
  readonly echo: Promise<AnswerPart> | undefined;
  /** Whether no token was asked for: the one that is computed is not shown. */
  readonly isEmpty: boolean;
}

export class Answer {
  readonly index: number;
  readonly logprobs: Logprobs | undefined;
  readonly #stream: TokenStream;
  readonly #chatText: ChatText | undefined;
  readonly #echo: Promise<AnswerPart> | undefined;
  readonly #isEmpty: boolean;
  #tokens = 0;
  #finishReason: FinishWord | undefined;

  constructor({ index, stream, logprobs, chatText, echo, isEmpty }: AnswerOptions) {
    this.index = index;
    this.logprobs = logprobs;
    this.#stream = stream;
    this.#chatText = chatText;
    this.#echo = echo;
    this.#isEmpty = isEmpty;
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
    if (this.#echo !== undefined) yield await this.#echo;
    let given = 0;
    const partOf = (deltas: readonly ChatDelta[]): AnswerPart => {
      const logProbabilities = this.#stream.logProbabilities?.slice(given) ?? [];
      given += logProbabilities.length;
      return { deltas, logProbabilities };
    };
    const hasSome = (
      { deltas, logProbabilities }: AnswerPart,
    ): boolean => !this.#isEmpty && deltas.length + logProbabilities.length > 0;
    for await (const text of this.#stream.pieces()) {
      const part = partOf(this.#chatText?.push(text) ?? [{ content: text }]);
      if (hasSome(part)) yield part;
    }
    const { finishReason, tokens } = await this.#stream.result;
    const part = partOf(this.#chatText?.end() ?? []);
    if (hasSome(part)) yield part;
    this.#tokens = this.#isEmpty ? 0 : tokens.length;
    this.#finishReason = this.#isEmpty ? 'length' : finishReason === 'stop' && this.#chatText?.hasCalls === true
      ? 'tool_calls' : finishReason;
  }
}
