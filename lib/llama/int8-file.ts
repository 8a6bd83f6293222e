// writeInt8File: a model in int8 as a GGUF file of Q8_0, the blocks that `weights: 'int8'` makes. It goes through the tensors one after the
// other and a stretch of rows at a time, and gives the event loop its turn between them. The file has its name when it is whole: what fails or
// is given up leaves nothing. A model's keys come along, and its tokenizer.

import { randomBytes } from 'node:crypto';
import { existsSync } from 'node:fs';
import { open, rename, rm, type FileHandle } from 'node:fs/promises';
import path = require('node:path');

import { createError } from '../base/errors.js';
import { DenseKernels, type Weight } from '../index.js';
import type { LlamaConfig } from './config.js';
import { ggufHeader, padding, type GgufEntry, type GgufPlace } from './gguf/gguf-header.js';
import { ggufNameOf } from './gguf/gguf-tensors.js';
import { folderEntries, int8Entries, tokenizerEntries } from './gguf/own-entries.js';
import { rotaryFactors } from './gguf/gguf-config.js';
import { folderOf, openModelFiles, type ModelFiles, type ModelTensors } from './model-files.js';
import { rotaryFrequencies } from './rotary-table.js';
import { readTokenizerFiles } from './tokenizer-files.js';
import { int8RowBytes, quantizeRows, readLlamaWeights } from './weights.js';

export interface Int8FileOptions {
  /** Gives up with KV_ABORTED. */
  readonly signal?: AbortSignal | undefined;
  /** Called behind each stretch of rows, with bytes of the new file. */
  readonly onProgress?: (progress: { readonly bytes: number; readonly totalBytes: number }) => void;
}

/** What was written. */
export interface Int8File {
  readonly tensors: number;
  readonly bytes: number;
}

/** Bytes that are converted at a time. */
const stretchBytes = 2 ** 20;
const types = { float32: 0, int8: 8 } as const;

interface Tensor {
  readonly name: string;
  readonly shape: readonly number[];
}

/**
 * Converts a folder or a `.gguf` file to `output`, and puts that in the place of what has its name. Rejects with KV_MODEL_INVALID, KV_OUTPUT_FAILED and
 * KV_ABORTED.
 */
export async function writeInt8File(model: string, output: string, options: Int8FileOptions = {}): Promise<Int8File> {
  const files = openModelFiles(model, 'mapped');
  const partial = `${output}.${randomBytes(4).toString('hex')}.partial`;
  let handle: FileHandle | undefined;
  try {
    const conversion = new Conversion(model, files, options);
    try {
      handle = await open(partial, 'wx');
      const written = await conversion.write(handle);
      await handle.sync();
      await handle.close();
      await rename(partial, output);
      return written;
    } catch (error) {
      if (handle !== undefined) await Promise.allSettled([handle.close(), rm(partial)]); // what failed before says why
      throw (error as NodeJS.ErrnoException).syscall === undefined ? error : createError('KV_OUTPUT_FAILED', { file: output, problem: (error as Error).message }, { cause: error });
    }
  } finally {
    files.tensors.close();
  }
}

class Conversion {
  readonly #config: LlamaConfig;
  readonly #source: ModelTensors;
  readonly #options: Int8FileOptions;
  readonly #dense = new DenseKernels();
  readonly #tensors: readonly Tensor[];
  readonly #header: Buffer;
  readonly #totalBytes: number;
  /** Whether rows of queries and keys are, as llama.cpp has them. */
  readonly #isInterleaved: boolean;
  readonly #factors: Float32Array | undefined;
  #bytes = 0;

