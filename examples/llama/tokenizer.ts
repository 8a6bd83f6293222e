// LlamaTokenizer: text to tokens and back, and a conversation to the prompt that the model was trained on: a folder's
// tokenizer.json by @huggingface/tokenizers, its chat template by @huggingface/jinja. Neither loads anything from anywhere.

import { existsSync, readFileSync } from 'node:fs';
import { createRequire } from 'node:module';
import * as path from 'node:path';

import { readJson, type Json } from './config.js';
import { ModelError } from './model-error.js';

export interface ChatMessage {
  readonly role: string;
  readonly content: string;
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

const load = createRequire(__filename);

export class LlamaTokenizer {
  readonly #folder: string;
  readonly #tokenizer: InstanceType<TokenizerLibrary['Tokenizer']>;
  readonly #config: Json;
  readonly #template: InstanceType<TemplateLibrary['Template']> | undefined;

  /** Reads `tokenizer.json`, and its config, special tokens and chat template where they exist. Throws ModelError. */
  constructor(folder: string) {
    this.#folder = folder;
    const { Tokenizer } = load('@huggingface/tokenizers') as TokenizerLibrary;
    const { Template } = load('@huggingface/jinja') as TemplateLibrary;
    const file = path.join(folder, 'tokenizer.json');
    if (!existsSync(file)) {
      throw new ModelError(`${file} is not there. Only tokenizer.json is read; convert a tokenizer.model or a vocab.json first.`);
    }
    // Older folders have the names of special tokens in a file of their own.
    this.#config = { ...readIfThere(folder, 'special_tokens_map.json'), ...readIfThere(folder, 'tokenizer_config.json') };
    const json = readJson(file);
    this.#tokenizer = attempt(`${file} cannot be used`, () => new Tokenizer(json, this.#config));
    const template = readTemplate(folder, this.#config);
    this.#template = template === undefined ? undefined
      : attempt(`${folder}: its chat template cannot be used`, () => new Template(template));
  }

  get hasChatTemplate(): boolean {
    return this.#template !== undefined;
  }

  /** The token that ends a text, as far as the tokenizer knows it. */
  get endTokens(): readonly number[] {
    const token = this.#tokenizer.token_to_id(this.#named('eos_token'));
    return token === undefined ? [] : [token];
  }

  /** Tokens of a plain text, with whatever the tokenizer puts around one. */
  encode(text: string): number[] {
    return this.#tokenizer.encode(text, { add_special_tokens: true }).ids;
  }

  /**
   * Tokens of a conversation, up to where the model is to answer; the template itself puts the first token there. Throws
   * ModelError when there is no chat template, or it does not take these messages.
   */
  encodeChat(messages: readonly ChatMessage[]): number[] {
    const template = this.#template;
    if (template === undefined) throw new ModelError(`${this.#folder} has no chat template: give a plain prompt.`);
    const text = attempt(`${this.#folder}: its chat template does not take these messages`, () => template.render({
      messages, add_generation_prompt: true, bos_token: this.#named('bos_token'), eos_token: this.#named('eos_token'),
    }));
    return this.#tokenizer.encode(text, { add_special_tokens: false }).ids;
  }

  /** Text of tokens as it is, without the special ones and those that only fill the vocabulary up. */
  decode(tokens: readonly number[]): string {
    const known = tokens.filter((token) => this.#tokenizer.id_to_token(token) !== undefined);
    if (known.length === 0) return '';
    return this.#tokenizer.decode(known, { skip_special_tokens: true, clean_up_tokenization_spaces: false });
  }

  /**
   * A function that takes an answer's tokens one by one and returns the text that is whole by then. Only the last tokens are
   * turned into text again, so that a long answer costs no more per token than a short one.
   */
  stream(): (token: number) => string {
    let printed: number[] = []; // the tokens before, which a token's text may depend on
    let news: number[] = [];
    return (token) => {
      news.push(token);
      const before = this.decode(printed);
      const text = this.decode([...printed, ...news]);
      if (text.length <= before.length || text.endsWith('\uFFFD')) return ''; // a character whose last bytes are still to come
      [printed, news] = [news, []];
      return text.slice(before.length);
    };
  }

  /** A special token's text: some files write an object. */
  #named(name: string): string {
    const value = this.#config[name];
    if (typeof value === 'string') return value;
    return (value as { readonly content?: string } | null | undefined)?.content ?? '';
  }
}

/** Calls `work`; rethrows its errors as ModelError. */
function attempt<T>(what: string, work: () => T): T {
  try {
    return work();
  } catch (cause) {
    throw new ModelError(`${what}: ${(cause as Error).message}`, { cause });
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
