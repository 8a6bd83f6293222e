// LlamaTokenizer: text to tokens and back, and a conversation to the prompt that the model was trained on: a folder's
// tokenizer.json by @huggingface/tokenizers, its chat template by @huggingface/jinja. Neither loads anything from anywhere.

import { existsSync, readFileSync } from 'node:fs';
import { createRequire } from 'node:module';
import * as path from 'node:path';

import { readJson } from './config.js';
import { ModelError } from './model-error.js';

export interface ChatMessage {
  readonly role: string;
  readonly content: string;
}

/** What we use of the two packages; their own types are not made for CommonJS. */
interface TokenizerLibrary {
  readonly Tokenizer: new (tokenizer: object, config: object) => {
    encode(text: string, options: { readonly add_special_tokens: boolean }): { readonly ids: number[] };
    decode(tokens: readonly number[], options: { readonly skip_special_tokens: boolean }): string;
    token_to_id(token: string): number | undefined;
  };
}
interface TemplateLibrary {
  readonly Template: new (template: string) => { render(values: Readonly<Record<string, unknown>>): string };
}

const load = createRequire(__filename);

export class LlamaTokenizer {
  readonly #folder: string;
  readonly #tokenizer: InstanceType<TokenizerLibrary['Tokenizer']>;
  readonly #config: Readonly<Record<string, unknown>>;
  readonly #template: InstanceType<TemplateLibrary['Template']> | undefined;

  /** Reads `tokenizer.json`, and `tokenizer_config.json` if it is there. Throws ModelError. */
  constructor(folder: string) {
    this.#folder = folder;
    const { Tokenizer } = load('@huggingface/tokenizers') as TokenizerLibrary;
    const { Template } = load('@huggingface/jinja') as TemplateLibrary;
    const configFile = path.join(folder, 'tokenizer_config.json');
    const file = path.join(folder, 'tokenizer.json');
    this.#config = existsSync(configFile) ? readJson(configFile) : {};
    try {
      this.#tokenizer = new Tokenizer(readJson(file), this.#config);
    } catch (cause) {
      if (cause instanceof ModelError) throw cause;
      throw new ModelError(`${file} cannot be used: ${(cause as Error).message}`, { cause });
    }
    const template = readTemplate(folder, this.#config);
    this.#template = template === undefined ? undefined : new Template(template);
  }

  get hasChatTemplate(): boolean {
    return this.#template !== undefined;
  }

  /** Tokens of a plain text, with whatever the tokenizer puts around one. */
  encode(text: string): number[] {
    return this.#tokenizer.encode(text, { add_special_tokens: true }).ids;
  }

  /** Tokens of a conversation, up to where the model is to answer. Throws ModelError when there is no chat template. */
  encodeChat(messages: readonly ChatMessage[]): number[] {
    if (this.#template === undefined) {
      throw new ModelError(`${this.#folder} has no chat template: give a plain prompt.`);
    }
    const text = this.#template.render({
      messages, add_generation_prompt: true, bos_token: this.#named('bos_token'), eos_token: this.#named('eos_token'),
    });
    return this.#tokenizer.encode(text, { add_special_tokens: false }).ids;
  }

  /** Text of tokens, without the special ones. */
  decode(tokens: readonly number[]): string {
    return this.#tokenizer.decode(tokens, { skip_special_tokens: true });
  }

  /** A function that takes an answer's tokens one by one and returns the text that is whole by then. */
  stream(): (token: number) => string {
    const tokens: number[] = [];
    let printed = 0;
    return (token) => {
      tokens.push(token);
      const text = this.decode(tokens);
      if (text.endsWith('\uFFFD')) return ''; // a character whose last bytes are still to come
      const news = text.slice(printed);
      printed = text.length;
      return news;
    };
  }

  /** A special token's text: some files write an object. */
  #named(name: string): string {
    const value = this.#config[name];
    if (typeof value === 'string') return value;
    return (value as { readonly content?: string } | null | undefined)?.content ?? '';
  }
}

function readTemplate(folder: string, config: Readonly<Record<string, unknown>>): string | undefined {
  const file = path.join(folder, 'chat_template.jinja');
  if (existsSync(file)) return readFileSync(file, 'utf8');
  const template = config['chat_template'];
  if (typeof template === 'string') return template;
  if (!Array.isArray(template)) return undefined; // else several by name
  return (template as { readonly name: string; readonly template: string }[]).find(({ name }) => name === 'default')?.template;
}
