// Safetensors: the tensors of a model's folder, in one file or several. It reads headers when opened and a tensor's bytes when
// asked; nothing is converted. https://github.com/huggingface/safetensors#format: 8 bytes header length, JSON, bytes.

import { closeSync, existsSync, fstatSync, openSync, readSync } from 'node:fs';
import * as path from 'node:path';

import type { RowDtype, Weight } from 'virtual-kv';

import { readJson } from './config.js';
import { ModelError } from './model-error.js';

interface Entry {
  readonly file: string;
  readonly dtype: RowDtype;
  readonly shape: readonly number[];
  /** Where its bytes begin in the file. */
  readonly offset: number;
  readonly bytes: number;
}

const dtypes: Readonly<Record<string, RowDtype>> = { F32: 'float32', F16: 'float16', BF16: 'bfloat16' };
const bytesOf: Readonly<Record<RowDtype, number>> = { float32: 4, float16: 2, bfloat16: 2 };
const mostAtOnce = 2 ** 30; // a read cannot have more than 2³¹ − 1 bytes

export class Safetensors {
  readonly #folder: string;
  readonly #entries = new Map<string, Entry>();

  /** Opens `model.safetensors`, or the files of `model.safetensors.index.json`. Throws ModelError. */
  constructor(folder: string) {
    this.#folder = folder;
    const index = path.join(folder, 'model.safetensors.index.json');
    if (!existsSync(index)) {
      this.#readHeader(path.join(folder, 'model.safetensors'), () => true);
      return;
    }
    const places = Object.entries((readJson(index)['weight_map'] ?? {}) as Record<string, string>);
    for (const file of new Set(places.map(([, name]) => name))) {
      const wanted = new Set(places.filter(([, name]) => name === file).map(([tensor]) => tensor));
      this.#readHeader(path.join(folder, file), (name) => wanted.delete(name));
      const [missing] = wanted;
      if (missing !== undefined) throw new ModelError(`${path.join(folder, file)} has no tensor \`${missing}\`, which ${index} places there.`);
    }
  }

  get names(): readonly string[] {
    return [...this.#entries.keys()];
  }

  /** A matrix `[outputs, inputs]`; a vector has one output. Throws ModelError when it is missing or has another shape. */
  read(name: string, shape: readonly number[]): Weight {
    const entry = this.#entries.get(name);
    if (entry === undefined) throw new ModelError(`${this.#folder} has no tensor \`${name}\`: is this a Llama-like model?`);
    if (entry.shape.join() !== shape.join()) {
      throw new ModelError(`${entry.file}: tensor \`${name}\` is [${entry.shape.join(', ')}], but config.json makes it [${shape.join(', ')}].`);
    }
    const bytes = new ArrayBuffer(entry.bytes);
    const handle = openSync(entry.file, 'r');
    try {
      for (let at = 0; at < entry.bytes;) {
        const read = readSync(handle, new Uint8Array(bytes, at, Math.min(entry.bytes - at, mostAtOnce)), { position: entry.offset + at });
        if (read === 0) throw new ModelError(`${entry.file} ends inside tensor \`${name}\`: is the download complete?`);
        at += read;
      }
    } finally {
      closeSync(handle);
    }
    const data = entry.dtype === 'float32' ? new Float32Array(bytes) : new Uint16Array(bytes);
    return { data, dtype: entry.dtype, outputs: shape.length === 2 ? shape[0]! : 1, inputs: shape.at(-1)! };
  }

  #readHeader(file: string, isWanted: (name: string) => boolean): void {
    const invalid = (what: string): never => {
      throw new ModelError(`${file} is no safetensors file: ${what}.`);
    };
    if (!existsSync(file)) throw new ModelError(`${file} is not there. Only safetensors are read; convert other weights first.`);
    const handle = openSync(file, 'r');
    try {
      const { size } = fstatSync(handle);
      const prefix = new DataView(new ArrayBuffer(8));
      if (readSync(handle, prefix) < 8) invalid(`it has ${size} bytes`);
      const length = Number(prefix.getBigUint64(0, true));
      if (length > size - 8) invalid(`its header has ${length} bytes, the file ${size}`);
      const text = Buffer.alloc(length);
      readSync(handle, text, { position: 8 });
      for (const [name, given] of Object.entries(parseHeader(text, invalid))) {
        if (name === '__metadata__' || !isWanted(name)) continue;
        const [begin, end] = given.data_offsets;
        const dtype = dtypes[given.dtype];
        if (dtype === undefined) {
          throw new ModelError(`${file}: tensor \`${name}\` is ${given.dtype}. Float32, float16 and bfloat16 are supported.`);
        }
        const bytes = given.shape.reduce((product, extent) => product * extent, bytesOf[dtype]);
        if (bytes !== end - begin || begin < 0 || 8 + length + end > size) {
          invalid(`tensor \`${name}\` should have ${bytes} bytes at ${begin} … ${end} of ${size - 8 - length}`);
        }
        this.#entries.set(name, { file, dtype, shape: given.shape, offset: 8 + length + begin, bytes });
      }
    } finally {
      closeSync(handle);
    }
  }
}

interface HeaderEntry {
  readonly dtype: string;
  readonly shape: readonly number[];
  readonly data_offsets: readonly [number, number];
}

function parseHeader(text: Buffer, invalid: (what: string) => never): Record<string, HeaderEntry> {
  try {
    return JSON.parse(text.toString('utf8')) as Record<string, HeaderEntry>;
  } catch (error) {
    return invalid(`its header is not JSON (${(error as Error).message})`);
  }
}
