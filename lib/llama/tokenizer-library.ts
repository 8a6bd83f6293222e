// The two optional packages of the tokenizer, as far as they are used here; their own types are not made for CommonJS.

import { createError } from '../base/errors.js';

export interface TokenizerLibrary {
  readonly Tokenizer: new (tokenizer: object, config: object) => {
    encode(text: string, options: { readonly add_special_tokens: boolean }): { readonly ids: number[] };
    decode(tokens: readonly number[], options: { readonly skip_special_tokens: boolean; readonly clean_up_tokenization_spaces: boolean }): string;
    token_to_id(token: string): number | undefined;
    id_to_token(id: number): string | undefined;
  };
}

export interface TemplateLibrary {
  readonly Template: new (template: string) => { render(values: Readonly<Record<string, unknown>>): string };
}

const packages = ['@huggingface/tokenizers', '@huggingface/jinja'] as const;

/** Throws KV_DEPENDENCY_MISSING, which names both. */
export function loadPackages(load: (name: string) => unknown): [TokenizerLibrary, TemplateLibrary] {
  try {
    return packages.map((name) => load(name)) as [TokenizerLibrary, TemplateLibrary];
  } catch (cause) {
    if ((cause as NodeJS.ErrnoException | undefined)?.code !== 'MODULE_NOT_FOUND') throw cause;
    throw createError('KV_DEPENDENCY_MISSING', { dependency: packages.join(' '), purpose: 'turning text into tokens' }, { cause });
  }
}
