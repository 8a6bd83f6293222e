// LlamaTokenizer: text to tokens and back, and a conversation to the prompt that the model was trained on: a folder's
// tokenizer.json by @huggingface/tokenizers, its chat template by @huggingface/jinja, both optional packages that are loaded when the
// first tokenizer is made. Neither loads anything from anywhere. Special tokens that stand in a text stay text (special-tokens.ts).

import { existsSync, readFileSync } from 'node:fs';
import { createRequire } from 'node:module';
import path = require('node:path');

import { createError } from '../base/errors.js';
import { readJson, type Json } from './config.js';
import { modelError } from './model-error.js';
import { folderOf } from './model-files.js';
import { SpecialTokens, type TokenizerFile } from './special-tokens.js';
import { TextPieces } from './text-pieces.js';

/** One message of a conversation. */
export interface ChatMessage {
  /** `system`, `user`, `assistant`, or what else the template knows: letters, digits, `_` and `-`. */
  readonly role: string;
  /** The text; special tokens in it stay text. */
  readonly content: string;
}

/** Options of `LlamaTokenizer.encode`. */
export interface EncodeOptions {
  /**
   * What becomes of special tokens that the text spells out, such as `<|im_end|>`. `text`: they are encoded as any other text, so that no
   * user can end a turn or begin one. `parse`: they become the tokens. Default `text`.
   */
  readonly specialTokens?: 'text' | 'parse' | undefined;
}

/** The part of the two packages that is used here; their own types are not made for CommonJS. */
interface TokenizerLibrary {
  readonly Tokenizer: new (tokenizer: object, config: object) => {
    encode(text: string, options: { readonly add_special_tokens: boolean }): { readonly ids: number[] };
    decode(tokens: readonly number[], options: { readonly skip_special_tokens: boolean; readonly clean_up_tokenization_spaces: boolean }): string;
    token_to_id(token: string): number | undefined;
    id_to_token(id: number): string | undefined;
  };
}
interface TemplateLibrary {
  readonly Template: new (template: string) => { render(values: Readonly<Record<string, unknown>>): string };
}

/** Packages that only this file needs. */
const packages = ['@huggingface/tokenizers', '@huggingface/jinja'] as const;

/** Text of tokens, and tokens of text, as a model's folder says. */
export class LlamaTokenizer {
  readonly #folder: string;
  readonly #tokenizer: InstanceType<TokenizerLibrary['Tokenizer']>;
  readonly #special: SpecialTokens;
  readonly #config: Json;
  readonly #template: InstanceType<TemplateLibrary['Template']> | undefined;

  /**
   * Reads a folder's `tokenizer.json`, and its config, special tokens and chat template where they exist; of a `.gguf` file, those beside it. Throws KV_MODEL_INVALID, and
   * KV_DEPENDENCY_MISSING where the two packages are not installed.
   * @param load Loads a package by its name; for tests.
   */
  constructor(model: string, load: (name: string) => unknown = createRequire(__filename)) {
    const folder = this.#folder = folderOf(model);
    const [{ Tokenizer }, { Template }] = loadPackages(load);
    const file = path.join(folder, 'tokenizer.json');
    if (!existsSync(file)) {
      throw modelError(`${file} is not there. Only tokenizer.json is read; convert a tokenizer.model or a vocab.json first.`);
    }
    // Older folders have the names of special tokens in a file of their own.
    this.#config = { ...readIfThere(folder, 'special_tokens_map.json'), ...readIfThere(folder, 'tokenizer_config.json') };
    const json = readJson(file);
    this.#special = attempt(`${file} cannot be used`, () => new SpecialTokens(json as TokenizerFile));
    this.#tokenizer = attempt(`${file} cannot be used`, () => new Tokenizer(this.#special.file, this.#config));
    const template = readTemplate(folder, this.#config);
    this.#template = template === undefined ? undefined
      : attempt(`${folder}: its chat template cannot be used`, () => new Template(template));
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
  encode(text: string, { specialTokens = 'text' }: EncodeOptions = {}): number[] {
    return this.#tokenizer.encode(specialTokens === 'parse' ? this.#special.spell(text) : text, { add_special_tokens: true }).ids;
  }

  /**
   * Tokens of a conversation, up to where the model is to answer; the template itself puts the first token there. Special tokens in the
   * messages stay text; `values` are variables for the template besides (`enable_thinking`, say). Throws KV_MODEL_INVALID when there is no
   * chat template, or it does not take these messages.
   */
  encodeChat(messages: readonly ChatMessage[], values: Readonly<Record<string, unknown>> = {}): number[] {
    const template = this.#template;
    if (template === undefined) throw modelError(`${this.#folder} has no chat template: give a plain prompt.`);
    const strange = messages.find(({ role }) => !/^[\w-]+$/.test(role));
    if (strange !== undefined) throw modelError(`${JSON.stringify(strange.role)} is no role. A role has letters, digits, _ and - only.`);
    const what = `${this.#folder}: its chat template does not take these messages`;
    const text = attempt(what, () => template.render({
      ...values, messages: messages.map((message) => this.#special.guard(message)), add_generation_prompt: true,
      bos_token: this.#named('bos_token'), eos_token: this.#named('eos_token'),
    }), (message) => this.#special.unguard(message));
    return this.#tokenizer.encode(this.#special.unguard(this.#special.spell(text)), { add_special_tokens: false }).ids;
  }

  /** Text of tokens as it is, without the special ones and those that only fill the vocabulary up. */
  decode(tokens: readonly number[]): string {
    const known = tokens.filter((token) => this.#tokenizer.id_to_token(token) !== undefined);
    if (known.length === 0) return '';
    return this.#tokenizer.decode(known, { skip_special_tokens: true, clean_up_tokenization_spaces: false });
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

/** Throws KV_DEPENDENCY_MISSING, which names both. */
function loadPackages(load: (name: string) => unknown): [TokenizerLibrary, TemplateLibrary] {
  try {
    return packages.map((name) => load(name)) as [TokenizerLibrary, TemplateLibrary];
  } catch (cause) {
    if ((cause as NodeJS.ErrnoException | undefined)?.code !== 'MODULE_NOT_FOUND') throw cause;
    throw createError('KV_DEPENDENCY_MISSING', { dependency: packages.join(' '), purpose: 'turning text into tokens' }, { cause });
  }
}

function readIfThere(folder: string, name: string): Json {
  const file = path.join(folder, name);
  return existsSync(file) ? readJson(file) : {};
}

function readTemplate(folder: string, config: Json): string | undefined {
  const file = path.join(folder, 'chat_template.jinja');
  if (existsSync(file)) return readFileSync(file, 'utf8');
  const template = config['chat_template'];
  if (typeof template === 'string') return template;
  if (!Array.isArray(template)) return undefined; // else several by name
  const named = template as ({ readonly name?: unknown; readonly template?: unknown } | null)[];
  const { template: found } = named.find((each) => each?.name === 'default') ?? {};
  return typeof found === 'string' ? found : undefined;
}
