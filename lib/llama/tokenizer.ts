// LlamaTokenizer: text to tokens and back, and a conversation to the prompt that the model was trained on: a folder's
// tokenizer.json by @huggingface/tokenizers, its chat template by @huggingface/jinja, both optional packages that are loaded when the
// first tokenizer is made. Neither loads anything from anywhere. Special tokens that stand in a text stay text (special-tokens.ts).

import { createRequire } from 'node:module';

import { string } from '../base/options.js';
import type { Json } from './config.js';
import { modelError } from './model-error.js';
import { SpecialTokens } from './special-tokens.js';
import { TextPieces } from './text-pieces.js';
import { readTokenizerFiles } from './tokenizer-files.js';
import { loadPackages, type TemplateLibrary, type TokenizerLibrary } from './tokenizer-library.js';

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

/** A prompt's text as the tokenizer library takes it: where special tokens are meant, they have their secret spelling. */
export interface SpelledText {
  readonly text: string;
  /** Whether the tokenizer puts its own tokens around it. */
  readonly addsTokens: boolean;
}

/** What makes the same tokenizer again, on another thread. */
export interface TokenizerSource {
  readonly model: string;
  readonly nonce: string;
  readonly digest: string;
}

/** Text of tokens, and tokens of text, as a model's folder says. */
export class LlamaTokenizer {
  readonly #model: string;
  readonly #tokenizer: InstanceType<TokenizerLibrary['Tokenizer']>;
  readonly #special: SpecialTokens;
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
    const [{ Tokenizer }, { Template }] = loadPackages(load);
    const { file, tokenizer, config, template, digest } = readTokenizerFiles(model);
    this.#model = model;
    this.#config = config;
    this.#digest = digest;
    this.#special = attempt(`${file} cannot be used`, () => new SpecialTokens(tokenizer));
    this.#tokenizer = attempt(`${file} cannot be used`, () => new Tokenizer(this.#special.file, config));
    this.#template = template === undefined ? undefined
      : attempt(`${model}: its chat template cannot be used`, () => new Template(template));
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
  encode(text: string, options: EncodeOptions = {}): number[] {
    return this.encodeSpelled(this.spell(text, options));
  }

  /**
   * Tokens of a conversation, up to where the model is to answer; the template itself puts the first token there. Special tokens in the
   * messages stay text; `values` are variables for the template besides (`enable_thinking`, say). Throws KV_MODEL_INVALID when there is no
   * chat template, or it does not take these messages.
   */
  encodeChat(messages: readonly ChatMessage[], values: Readonly<Record<string, unknown>> = {}): number[] {
    return this.encodeSpelled(this.spellChat(messages, values));
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

  /** What `encode` tokenizes. @internal */
  spell(text: string, { specialTokens = 'text' }: EncodeOptions = {}): SpelledText {
    return { text: specialTokens === 'parse' ? this.#special.spell(text) : text, addsTokens: true };
  }

  /** What `encodeChat` tokenizes. @internal */
  spellChat(messages: readonly ChatMessage[], values: Readonly<Record<string, unknown>> = {}): SpelledText {
    const template = this.#template;
    if (template === undefined) throw modelError(`${this.#model} has no chat template: give a plain prompt.`);
    const strange = messages.find(({ role }) => !/^[\w-]+$/.test(role));
    if (strange !== undefined) throw modelError(`${JSON.stringify(strange.role)} is no role. A role has letters, digits, _ and - only.`);
    const what = `${this.#model}: its chat template does not take these messages`;
    const text = attempt(what, () => template.render({
      ...values, messages: messages.map((message) => this.#special.guard(message)), add_generation_prompt: true,
      bos_token: this.#named('bos_token'), eos_token: this.#named('eos_token'),
    }), (message) => this.#special.unguard(message));
    return { text: this.#special.unguard(this.#special.spell(text)), addsTokens: false };
  }

  /** The last step of encoding, and the one that takes long. @internal */
  encodeSpelled({ text, addsTokens }: SpelledText): number[] {
    return this.#tokenizer.encode(text, { add_special_tokens: addsTokens }).ids;
  }

  /** For the same tokenizer on another thread. @internal */
  get source(): TokenizerSource {
    return { model: this.#model, nonce: this.#special.nonce, digest: this.#digest };
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
