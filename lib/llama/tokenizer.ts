// LlamaTokenizer: text to tokens and back, and a conversation to the prompt that the model was trained on: a folder's
// tokenizer.json by @huggingface/tokenizers, its chat template by @huggingface/jinja, both optional packages that are loaded when the
// first tokenizer is made. Neither loads anything from anywhere. Special tokens that stand in a text stay text (special-tokens.ts). TextPieces
// is the way back for an answer whose tokens come one by one.

import { createRequire } from 'node:module';

import { createError } from '../base/errors.js';
import { callable, checkInteger, string } from '../base/options.js';
import type { Json } from './config-reader.js';
import { modelError } from './model-error.js';
import { SpecialTokens } from './special-tokens.js';
import { TokenBytes } from './token-bytes.js';
import {
  readChat, readChatSignal, readEncode, readTokens, type ChatMessage, type EncodeChatOptions, type EncodeOptions,
} from './tokenizer-arguments.js';
import { readTokenizerFiles } from './tokenizer-files.js';

/** What makes the same tokenizer again, on another thread. */
export interface TokenizerSource {
  readonly model: string;
  readonly digest: string;
}

const loadField = callable();
const decodeField = callable();

/** Text of tokens, and tokens of text, as a model's folder says. */
export class LlamaTokenizer {
  readonly #model: string;
  readonly #tokenizer: InstanceType<TokenizerLibrary['Tokenizer']>;
  readonly #special: SpecialTokens;
  readonly #bytes: TokenBytes;
  readonly #config: Json;
  readonly #digest: string;
  readonly #template: InstanceType<TemplateLibrary['Template']> | undefined;

  /**
   * Reads a folder's `tokenizer.json`, and its config, special tokens and chat template where they exist; of a `.gguf` file, those beside it, or
   * what its header has where no `tokenizer.json` is there. Throws KV_MODEL_INVALID, and KV_DEPENDENCY_MISSING where the two packages are not installed.
   * @param load Loads a package by its name; for tests.
   */
  constructor(model: string, load: (name: string) => unknown = createRequire(__filename)) {
    string(model, { owner: 'LlamaTokenizer', option: 'model' });
    loadField(load, { owner: 'LlamaTokenizer', option: 'load' });
    const [{ Tokenizer }, { Template }] = loadPackages(load);
    const { file, tokenizer, config, template, digest } = readTokenizerFiles(model);
    this.#model = model;
    this.#config = config;
    this.#digest = digest;
    this.#special = attempt(`${file} cannot be used`, () => new SpecialTokens(tokenizer));
    this.#bytes = new TokenBytes(tokenizer);
    this.#tokenizer = attempt(`${file} cannot be used`, () => new Tokenizer(this.#special.file, config));
    this.#template = template === undefined ? undefined
      : attempt(`${model}: its chat template cannot be used`, () => new Template(template));
  }

  /** Whether it is a tokenizer that was made, and no object that only has the prototype of one. @internal */
  static isInstance(value: unknown): value is LlamaTokenizer {
    return typeof value === 'object' && value !== null && #special in value;
  }

  /** Whether the folder has a chat template, which `encodeChat` needs. */
  get hasChatTemplate(): boolean {
    return this.#template !== undefined;
  }

  /** The token that ends a text, as far as the tokenizer knows it. */
  get endTokens(): readonly number[] {
    const name = this.#named('eos_token');
    const token = this.#special.idOf(name) ?? this.#tokenizer.token_to_id(name);
    return token === undefined ? [] : [token];
  }

