// BackgroundTokenizer: a LlamaTokenizer that leaves the JavaScript thread free: what takes milliseconds, the tokens of a long text, is made
// on a worker thread; a short text is tokenized at once, and does not wait behind a long one. It owns the worker.

import { createError } from '../base/errors.js';
import { abortSignal, instanceOf, integer, optional, readOptions, withDefault } from '../base/options.js';
import { LlamaTokenizer, type SpelledText, type TextPieces } from './tokenizer.js';
import type { ChatMessage, EncodeOptions } from './tokenizer-arguments.js';
import { specialTokensField } from './tokenizer-arguments.js';
import { TokenizerThread } from './tokenizer-thread.js';

/** Options of `BackgroundTokenizer`. */
export interface BackgroundTokenizerOptions {
  /** Tokenizes what is short, and says what the worker is to do. Its files must stay as they are. */
  readonly tokenizer: LlamaTokenizer;
  /** Characters from which on a text is tokenized on the worker, 1 or more. Default 2,048: below, it takes a few ms. */
  readonly minBackgroundCharacters?: number | undefined;
}

/** Options of `BackgroundTokenizer.encode`. */
export interface BackgroundEncodeOptions extends EncodeOptions {
  /** Gives up with KV_ABORTED. */
  readonly signal?: AbortSignal | undefined;
}

const spec = {
  tokenizer: instanceOf(LlamaTokenizer),
  minBackgroundCharacters: withDefault(integer({ min: 1 }), 2_048),
};
const signalSpec = { signal: optional(abortSignal) };
const encodeSpec = { ...signalSpec, specialTokens: specialTokensField };

/** Text to tokens, a long one on another thread; and tokens to text. Its owner closes it. */
export class BackgroundTokenizer {
  readonly #tokenizer: LlamaTokenizer;
  readonly #minBackgroundCharacters: number;
  readonly #thread: TokenizerThread;
  #isClosed = false;

  /** Starts no thread yet. Throws KV_UNKNOWN_OPTION and KV_INVALID_OPTION. */
  constructor(options: BackgroundTokenizerOptions) {
    const { tokenizer, minBackgroundCharacters } = readOptions('BackgroundTokenizer', options, spec);
    this.#tokenizer = tokenizer;
    this.#minBackgroundCharacters = minBackgroundCharacters;
    this.#thread = new TokenizerThread(tokenizer.source);
  }

  /** Whether the folder has a chat template, which `encodeChat` needs. */
  get hasChatTemplate(): boolean {
    return this.#tokenizer.hasChatTemplate;
  }

  /** The token that ends a text, as far as the tokenizer knows it. */
  get endTokens(): readonly number[] {
    return this.#tokenizer.endTokens;
  }

  /** Whether `close` was called. */
  get isClosed(): boolean {
    return this.#isClosed;
  }

  /**
   * The tokens that `LlamaTokenizer.encode` gives. Rejects with KV_ABORTED, KV_CLOSED, KV_MODEL_INVALID when the tokenizer's files have
   * changed, and KV_INTERNAL when the worker ran out of memory or died otherwise; the next text gets another one.
   */
  async encode(text: string, options: BackgroundEncodeOptions = {}): Promise<number[]> {
    const { specialTokens, signal } = readOptions('BackgroundTokenizer.encode', options, encodeSpec);
    return this.#encode(() => this.#tokenizer.spell(text, { specialTokens }), signal);
  }

  /** The tokens that `LlamaTokenizer.encodeChat` gives: the template is filled in at once. Rejects as `encode` does, and with KV_MODEL_INVALID as `encodeChat` does there. */
  async encodeChat(
    messages: readonly ChatMessage[], values: Readonly<Record<string, unknown>> = {}, options: Pick<BackgroundEncodeOptions, 'signal'> = {},
  ): Promise<number[]> {
    const { signal } = readOptions('BackgroundTokenizer.encodeChat', options, signalSpec);
    return this.#encode(() => this.#tokenizer.spellChat(messages, values), signal);
  }

  /** Text of tokens, on this thread. */
  decode(tokens: readonly number[]): string {
    return this.#tokenizer.decode(tokens);
  }

  /** Text of an answer's tokens as they come, for one answer. */
  pieces(): TextPieces {
    return this.#tokenizer.pieces();
  }

  /** Rejects what is under way with KV_CLOSED and ends the worker. Idempotent; resolves when it has ended. */
  close(): Promise<void> {
    this.#isClosed = true;
    return this.#thread.close();
  }

  [Symbol.asyncDispose](): Promise<void> {
    return this.close();
  }

  #encode(spell: () => SpelledText, signal: AbortSignal | undefined): number[] | Promise<number[]> {
    if (this.#isClosed) throw createError('KV_CLOSED', { operation: 'tokenize', owner: 'BackgroundTokenizer' });
    if (signal?.aborted === true) throw createError('KV_ABORTED', { operation: 'tokenizing' }, { cause: signal.reason });
    const spelled = spell();
    return spelled.text.length < this.#minBackgroundCharacters ? this.#tokenizer.encodeSpelled(spelled) : this.#thread.encode(spelled, signal);
  }
}
