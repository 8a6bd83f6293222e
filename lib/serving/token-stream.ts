// TokenStream: one answer as it is generated: an async iterator of tokens, for one reader, and a promise of the whole.
// It reads the tokens where its request keeps them, so a slow reader delays no request. Leaving the loop early
// (`return`) cancels the request. A second reader is refused, and so is using the stream as its result.
//
// Invariant: reads wait only while all tokens so far are read; they are answered in the order in which they were made.

import { createError } from '../base/errors.js';
import { notConstructible } from '../base/options.js';
import type { HandOver } from '../side/hand-over.js';
import type { GenerationAdmission, GenerationListener, GenerationResult } from './generation-result.js';
import type { TokenLogProbability } from './plain-sampling.js';
import type { SampledText } from './sampled-text.js';

/** What a stream asks its scheduler. */
export interface TokenStreamOptions {
  readonly cancel: () => void;
  readonly finish: () => void;
  /** Prompt and answer so far. */
  readonly said: () => SampledText;
  readonly side: () => HandOver | undefined;
  readonly admission: () => GenerationAdmission | undefined;
  readonly text: () => string | undefined;
  readonly logProbabilities: () => readonly TokenLogProbability[] | undefined;
}

interface Read {
  readonly resolve: (result: IteratorResult<number, undefined>) => void;
  readonly reject: (error: Error) => void;
}

/** The tokens of one answer, as they are generated. It has one reader. */
export class TokenStream implements AsyncIterableIterator<number> {
  readonly #cancel: () => void;
  readonly #finish: () => void;
  readonly #said: () => SampledText;
  readonly #side: () => HandOver | undefined;
  readonly #admission: () => GenerationAdmission | undefined;
  readonly #text: () => string | undefined;
  readonly #logProbabilities: () => readonly TokenLogProbability[] | undefined;
  #readTokens = 0;
  #hasReader = false;
  #state: 'open' | 'ended' | 'left' = 'open';
  /** The error that the next read rejects with, once. */
  #error: Error | undefined;
  /** Waiting reads, in order. */
  readonly #reads: Read[] = [];
  readonly #result: Promise<GenerationResult>;
  #settle!: (end: GenerationResult | Promise<never>) => void;

  /** @internal Use `scheduler.submit`. */
  constructor(options: TokenStreamOptions) {
    const read = readOptions(options);
    if (read === undefined) throw notConstructible('TokenStream', 'scheduler.submit');
    const { cancel, finish, said, side, admission, text, logProbabilities } = read;
    this.#cancel = cancel;
    this.#finish = finish;
    this.#said = said;
    this.#side = side;
    this.#admission = admission;
    this.#text = text;
    this.#logProbabilities = logProbabilities;
    this.#result = new Promise((resolve) => { this.#settle = resolve; });
    this.#result.catch(() => {}); // a reader of tokens gets the error there
  }

  /** The whole answer. Rejects with the error that ended it: KV_ABORTED, KV_DEADLINE_EXCEEDED, KV_ENGINE_FAILED, … */
  get result(): Promise<GenerationResult> {
    return this.#result;
  }

  /** How long it waited for its first slot, and how much of its prompt was cached; undefined until it has one. */
  get admission(): GenerationAdmission | undefined {
    return this.#admission();
  }

  /**
   * Rows of side tensors as the answer grows, from its admission on; of a request without `handOver` undefined, and of
   * others while they wait, at first or after a preemption. A resumed request has another HandOver, with the same rows
   * at the same positions; it may have fewer at first. In the end it is the result's, which must be closed; where the
   * request fails, it is closed and undefined.
   */
  get side(): HandOver | undefined {
    return this.#side();
  }

  /** Of the tokens so far, [token of the answer]; undefined unless the request has `logProbabilities`. */
  get logProbabilities(): readonly TokenLogProbability[] | undefined {
    return this.#logProbabilities();
  }

  /**
   * The answer as text, piece by piece as it comes, none of them empty, up to a stop string. It is the stream's one
   * reader; leaving its loop cancels the request. Of a request without `tokenizer` there is none. Throws
   * KV_STREAM_STATE where there is another reader.
   */
  pieces(): AsyncGenerator<string, void, undefined> {
    return this.#piecesOf(this[Symbol.asyncIterator]());
  }

