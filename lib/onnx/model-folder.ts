// ModelFolder: the files of an ONNX model as they are published: the graph in `onnx/` or beside its tokenizer and its configs.

import { existsSync, readdirSync, readFileSync, statSync } from 'node:fs';
import * as path from 'node:path';

import { formatList } from '../base/format.js';
import { string } from '../base/options.js';
import { modelError } from '../llama/model-error.js';

/** What `readModelFolder` finds. */
export interface ModelFolder {
  /** The graph. */
  readonly file: string;
  /** Where `tokenizer.json` is. */
  readonly folder: string;
  /** Tokens that end an answer, by the configs. */
  readonly endTokens: readonly number[];
  /** Tokens of a sequence, by `config.json`; undefined: it does not say. */
  readonly maxTokens: number | undefined;
}

/** Finds the files of a folder, or of one of its `.onnx` files. Throws KV_MODEL_INVALID, KV_INVALID_OPTION. */
export function readModelFolder(given: string): ModelFolder {
  string(given, { owner: 'readModelFolder', option: 'folder' });
  const file = given.endsWith('.onnx') ? given : graphOf(given);
  const beside = path.dirname(file);
  const folder = existsSync(path.join(beside, 'tokenizer.json')) ? beside : path.dirname(path.resolve(beside));
  const configs = ['config.json', 'generation_config.json'].map((name) => readConfig(path.join(folder, name)));
  const maxTokens = configs[0]!['max_position_embeddings'];
  return {
    file, folder, endTokens: [...new Set(configs.flatMap(({ eos_token_id: tokens }) => tokens ?? []))].filter((token): token is number => Number.isSafeInteger(token)),
    maxTokens: typeof maxTokens === 'number' && maxTokens > 0 ? maxTokens : undefined,
  };
}

function graphOf(folder: string): string {
  for (const name of [path.join('onnx', 'model.onnx'), 'model.onnx']) {
    if (existsSync(path.join(folder, name))) return path.join(folder, name);
  }
  const others = [path.join(folder, 'onnx'), folder].flatMap((place) =>
    existsSync(place) && statSync(place).isDirectory() ? readdirSync(place).filter((name) => name.endsWith('.onnx')).map((name) => path.join(place, name)) : []);
  if (others.length === 1) return others[0]!;
  throw modelError(others.length === 0
    ? `${folder} has no .onnx file, nor has its folder "onnx". Give the folder of a model, or the file itself.`
    : `${folder} has several models: ${formatList(others, 'and')}. Give one of these files.`);
}

interface Config {
  readonly eos_token_id?: number | readonly number[];
  readonly max_position_embeddings?: unknown;
}

function readConfig(file: string): Config {
  if (!existsSync(file)) return {};
  try {
    return JSON.parse(readFileSync(file, 'utf8')) as Config;
  } catch (cause) {
    throw modelError(`${file} is no JSON. Give a folder whose files are whole.`, { cause });
  }
}
