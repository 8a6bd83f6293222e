// The files of a model's tokenizer: tokenizer.json, its config with the names of special tokens, and the chat template; or the header of a GGUF
// file without a tokenizer.json beside it. Read once; a digest of them says later whether they are still the same.

import { createHash, type Hash } from 'node:crypto';
import { existsSync } from 'node:fs';
import path = require('node:path');

import { parseJson, readText } from './config.js';
import type { Json } from './config-reader.js';
import { readGgufTokenizer } from './gguf/gguf-tokenizer.js';
import { modelError } from './model-error.js';
import { folderOf, isGguf } from './model-files.js';
import type { TokenizerFile, TokenizerFiles } from './special-tokens.js';

/** The tokenizer's files of a folder, or of a `.gguf` file. Throws KV_MODEL_INVALID. */
export function readTokenizerFiles(model: string): TokenizerFiles {
  const folder = folderOf(model);
  const file = path.join(folder, 'tokenizer.json');
  if (!existsSync(file) && isGguf(model)) {
    const read = readGgufTokenizer(model);
    return { file: model, ...read, digest: createHash('sha256').update(JSON.stringify(read)).digest('hex') };
  }
  if (!existsSync(file)) {
    throw modelError(`${file} is not there. Only tokenizer.json is read; convert a tokenizer.model or a vocab.json first.`);
  }
  const hash = createHash('sha256');
  // Older folders have the names of special tokens in a file of their own.
  const config = { ...jsonIfThere(folder, 'special_tokens_map.json', hash), ...jsonIfThere(folder, 'tokenizer_config.json', hash) };
  const tokenizer = jsonIfThere(folder, 'tokenizer.json', hash) as TokenizerFile;
  const template = textIfThere(folder, 'chat_template.jinja', hash) ?? templateIn(config);
  return { file, tokenizer, config, template, digest: hash.digest('hex') };
}

function jsonIfThere(folder: string, name: string, hash: Hash): Json {
  const text = textIfThere(folder, name, hash);
  return text === undefined ? {} : parseJson(text, path.join(folder, name));
}

function textIfThere(folder: string, name: string, hash: Hash): string | undefined {
  const file = path.join(folder, name);
  const text = existsSync(file) ? readText(file) : undefined;
  hash.update(`${name} ${text?.length ?? 'none'} `).update(text ?? '');
  return text;
}

/** The template in a tokenizer_config.json. */
function templateIn(config: Json): string | undefined {
  const template = config['chat_template'];
  if (typeof template === 'string') return template;
  if (!Array.isArray(template)) return undefined; // else several by name
  const named = template as ({ readonly name?: unknown; readonly template?: unknown } | null)[];
  const { template: found } = named.find((each) => each?.name === 'default') ?? {};
  return typeof found === 'string' ? found : undefined;
}