  /**
   * The one reader, which goes on behind the tokens that `next` has returned. Throws KV_STREAM_STATE the second time.
   */
  [Symbol.asyncIterator](): AsyncIterableIterator<number> {
    if (this.#hasReader) throw createError('KV_STREAM_STATE', {
      operation: 'read', problem: 'has a reader, and a token goes to one only',
    });
    this.#hasReader = true;
    const reader: AsyncIterableIterator<number> = {
      next: () => this.next(),
      return: () => this.return(),
      [Symbol.asyncIterator]: () => reader,
    };
    return reader;
  }

  /** Resolves with the next token; done behind the last. Rejects once with the error that ended the request. */
  next(): Promise<IteratorResult<number, undefined>> {
    return new Promise((resolve, reject) => {
      this.#reads.push({ resolve, reject });
      this.#answerReads();
    });
  }

  /** Ends reading, and cancels the request. */
  return(): Promise<IteratorResult<number, undefined>> {
    const isOpen = this.#state === 'open';
    this.#state = 'left';
    this.#error = undefined;
    this.#answerReads();
    if (isOpen) this.#cancel();
    return Promise.resolve({ done: true, value: undefined });
  }

  /** Ends the request with KV_ABORTED, at once. Nothing happens when it has ended. */
  cancel(): void {
    if (this.#state === 'open') this.#cancel();
  }

  /**
   * Ends the answer with the tokens that it has, at once: a text that ends it was found, say. `result` resolves with
   * `finishReason: 'stop'`. Nothing happens when it has ended.
   */
  finish(): void {
    if (this.#state === 'open') this.#finish();
  }

  /** The listener that fills the stream. @internal */
  listener(): GenerationListener {
    return {
      token: () => {
        if (this.#reads.length > 0) this.#answerReads();
      },
      done: (result) => this.#ended(result, undefined),
      failed: (error) => this.#ended(Promise.reject(error), error),
    };
  }

  async *#piecesOf(tokens: AsyncIterator<number, undefined>): AsyncGenerator<string, void, undefined> {
    let given = 0;
    let isOpen = true;
    try {
      while (isOpen) {
        isOpen = (await tokens.next()).done !== true;
        const text = this.#text() ?? '';
        const piece = text.slice(given);
        given = text.length;
        if (piece !== '') yield piece;
      }
    } finally {
      if (isOpen) await this.return();
    }
  }

  #ended(end: GenerationResult | Promise<never>, error: Error | undefined): void {
    this.#settle(end);
    if (this.#state === 'open') {
      this.#state = 'ended';
      this.#error = error;
    }
    this.#answerReads();
  }

  #answerReads(): void {
    while (this.#reads.length > 0) {
      const { tokens, length, promptTokens } = this.#said();
      const at = promptTokens + this.#readTokens;
      const hasToken = this.#state !== 'left' && at < length;
      if (!hasToken && this.#state === 'open') return;
      const { resolve, reject } = this.#reads.shift()!;
      const error = this.#error;
      if (hasToken) {
        this.#readTokens += 1;
        resolve({ done: false, value: tokens[at]! });
      } else if (error === undefined) resolve({ done: true, value: undefined });
      else {
        this.#error = undefined;
        reject(error);
      }
    }
  }
}

/** Fields that only the result has: reading them from a stream throws, and the type does not have them. */
const resultFields: readonly (keyof GenerationResult)[] = [
  'tokens', 'finishReason', 'stopToken', 'stopString', 'text', 'promptTokens', 'cachedTokens', 'promotion', 'selection',
  'preemptions',
  'firstTokenMs', 'totalMs',
];

for (const field of resultFields) {
  Object.defineProperty(TokenStream.prototype, field, {
    get: () => {
      throw createError('KV_STREAM_STATE', { operation: `read \`${field}\` of`, problem: 'is no result' });
    },
  });
}

/** Undefined for what no scheduler gives: a caller can call constructors, with any argument. */
function readOptions(options: TokenStreamOptions): TokenStreamOptions | undefined {
  try {
    const { cancel, finish, said, side, admission, text, logProbabilities } = options;
    const read = { cancel, finish, said, side, admission, text, logProbabilities };
    return Object.values(read).every((each) => typeof each === 'function') ? read : undefined;
  } catch { // no object, or a proxy that answers with errors
    return undefined;
  }
}