  /** Tokens of a plain text, with whatever the tokenizer puts around one. */
  encode(given: string, options?: EncodeOptions): number[] {
    const { text, specialTokens } = readEncode(given, options);
    return this.#tokenizer.encode(
      specialTokens === 'parse' ? this.#special.spell(text) : text, { add_special_tokens: true },
    ).ids;
  }

  /**
   * Tokens of a conversation, up to where the model is to answer; the template itself puts the first token there.
   * Special tokens in the messages and values stay text; `values` are variables for the template besides (`tools`,
   * `enable_thinking`). Throws KV_MODEL_INVALID when there is no chat template, or it does not take these messages.
   */
  encodeChat(messages: readonly ChatMessage[], values: Readonly<Record<string, unknown>> = {}, options?: EncodeChatOptions): number[] {
    readChatSignal(options);
    return this.#tokenizer.encode(this.#fillTemplate(messages, values), { add_special_tokens: false }).ids;
  }

  /** Text of tokens as it is, without the special ones and those that only fill the vocabulary up. */
  decode(tokens: readonly number[]): string {
    const known = readTokens(tokens).filter((token) => this.#tokenizer.id_to_token(token) !== undefined);
    if (known.length === 0) return '';
    return this.#tokenizer.decode(known, { skip_special_tokens: true, clean_up_tokenization_spaces: false });
  }

  /**
   * Bytes of a token, also where they are a part of a character; undefined for a special one, and where its text
   * depends on those before it, or where no token has that number. Throws KV_INVALID_OPTION.
   */
  bytesOf(token: number): Uint8Array | undefined {
    checkInteger('LlamaTokenizer.bytesOf', 'token', token);
    const name = this.#tokenizer.id_to_token(token);
    return name === undefined ? undefined : this.#bytes.of(name);
  }

  /** Text of an answer's tokens as they come, for one answer. */
  pieces(): TextPieces {
    return new TextPieces((tokens) => this.decode(tokens));
  }

  /** `pieces` as a function: takes an answer's tokens one by one and returns the text that is whole by then. */
  stream(): (token: number) => string {
    const pieces = this.pieces();
    return (token) => pieces.push(token);
  }

  /** For the same tokenizer on another thread. @internal */
  get source(): TokenizerSource {
    return { model: this.#model, digest: this.#digest };
  }

  /** A conversation as the template writes it, with special tokens in the spelling that the tokenizer knows. */
  #fillTemplate(given: readonly ChatMessage[], variables: Readonly<Record<string, unknown>>): string {
    const { messages, values } = readChat(given, variables);
    const template = this.#template;
    if (template === undefined) throw modelError(`${this.#model} has no chat template: give a plain prompt.`);
    const strange = messages.find(({ role }) => !/^[\w-]+$/.test(role));
    if (strange !== undefined) throw modelError(`${JSON.stringify(strange.role)} is no role. A role has letters, digits, _ and - only.`);
    const what = `${this.#model}: its chat template does not take these messages`;
    const text = attempt(what, () => template.render({
      ...this.#special.guard(values),
      messages: messages.map(({ role, ...more }) => ({ ...this.#special.guard(more), role })),
      add_generation_prompt: true, bos_token: this.#named('bos_token'), eos_token: this.#named('eos_token'),
    }), (message) => this.#special.unguard(message));
    return this.#special.unguard(this.#special.spell(text));
  }

  /** A special token's text: some files write an object. */
  #named(name: string): string {
    const value = this.#config[name];
    if (typeof value === 'string') return value;
    return (value as { readonly content?: string } | null | undefined)?.content ?? '';
  }
}

/** Calls `work`; rethrows its errors as KV_MODEL_INVALID, with what `clean` makes of their message. */
function attempt<T>(what: string, work: () => T, clean = (message: string): string => message): T {
  try {
    return work();
  } catch (cause) {
    throw modelError(`${what}: ${clean((cause as Error).message)}`, { cause });
  }
}

/** What is used of `@huggingface/tokenizers`, whose own types are not made for CommonJS. */
export interface TokenizerLibrary {
  readonly Tokenizer: new (tokenizer: object, config: object) => {
    encode(text: string, options: { readonly add_special_tokens: boolean }): { readonly ids: number[] };
    decode(tokens: readonly number[], options: { readonly skip_special_tokens: boolean; readonly clean_up_tokenization_spaces: boolean }): string;
    token_to_id(token: string): number | undefined;
    id_to_token(id: number): string | undefined;
  };
}

/** What is used of `@huggingface/jinja`. */
export interface TemplateLibrary {
  readonly Template: new (template: string) => { render(values: Readonly<Record<string, unknown>>): string };
}

/** Optional. */
const packages = ['@huggingface/tokenizers', '@huggingface/jinja'] as const;

/** Throws KV_DEPENDENCY_MISSING, which names both. */
function loadPackages(load: (name: string) => unknown): [TokenizerLibrary, TemplateLibrary] {
  try {
    return packages.map((name) => load(name)) as [TokenizerLibrary, TemplateLibrary];
  } catch (cause) {
    if ((cause as NodeJS.ErrnoException | undefined)?.code !== 'MODULE_NOT_FOUND') throw cause;
    throw createError('KV_DEPENDENCY_MISSING', { dependency: packages.join(' '), purpose: 'turning text into tokens' }, { cause });
  }
}

/** Tokens that bytes of one character can have at most, and some: what is not text by then never will be. */
const mostHeldTokens = 16;

/**
 * The text of one answer as its tokens come, each piece once its characters are whole. Only the last tokens are turned into text again, so
 * that a long answer costs no more per token than a short one. `end` returns what was held back.
 */
export class TextPieces {
  readonly #decode: (tokens: readonly number[]) => string;
  /** The tokens before, which a token's text may depend on. */
  #printed: number[] = [];
  #news: number[] = [];

  /** `decode`: the text of some tokens in a row. `tokenizer.pieces()` makes one of a LlamaTokenizer. */
  constructor(decode: (tokens: readonly number[]) => string) {
    decodeField(decode, { owner: 'TextPieces', option: 'decode' });
    this.#decode = decode;
  }

  /** Takes the next token; returns the text that is whole by then and was not returned before. */
  push(token: number): string {
    checkInteger('TextPieces.push', 'token', token);
    this.#news.push(token);
    return this.#take(this.#news.length >= mostHeldTokens);
  }

  /** The text that was held back: characters whose last bytes never came, as U+FFFD. */
  end(): string {
    return this.#news.length === 0 ? '' : this.#take(true);
  }

  #take(isLast: boolean): string {
    const before = this.#decode(this.#printed);
    const text = this.#decode([...this.#printed, ...this.#news]);
    if (!isLast && (text.length <= before.length || text.endsWith('\uFFFD'))) return ''; // the last bytes are still to come
    [this.#printed, this.#news] = [this.#news, []];
    return text.slice(before.length);
  }
}
