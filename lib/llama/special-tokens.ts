// SpecialTokens: keeps special tokens that a template writes apart from those that a user types. In the tokenizer's file each is
// renamed to a spelling that users cannot know, so that only text which `spell` has changed holds any. A template's text is spelled after the
// special tokens in the messages were guarded: broken up by a mark, which is taken out again.

import { randomBytes } from 'node:crypto';

import type { Json } from './config-reader.js';

/** The part of a tokenizer.json that is read. */
export interface TokenizerFile {
  readonly added_tokens?: readonly { readonly id: number; readonly content: string; readonly special?: boolean }[] | undefined;
  readonly post_processor?: unknown;
  readonly decoder?: unknown;
  readonly pre_tokenizer?: unknown;
}

/** What a tokenizer is made of. */
export interface TokenizerFiles {
  /** Of the tokenizer, for messages. */
  readonly file: string;
  readonly tokenizer: TokenizerFile;
  readonly config: Json;
  /** The chat template; undefined: there is none. */
  readonly template: string | undefined;
  /** Of all their text. */
  readonly digest: string;
}

/** The special tokens of a tokenizer. */
export class SpecialTokens {
  /** The file for the tokenizer library, with special tokens renamed. */
  readonly file: TokenizerFile;
  readonly #ids = new Map<string, number>();
  readonly #spellings = new Map<string, string>();
  /** Any special token, longest first; undefined: there are none. */
  readonly #pattern: RegExp | undefined;
  readonly #guard: string;

  constructor(file: TokenizerFile) {
    const nonce = randomBytes(9).toString('hex'); // the part of the spellings that cannot be known
    this.#guard = `\uFDD0${nonce}\uFDD1`; // characters that Unicode has for such use and no text has
    const added = (file.added_tokens ?? []).map((token) => {
      if (token.special !== true || token.content === '') return token;
      const spelling = `\uFDD0${nonce}.${token.id}\uFDD1`;
      this.#ids.set(token.content, token.id);
      this.#spellings.set(token.content, spelling);
      return { ...token, content: spelling };
    });
    const names = [...this.#ids.keys()].sort((a, b) => b.length - a.length).map((name) => name.replace(/[\\^$.*+?()[\]{}|]/g, '\\$&'));
    this.#pattern = names.length === 0 ? undefined : new RegExp(names.join('|'), 'g');
    this.file = { ...file, added_tokens: added, post_processor: this.#renamed(file.post_processor) };
  }

  /** The id of a special token; undefined: it is none. */
  idOf(name: string): number | undefined {
    return this.#ids.get(name);
  }

  /** The text with its special tokens in the spelling that the tokenizer knows. */
  spell(text: string): string {
    return this.#pattern === undefined ? text : text.replace(this.#pattern, (name) => this.#spellings.get(name)!);
  }

  /** The same value with every special token in its strings broken up, in names of members, too. */
  guard<T>(value: T): T {
    if (this.#pattern === undefined) return value;
    if (typeof value === 'string') return value.replace(this.#pattern, (name) => this.#broken(name)) as T;
    if (Array.isArray(value)) return value.map((each: unknown) => this.guard(each)) as T;
    if (typeof value !== 'object' || value === null) return value;
    return Object.fromEntries(
      Object.entries(value).map(([name, each]) => [this.guard(name), this.guard(each as unknown)]),
    ) as T;
  }

  /** The text without the marks of `guard`. */
  unguard(text: string): string {
    return text.replaceAll(this.#guard, '');
  }

  /** With a mark behind each character: what is left of it between two marks may not be another special token. */
  #broken(name: string): string {
    return [...name].join(this.#guard) + (name.length === 1 ? this.#guard : '');
  }

  #renamed(value: unknown): unknown {
    if (typeof value === 'string') return this.#spellings.get(value) ?? value;
    if (Array.isArray(value)) return value.map((each) => this.#renamed(each));
    if (typeof value !== 'object' || value === null) return value;
    return Object.fromEntries(Object.entries(value).map(([name, each]) => [this.#spellings.get(name) ?? name, this.#renamed(each)]));
  }
}
