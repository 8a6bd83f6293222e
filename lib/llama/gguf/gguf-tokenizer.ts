// The tokenizer in a GGUF file's header, as the tokenizer.json that it was made from: byte-level BPE whose pieces are cut in one of the ways
// below. Another kind is refused by name: its tokens would be other ones. Keys: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md

import type { Json } from '../config-reader.js';
import { modelError } from '../model-error.js';
import type { TokenizerFile } from '../special-tokens.js';
import { GgufFile, type GgufValue } from './gguf-file.js';
import { tokenizerIn } from './own-entries.js';

export interface GgufTokenizer {
  /** As a tokenizer.json. */
  readonly tokenizer: TokenizerFile;
  /** As a tokenizer_config.json. */
  readonly config: Json;
  /** The chat template; undefined: there is none. */
  readonly template: string | undefined;
}

/** How a text is cut into pieces before the merges. */
interface PreTokenizer {
  readonly steps: readonly object[];
  /** In which form of Unicode. */
  readonly normalizer?: 'NFC';
  /** A piece that is a token needs no merges. */
  readonly ignoresMerges?: boolean;
  /** Whether the first token is put in front where the file does not say. */
  readonly addsFirst?: boolean;
}

const bytes = (cutsWords: boolean): object => ({ type: 'ByteLevel', add_prefix_space: false, trim_offsets: true, use_regex: cutsWords });
const words = (digits: string): object => ({
  type: 'Split', behavior: 'Isolated', invert: false, pattern: {
    Regex: `(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|${digits}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+`,
  },
});

/** By `tokenizer.ggml.pre`. */
const preTokenizers: Readonly<Record<string, PreTokenizer>> = {
  'gpt-2': { steps: [bytes(true)] },
  'llama-bpe': { steps: [words('\\p{N}{1,3}'), bytes(false)], ignoresMerges: true, addsFirst: true },
  qwen2: { steps: [words('\\p{N}'), bytes(false)], normalizer: 'NFC' },
  smollm: { steps: [{ type: 'Digits', individual_digits: true }, bytes(true)] },
};

/** Of `tokenizer.ggml.token_type`. */
const tokenTypes = { normal: 1, control: 3, userDefined: 4 } as const;
const longLists = ['tokens', 'token_type', 'merges'].map((name) => `tokenizer.ggml.${name}`);

/** Reads the tokenizer of a file. Throws KV_MODEL_INVALID, also where it has none that is supported. */
export function readGgufTokenizer(path: string): GgufTokenizer {
  const gguf = new GgufFile(path, 'copied', new Set(longLists));
  gguf.file.close();
  return tokenizerIn(gguf.values, path) ?? new Header(path, gguf.values).read();
}

class Header {
  readonly #path: string;
  readonly #values: ReadonlyMap<string, GgufValue>;

  constructor(path: string, values: ReadonlyMap<string, GgufValue>) {
    this.#path = path;
    this.#values = values;
  }

