// BackgroundTokenizer: a LlamaTokenizer that leaves the JavaScript thread free: what takes milliseconds, the tokens of a long text, is made
// on a worker thread; a short text is tokenized at once, and does not wait behind a long one. It owns the worker.

import { createError } from '../base/errors.js';
import { instanceOf, integer, readOptions, withDefault } from '../base/options.js';
import { LlamaTokenizer, type TextPieces } from './tokenizer.js';
import {
  readChat, readChatSignal, readEncode, type ChatMessage, type EncodeChatOptions, type EncodeOptions,
} from './tokenizer-arguments.js';
import { TokenizerThread } from './tokenizer-thread.js';
import type { TokenizerJob } from './tokenizer-worker.js';

/** Options of `BackgroundTokenizer`. */
export interface BackgroundTokenizerOptions {
  /** Tokenizes what is short, and says what the worker is to do. Its files must stay as they are. */
  readonly tokenizer: LlamaTokenizer;
  /** Characters from which on a text is tokenized on the worker, 1 or more. Default 2,048: below, it takes a few ms. */
  readonly minBackgroundCharacters?: number | undefined;
}

const spec = {
  tokenizer: instanceOf(LlamaTokenizer),
  minBackgroundCharacters: withDefault(integer({ min: 1 }), 2_048),
};

/** Characters that a message counts for beside its text: what a template writes around it, and takes time for. */
const charactersPerMessage = 32;

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
  async encode(text: string, options: EncodeOptions = {}): Promise<number[]> {
    const { specialTokens, signal } = readEncode(text, options, 'BackgroundTokenizer.encode');
    return this.#encode({ text, specialTokens }, text.length, signal);
  }

  /**
   * The tokens that `LlamaTokenizer.encodeChat` gives; the template is filled in on the worker, too, where the
   * conversation is long. Rejects as `encode` does, and with KV_MODEL_INVALID as `encodeChat` does there.
   */
  async encodeChat(
    messages: readonly ChatMessage[], values: Readonly<Record<string, unknown>> = {}, options: EncodeChatOptions = {},
  ): Promise<number[]> {
    const signal = readChatSignal(options, 'BackgroundTokenizer.encodeChat');
    const chat = readChat(messages, values);
    return this.#encode(chat, charactersOf(chat), signal);
  }

  /** Text of tokens, on this thread. */
  decode(tokens: readonly number[]): string {
    return this.#tokenizer.decode(tokens);
  }

  /** Bytes of a token as `LlamaTokenizer.bytesOf` gives them. */
  bytesOf(token: number): Uint8Array | undefined {
    return this.#tokenizer.bytesOf(token);
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

  #encode(job: TokenizerJob, characters: number, signal: AbortSignal | undefined): number[] | Promise<number[]> {
    if (this.#isClosed) throw createError('KV_CLOSED', { operation: 'tokenize', owner: 'BackgroundTokenizer' });
    const encodeHere = (): number[] => ('text' in job
      ? this.#tokenizer.encode(job.text, { specialTokens: job.specialTokens })
      : this.#tokenizer.encodeChat(job.messages, job.values));
    if (characters < this.#minBackgroundCharacters) return encodeHere();
    return this.#thread.encode(job, signal).catch((error: unknown) => {
      if ((error as Error).name === 'DataCloneError') return encodeHere(); // a function among the values
      throw error;
    });
  }
}

/** About as many as the template writes. */
function charactersOf({ messages, values }: ReturnType<typeof readChat>): number {
  const text = messages.reduce(
    (sum, { content }) => sum + content.length, charactersPerMessage * (messages.length - 1),
  );
  const { tools } = values;
  return Array.isArray(tools) && tools.length > 0 ? text + JSON.stringify(tools).length : text;
}
