// Safetensors: the tensors of a model's folder, in one file or several. It reads headers when opened, and gives a tensor's bytes when
// asked, mapped or copied (weight-file.ts); nothing is converted. https://github.com/huggingface/safetensors#format: 8 bytes header length, JSON, bytes.

import { existsSync } from 'node:fs';
import path = require('node:path');

import { dtypeBytes, type HeadPairs, type RowDtype, type Weight } from '../index.js';

import { readJson } from './config.js';
import type { TensorForm } from './families.js';
import { modelError } from './model-error.js';
import { openWeightFile, type WeightFile, type WeightPlacement } from './weight-file.js';

interface Entry {
  readonly file: WeightFile;
  readonly dtype: RowDtype;
  readonly shape: readonly number[];
  /** Where its bytes begin in the file. */
  readonly offset: number;
  readonly bytes: number;
}

const dtypes: Readonly<Record<string, RowDtype>> = { F32: 'float32', F16: 'float16', BF16: 'bfloat16' };
const mostHeaderBytes = 100e6; // as the format says

export class Safetensors {
  readonly #form: TensorForm;
  readonly #folder: string;
  readonly #placement: WeightPlacement;
  readonly #entries = new Map<string, Entry>();
  readonly #files: WeightFile[] = [];

  /** Opens `model.safetensors`, or the files of `model.safetensors.index.json`. Throws KV_MODEL_INVALID. */
  constructor(folder: string, placement: WeightPlacement, form: TensorForm) {
    this.#form = form;
    this.#folder = folder;
    this.#placement = placement;
    try {
      this.#open();
    } catch (error) {
      this.close();
      throw error;
    }
  }

