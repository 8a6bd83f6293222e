// WeightFile: a file of a model's weights. Its tensors are the file's own bytes, mapped read-only and shared with other processes, or
// copies in shared memory of JavaScript's: where copies are asked for, where the system cannot map the file or it was written to
// just now, and for a tensor whose address its elements do not divide. It converts nothing, and knows no format.

import { closeSync, existsSync, fstatSync, openSync, readSync, statSync } from 'node:fs';

import { native, type NativeMappedFile } from '../device/native.js';
import { dtypeBytes, type Weight } from '../index.js';
import type { WeightDtype } from '../kernels/dense/dense-operands.js';
import { modelError } from './model-error.js';

/** `mapped` where that can be; `copied`: always in memory of this process. */
export type WeightPlacement = 'mapped' | 'copied';

const mostAtOnce = 2 ** 30; // a read cannot have more than 2³¹ − 1 bytes

export class WeightFile {
  readonly path: string;
  readonly bytes: number;
  #handle: number | undefined;
  readonly #mapping: NativeMappedFile | undefined;
  readonly #address: bigint;

  /** Opens a file that is there; throws what the system says otherwise. */
  constructor(path: string, placement: WeightPlacement) {
    this.path = path;
    this.#handle = openSync(path, 'r');
    try {
      this.bytes = fstatSync(this.#handle).size;
      this.#mapping = placement === 'mapped' ? mappingOf(this.#handle, this.bytes) : undefined;
    } catch (error) {
      this.close();
      throw error;
    }
    this.#address = this.#mapping?.address() ?? 0n;
  }

  /** Fills `into` with the bytes from `at` on. Throws KV_MODEL_INVALID where the file ends in `what`. */
  read(into: Uint8Array, at: number, what: string): void {
    for (let done = 0; done < into.length;) {
      const read = readSync(this.#handle!, into.subarray(done, done + mostAtOnce), { position: at + done });
      if (read === 0) throw modelError(`${this.path} ends inside ${what}: is the download complete?`);
      done += read;
    }
  }

  /** The elements of a tensor, an array or their address; `bytes` are within the file. Throws KV_MODEL_INVALID. */
  tensor(name: string, dtype: WeightDtype, at: number, bytes: number): Weight['data'] {
    if (this.#mapping !== undefined && (dtype === 'int8' || at % dtypeBytes(dtype) === 0)) return this.#address + BigInt(at);
    const memory = new SharedArrayBuffer(bytes); // commands read it that run later: it must not be detached
    const copy = new Uint8Array(memory);
    this.read(copy, at, `tensor \`${name}\``);
    if (dtype === 'int8') return copy;
    return dtype === 'float32' ? new Float32Array(memory) : new Uint16Array(memory);
  }

  /** Copies from an address that `tensor` returned; false where it is not of this file. Without `check` the bytes may be zeros. */
  copy(into: Uint8Array, address: bigint): boolean {
    if (this.#mapping === undefined || address < this.#address || address >= this.#address + BigInt(this.bytes)) return false;
    this.#mapping.read(into, Number(address - this.#address));
    return true;
  }

  /** Behind the last read of mapped tensors, before its result is believed. Throws KV_MODEL_INVALID when the file has changed. */
  check(): void {
    if (this.#mapping === undefined || this.#mapping.isIntact()) return;
    throw modelError(`${this.path} was cut short or written to while the model was in use, so what was computed last is dropped. Load the model ` +
      "again. To put another file in its place, rename that one over it; `weights: 'copied'` loads files that must be written to.");
  }

  /** What is read only while a model is loaded; mapped tensors stay. Idempotent. */
  close(): void {
    if (this.#handle !== undefined) closeSync(this.#handle);
    this.#handle = undefined;
  }
}

/** Opens a file of a model. Throws KV_MODEL_INVALID when it is not there, with `hint`. */
export function openWeightFile(path: string, placement: WeightPlacement, hint: string): WeightFile {
  if (!existsSync(path)) throw modelError(`${path} is not there. ${hint}`);
  if (!statSync(path).isFile()) throw modelError(`${path} is no file. ${hint}`);
  return new WeightFile(path, placement);
}

/** Undefined where the system maps no such file, or it was written to a moment ago. */
function mappingOf(handle: number, bytes: number): NativeMappedFile | undefined {
  try {
    return new (native().NativeMappedFile)(handle, bytes);
  } catch {
    return undefined; // it is copied
  }
}