  read(): GgufTokenizer {
    const kind = this.#of('model');
    if (kind !== 'gpt2') return this.#refuse(kind === undefined ? 'no tokenizer' : `a tokenizer of kind ${JSON.stringify(kind)}`);
    const pre = this.#of('pre');
    const cutting = typeof pre === 'string' && Object.hasOwn(preTokenizers, pre) ? preTokenizers[pre]! : this.#refuse(`a tokenizer that cuts words as ${JSON.stringify(pre)} does`);
    const tokens = this.#list('tokens', 'string');
    const types = this.#of('token_type') === undefined ? tokens.map(() => tokenTypes.normal) : this.#list('token_type', 'number');
    if (types.length !== tokens.length) this.#fail(`${tokens.length} tokens and ${types.length} types of them`);
    const merges = this.#list('merges', 'string');
    const strange = merges.find((merge) => !/^[^ ]+ [^ ]+$/.test(merge));
    if (strange !== undefined) this.#fail(`the merge ${JSON.stringify(strange)}, which is no two parts`);
    const ofType = (type: number): readonly number[] => [...tokens.keys()].filter((token) => types[token] === type);
    const vocabulary = new Map(ofType(tokenTypes.normal).map((token) => [tokens[token]!, token]));
    const added = (token: number): object =>
      ({ id: token, content: tokens[token]!, special: types[token] === tokenTypes.control, single_word: false, lstrip: false, rstrip: false, normalized: false });
    const [first, last] = [this.#token('bos', tokens), this.#token('eos', tokens)];
    const tokenizer = {
      version: '1.0', truncation: null, padding: null,
      added_tokens: [...ofType(tokenTypes.control), ...ofType(tokenTypes.userDefined)].map(added) as TokenizerFile['added_tokens'],
      normalizer: cutting.normalizer === undefined ? null : { type: cutting.normalizer },
      pre_tokenizer: { type: 'Sequence', pretokenizers: cutting.steps },
      post_processor: around(this.#adds('bos', cutting.addsFirst ?? false) ? first : undefined, this.#adds('eos', false) ? last : undefined),
      decoder: bytes(true),
      model: {
        type: 'BPE', dropout: null, unk_token: null, continuing_subword_prefix: null, end_of_word_suffix: null, fuse_unk: false, byte_fallback: false,
        ignore_merges: cutting.ignoresMerges ?? false, vocab: Object.fromEntries(vocabulary), merges,
      },
    };
    const template = this.#values.get('tokenizer.chat_template');
    return { tokenizer, config: { bos_token: first?.name, eos_token: last?.name }, template: typeof template === 'string' ? template : undefined };
  }

  #of(name: string): GgufValue | undefined {
    return this.#values.get(`tokenizer.ggml.${name}`);
  }

  #list(name: string, type: 'string'): readonly string[];
  #list(name: string, type: 'number'): readonly number[];
  #list(name: string, type: 'string' | 'number'): readonly (string | number)[] {
    const value = this.#of(name);
    if (!Array.isArray(value)) return this.#fail(`no \`tokenizer.ggml.${name}\``);
    const list = value as readonly (string | number | boolean)[];
    return list.every((each) => typeof each === type) ? list as readonly (string | number)[] : this.#fail(`a \`tokenizer.ggml.${name}\` that is no list of ${type}s`);
  }

  #token(name: 'bos' | 'eos', tokens: readonly string[]): NamedToken | undefined {
    const token = this.#of(`${name}_token_id`);
    if (token === undefined) return undefined;
    const found = typeof token === 'number' ? tokens[token] : undefined;
    return found === undefined ? this.#fail(`no token ${JSON.stringify(token)}, which is its ${name}_token_id`) : { token: token as number, name: found };
  }

  #adds(name: 'bos' | 'eos', otherwise: boolean): boolean {
    const adds = this.#of(`add_${name}_token`) ?? otherwise;
    return typeof adds === 'boolean' ? adds : this.#fail(`a \`tokenizer.ggml.add_${name}_token\` that is neither true nor false`);
  }

  #refuse(what: string): never {
    throw modelError(`${this.#path} has ${what}, which is not read from a file's header. Put the model's tokenizer.json beside it.`);
  }

  #fail(what: string): never {
    throw modelError(`${this.#path} has ${what}. Put the model's tokenizer.json beside it.`);
  }
}

interface NamedToken {
  readonly token: number;
  readonly name: string;
}

/** What puts these around a text; null: nothing. */
function around(first: NamedToken | undefined, last: NamedToken | undefined): object | null {
  const both = [first, last].filter((each) => each !== undefined);
  if (both.length === 0) return null;
  const special = (each: NamedToken | undefined): object[] => (each === undefined ? [] : [{ SpecialToken: { id: each.name, type_id: 0 } }]);
  const single = [...special(first), { Sequence: { id: 'A', type_id: 0 } }, ...special(last)];
  const tokens = Object.fromEntries(both.map(({ token, name }) => [name, { id: name, ids: [token], tokens: [name] }]));
  return { type: 'TemplateProcessing', single, pair: single, special_tokens: tokens };
}