  /** Reads what there is. Throws KV_MODEL_INVALID when it is no model that can be run, or a matrix cannot be int8. */
  constructor(model: string, { config, tensors, gguf }: ModelFiles, options: Int8FileOptions) {
    this.#config = config;
    this.#source = tensors;
    this.#options = options;
    this.#tensors = wantedOf(config, tensors, this.#dense);
    this.#factors = factorsOf(config);
    const entries: GgufEntry[] = [...gguf === undefined ? folderEntries(model, config) : [], ...int8Entries(tensors.dtype)];
    if (existsSync(path.join(folderOf(model), 'tokenizer.json'))) entries.push(...tokenizerEntries(readTokenizerFiles(model)));
    const isNew = new Set(['general.alignment', ...entries.map(([key]) => key)]);
    const copied = [...gguf?.places ?? []].filter(([key]) => !isNew.has(key)).map(([, [from, to]]) => {
      const entry = Buffer.alloc(to - from);
      gguf!.file.read(entry, from, 'its header');
      return entry;
    });
    this.#isInterleaved = (gguf?.values.get('general.architecture') ?? entries[0]![2]) === 'llama';
    const places = this.#tensors.map((tensor) => placeOf(tensor, config));
    if (this.#factors !== undefined) places.unshift({ name: rotaryFactors, shape: [this.#factors.length], type: types.float32, bytes: this.#factors.byteLength });
    this.#header = ggufHeader(entries, places, undefined, copied);
    this.#totalBytes = places.reduce((sum, { bytes }) => sum + bytes + padding(bytes), this.#header.length);
  }

  async write(into: FileHandle): Promise<Int8File> {
    await this.#put(into, this.#header);
    if (this.#factors !== undefined) await this.#end(into, this.#factors);
    for (const { name, shape } of this.#tensors) {
      const weight = this.#source.read(name, shape);
      if (shape.length === 2) await this.#matrix(into, name, weight);
      else await this.#vector(into, name, weight);
    }
    for (const file of this.#source.files) file.check();
    return { tensors: this.#tensors.length, bytes: this.#bytes };
  }

  async #matrix(into: FileHandle, name: string, weight: Weight): Promise<void> {
    const { outputs, inputs } = weight;
    const rowBytes = int8RowBytes(name, inputs);
    const most = Math.min(outputs, Math.max(1, Math.floor(stretchBytes / rowBytes)));
    const [floats, blocks] = [new Float32Array(most * inputs), new Uint8Array(most * rowBytes)];
    const rowAt = this.#order(name);
    for (let from = 0; from < outputs; from += most) {
      const rows = Int32Array.from({ length: Math.min(most, outputs - from) }, (_, row) => rowAt(from + row));
      const stretch = blocks.subarray(0, rows.length * rowBytes);
      if (weight.dtype === 'int8') rows.forEach((row, index) => { this.#copy(weight, row * rowBytes, stretch.subarray(index * rowBytes, (index + 1) * rowBytes)); });
      else quantizeRows(name, weight, rows, this.#dense, floats, stretch);
      await this.#put(into, stretch);
    }
    await this.#end(into);
  }

  async #vector(into: FileHandle, name: string, weight: Weight): Promise<void> {
    const floats = new Float32Array(weight.inputs);
    this.#dense.gather(weight, Int32Array.of(0), 1, floats);
    const rowAt = this.#order(name);
    const shift = name.endsWith('norm.weight') ? this.#source.normShift : 0;
    await this.#end(into, floats.map((_, index) => floats[rowAt(index)]! + shift));
  }

  /** Which row of a folder's tensor is at which place of the file: a Llama's queries and keys have the two halves of each head in turns. */
  #order(name: string): (row: number) => number {
    const { headDim } = this.#config;
    if (!this.#isInterleaved || this.#source.pairs === 'neighbours' || !/\.[qk]_proj\./.test(name)) return (row) => row;
    return (row) => row - row % headDim + row % 2 * headDim / 2 + Math.floor(row % headDim / 2);
  }

  /** Bytes of a matrix, from `at` on. */
  #copy({ data }: Weight, at: number, into: Uint8Array): void {
    if (typeof data === 'bigint') this.#source.files.find((file) => file.copy(into, data + BigInt(at)));
    else into.set((data as Uint8Array).subarray(at, at + into.length));
  }

  /** The last of a tensor. */
  async #end(into: FileHandle, floats: Float32Array = new Float32Array(0)): Promise<void> {
    const bytes = new Uint8Array(floats.buffer, floats.byteOffset, floats.byteLength);
    await this.#put(into, Buffer.concat([bytes, Buffer.alloc(padding(this.#bytes + bytes.length))])); // the header has whole lines too
  }

  async #put(into: FileHandle, bytes: Uint8Array): Promise<void> {
    const { signal, onProgress } = this.#options;
    if (signal?.aborted === true) throw createError('KV_ABORTED', { operation: 'converting a model' }, { cause: signal.reason });
    for (let done = 0; done < bytes.length;) done += (await into.write(bytes, done)).bytesWritten;
    this.#bytes += bytes.length;
    onProgress?.({ bytes: this.#bytes, totalBytes: this.#totalBytes });
  }
}

/** The tensors that a config asks for, in the order in which they are read. Throws KV_MODEL_INVALID as loading them does. */
function wantedOf(config: LlamaConfig, tensors: ModelTensors, dense: DenseKernels): readonly Tensor[] {
  const wanted: Tensor[] = [];
  const noted: ModelTensors = {
    names: tensors.names, files: tensors.files, dtype: 'float32', pairs: tensors.pairs, normShift: 0, close: () => {},
    read(name, shape) {
      wanted.push({ name, shape });
      return tensors.read(name, shape);
    },
  };
  readLlamaWeights(noted, config, dense, (name, weight) => {
    int8RowBytes(name, weight.inputs);
    return { ...weight, data: 0n }; // a copy is not kept
  });
  return wanted;
}

function placeOf({ name, shape }: Tensor, config: LlamaConfig): GgufPlace {
  const [rows, inputs] = [shape.length === 2 ? shape[0]! : 1, shape.at(-1)!];
  const [type, bytes] = shape.length === 2 ? [types.int8, rows * int8RowBytes(name, inputs)] : [types.float32, 4 * inputs];
  return { name: ggufNameOf(name, config), shape, type, bytes };
}

/** By how much each pair of a head is slowed down, where Llama 3's scaling or a GGUF file says so. */
function factorsOf(config: LlamaConfig): Float32Array | undefined {
  const { kind } = config.ropeScaling;
  if (kind !== 'llama3' && kind !== 'factors') return undefined;
  const plain = rotaryFrequencies({ ...config, ropeScaling: { kind: 'none' } });
  return Float32Array.from(rotaryFrequencies(config), (frequency, pair) => plain[pair]! / frequency);
}
