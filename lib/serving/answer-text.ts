// AnswerText: the text of one answer as its tokens come, up to a stop string, wherever that begins and ends in the
// tokens. It calls the request's tokenizer, and keeps what that throws, which ends the request.

import { createError } from '../base/errors.js';
import { formatNumber } from '../base/format.js';
import { asError } from './scheduler-options.js';
import { StopText } from './stop-text.js';

/** Text of one answer's tokens, piece by piece. */
export interface TokenPieces {
  /** Takes the next token; returns the text that is whole by then and was not returned before. */
  push(token: number): string;
  /** The text that was held back, behind the last token. */
  end(): string;
}

/** Makes text of the tokens of answers. `LlamaTokenizer` does. */
export interface AnswerTokenizer {
  /** Called once for each request. */
  pieces(): TokenPieces;
}

export interface AnswerTextOptions {
  readonly pieces: () => TokenPieces;
  readonly stopStrings: readonly string[];
  /** Of its request. */
  readonly arrival: number;
}

export class AnswerText {
  readonly #makePieces: () => TokenPieces;
  readonly #arrival: number;
  readonly #stop: StopText;
  #pieces: TokenPieces | undefined;
  #text = '';
  #hasEnded = false;
  #error: Error | undefined;

  constructor({ pieces, stopStrings, arrival }: AnswerTextOptions) {
    this.#makePieces = pieces;
    this.#arrival = arrival;
    this.#stop = new StopText(stopStrings);
  }

  /** What surely belongs to the answer. */
  get text(): string {
    return this.#text;
  }

  /** The stop string that ended it. */
  get stopString(): string | undefined {
    return this.#stop.stopString;
  }

  /** What is wrong with its tokenizer: the text ends there. */
  get error(): Error | undefined {
    return this.#error;
  }

  /** Adds the next token. Nothing happens behind its end. */
  push(token: number): void {
    this.#add(token);
  }

  /** Adds what was held back, at the end of the answer. */
  end(): void {
    if (this.#hasEnded) return;
    this.#add(undefined);
    this.#hasEnded = true;
    if (this.#error === undefined) this.#text += this.#stop.end();
  }

  /** Adds the text of a token, or what was held back where there is none. */
  #add(token: number | undefined): void {
    if (this.#hasEnded || this.#error !== undefined || this.stopString !== undefined) return;
    let piece: unknown;
    try {
      this.#pieces ??= readPieces(this.#makePieces());
      piece = token === undefined ? this.#pieces.end() : this.#pieces.push(token);
    } catch (error) {
      const operation = token === undefined ? 'ending a text' : `making text of token ${formatNumber(token)}`;
      this.#error = asError(error, 'tokenizer', { operation, arrivals: [this.#arrival] });
      return;
    }
    if (typeof piece === 'string') this.#text += this.#stop.push(piece);
    else {
      this.#error = createError('KV_INVALID_OPTION', {
        reason: 'type', owner: 'GenerationRequest', option: 'tokenizer',
        expected: 'an object whose `pieces()` give strings', received: piece,
      });
    }
  }
}

/** Its functions, read once. */
function readPieces(pieces: TokenPieces): TokenPieces {
  const { push, end } = pieces;
  return { push: (token) => Reflect.apply(push, pieces, [token]), end: () => Reflect.apply(end, pieces, []) };
}
