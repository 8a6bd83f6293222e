// The files of a model: a Hugging Face folder (config.json and safetensors), or one GGUF file. What they say of the model, and its
// tensors by the names that Hugging Face gives them.

import path = require('node:path');

import { string } from '../base/options.js';
import type { HeadPairs, RowDtype, Weight } from '../index.js';
import { readFolder, type LlamaConfig } from './config.js';
import { readGgufConfig } from './gguf/gguf-config.js';
import { GgufFile } from './gguf/gguf-file.js';
import { GgufTensors } from './gguf/gguf-tensors.js';
import { Safetensors } from './safetensors.js';
import type { WeightFile, WeightPlacement } from './weight-file.js';

/** Tensors by their names; none is converted. */
export interface ModelTensors {
  readonly names: readonly string[];
  /** Whose bytes tensors may be. */
  readonly files: readonly WeightFile[];
  /** In which K and V are kept by default; once the embedding was read. */
  readonly dtype: RowDtype;
  /** How the rows of queries' and keys' weights, and elements of their biases, follow each other in a head. */
  readonly pairs: HeadPairs;
  /** Added to the weights of norms, which some files keep less by one. */
  readonly normShift: 0 | 1;
  /** A matrix `[outputs, inputs]`; a vector has one output. Throws KV_MODEL_INVALID when it is missing or has another shape. */
  read(name: string, shape: readonly number[]): Weight;
  /** When all were read. Idempotent. */
  close(): void;
}

export interface ModelFiles {
  readonly config: LlamaConfig;
  readonly tensors: ModelTensors;
  /** The header of a GGUF file. */
  readonly gguf?: GgufFile;
}

/** Opens a folder or a `.gguf` file; the caller closes `tensors`. Throws KV_MODEL_INVALID, and KV_INVALID_OPTION for what is no path. */
export function openModelFiles(model: string, placement: WeightPlacement): ModelFiles {
  string(model, { owner: 'LlamaModel', option: 'model' });
  if (!isGguf(model)) {
    const { config, family } = readFolder(model);
    return { config, tensors: new Safetensors(model, placement, family) };
  }
  const gguf = new GgufFile(model, placement);
  try {
    const config = readGgufConfig(gguf);
    return { config, tensors: new GgufTensors(gguf, config), gguf };
  } catch (error) {
    gguf.file.close();
    throw error;
  }
}

/** The folder whose tokenizer belongs to it. */
export function folderOf(model: string): string {
  return isGguf(model) ? path.dirname(model) : model;
}

/** Whether it names one file. */
export function isGguf(model: string): boolean {
  return path.extname(model).toLowerCase() === '.gguf';
}