  #open(): void {
    const folder = this.#folder;
    const single = path.join(folder, 'model.safetensors');
    const index = path.join(folder, 'model.safetensors.index.json');
    if (existsSync(single) || !existsSync(index)) {
      this.#readHeader(single, () => true);
      return;
    }
    for (const [name, wanted] of shardsOf(index)) {
      const file = path.join(folder, name);
      if (!existsSync(file)) throw modelError(`${file} is not there, but ${index} places tensors in it. Download it, too.`);
      this.#readHeader(file, (tensor) => wanted.delete(tensor));
      const [missing] = wanted;
      if (missing !== undefined) throw modelError(`${file} has no tensor \`${missing}\`, which ${index} places there. Download both again.`);
    }
  }

  /** How queries and keys are read. */
  get pairs(): HeadPairs {
    return this.#form.pairs;
  }

  get normShift(): 0 | 1 {
    return this.#form.normShift;
  }

  /** As a Llama's would be called; without those of parts that see images. */
  get names(): readonly string[] {
    return [...this.#entries.keys()];
  }

  /** The embedding's type. */
  get dtype(): RowDtype {
    return this.#entries.get('model.embed_tokens.weight')!.dtype;
  }

  /** Whose bytes its tensors may be. */
  get files(): readonly WeightFile[] {
    return this.#files;
  }

  /** When all tensors were read. Idempotent. */
  close(): void {
    for (const file of this.#files) file.close();
  }

  /** A matrix `[outputs, inputs]`; a vector has one output. Throws KV_MODEL_INVALID when it is missing or has another shape. */
  read(name: string, shape: readonly number[]): Weight {
    const entry = this.#entries.get(name);
    if (entry === undefined) throw modelError(`${this.#folder} has no tensor \`${name}\`, which its config.json asks for. Give the whole folder of a model.`);
    if (entry.shape.join() !== shape.join()) {
      throw modelError(`${entry.file.path}: tensor \`${name}\` is [${entry.shape.join(', ')}], but config.json makes it [${shape.join(', ')}]. ` +
        'Are both of the same model?');
    }
    const data = entry.file.tensor(name, entry.dtype, entry.offset, entry.bytes);
    return { data, dtype: entry.dtype, outputs: shape.length === 2 ? shape[0]! : 1, inputs: shape.at(-1)! };
  }

  #readHeader(file: string, isWanted: (name: string) => boolean): void {
    const invalid: Invalid = (what) => {
      throw modelError(`${file} is no safetensors file: ${what}. Is the download complete?`);
    };
    const opened = openWeightFile(file, this.#placement, 'Only safetensors are read; convert other weights first.');
    this.#files.push(opened);
    const size = opened.bytes;
    if (size < 8) invalid(`it has ${size} bytes`);
    const prefix = Buffer.alloc(8);
    opened.read(prefix, 0, 'its header');
    const length = Number(prefix.readBigUInt64LE());
    if (length > size - 8 || length > mostHeaderBytes) invalid(`its header has ${length} bytes, the file ${size}`);
    const text = Buffer.alloc(length);
    opened.read(text, 8, 'its header');
    const from = 8 + length;
    let begin = 0; // tensors lie one behind the other
    for (const { name, dtype, shape, offsets } of headerOf(text, invalid)) {
      const [at, end] = offsets;
      if (at < begin || end > size - from) invalid(`tensor \`${name}\` is at ${at} … ${end}; there is room at ${begin} … ${size - from}`);
      begin = end;
      const own = this.#form.nameOf(name);
      if (!isWanted(name) || own === undefined) continue;
      const type = dtypes[dtype];
      if (type === undefined) {
        throw modelError(`${file}: tensor \`${name}\` is ${dtype}. Give float32, float16 or bfloat16: the model before it was quantized.`);
      }
      const bytes = shape.reduce((product, extent) => product * extent, dtypeBytes(type));
      if (bytes !== end - at) invalid(`tensor \`${name}\`, ${dtype} [${shape.join(', ')}], has ${end - at} bytes instead of ${bytes}`);
      this.#entries.set(own, { file: opened, dtype: type, shape, offset: from + at, bytes });
    }
  }
}

type Invalid = (what: string) => never;

interface HeaderEntry {
  readonly name: string;
  readonly dtype: string;
  readonly shape: readonly number[];
  /** Of its first byte, and behind its last. */
  readonly offsets: readonly [number, number];
}

/** The tensors of a header, in the order of their bytes. */
function headerOf(text: Buffer, invalid: Invalid): HeaderEntry[] {
  let header: unknown;
  try {
    header = JSON.parse(text.toString('utf8'));
  } catch (error) {
    invalid(`its header is not JSON (${(error as Error).message})`);
  }
  if (typeof header !== 'object' || header === null) invalid('its header is not a JSON object');
  const tensors = Object.entries(header as object).filter(([name]) => name !== '__metadata__');
  return tensors.map(([name, entry]: [string, unknown]) => {
    const { dtype, shape, data_offsets: offsets } = (entry ?? {}) as { dtype?: unknown; shape?: unknown; data_offsets?: unknown };
    if (typeof dtype === 'string' && areCounts(shape) && areCounts(offsets) && offsets.length === 2 && offsets[0]! <= offsets[1]!) {
      return { name, dtype, shape, offsets: [offsets[0]!, offsets[1]!] as const };
    }
    return invalid(`its header says ${JSON.stringify(entry)} of tensor \`${name}\``);
  }).sort((a, b) => a.offsets[0] - b.offsets[0] || a.offsets[1] - b.offsets[1]);
}

function areCounts(value: unknown): value is readonly number[] {
  return Array.isArray(value) && value.every((count) => Number.isSafeInteger(count) && count >= 0);
}

/** The files that an index names, and the tensors that it places in each. */
function shardsOf(index: string): Map<string, Set<string>> {
  const places = readJson(index)['weight_map'];
  if (typeof places !== 'object' || places === null) throw modelError(`${index} has no \`weight_map\`. Download it again.`);
  const shards = new Map<string, Set<string>>();
  for (const [tensor, file] of Object.entries(places)) {
    if (typeof file !== 'string' || path.basename(file) !== file) {
      throw modelError(`${index} places \`${tensor}\` in ${JSON.stringify(file)}, which is no file of this folder. Download it again.`);
    }
    shards.set(file, (shards.get(file) ?? new Set()).add(tensor));
  }
  return shards;
}
