// WeightFile: a file of a model's weights. Its tensors are the file's own bytes, mapped read-only and shared with other
// processes, or copies in shared memory of JavaScript's: where copies are asked for, where the file cannot be mapped or a
// later change of it might go unnoticed, which `copied` tells, and for a tensor whose address its elements do not divide.
// A thread may map what another has loaded. It converts nothing, and knows no format.

import { closeSync, existsSync, fstatSync, openSync, readSync, statSync } from 'node:fs';
import { constants } from 'node:os';

import { isKvError } from '../base/errors.js';
import { native, type NativeMappedFile } from '../device/native.js';
import { dtypeBytes, type Weight } from '../index.js';
import type { WeightDtype } from '../kernels/dense/dense-operands.js';
import { modelError } from './model-error.js';

/** `mapped` where that can be; `copied`: always in memory of this process. */
export type WeightPlacement = 'mapped' | 'copied';

/**
 * Why a file is copied that was to be mapped: `written-just-now`, within the last 2 to 3 seconds; `time-ahead`, its time
 * lies ahead; `open-for-writing`, somewhere on this machine; `in-memory`, its file system is, and does not tell of every
 * write; `refused`, the system does not map it.
 */
export type CopyReason = 'written-just-now' | 'time-ahead' | 'open-for-writing' | 'in-memory' | 'refused';

/** A file of weights that was to be mapped, and is copied into memory of this process. */
export interface CopiedFile {
  /** Where it was opened. */
  readonly path: string;
  /** Why it is copied. */
  readonly reason: CopyReason;
}

/** What NativeMappedFile refuses a file with, by errno. */
const reasonByErrno = new Map<number, CopyReason>([
  [constants.errno.EBUSY, 'written-just-now'], [constants.errno.ERANGE, 'time-ahead'],
  [constants.errno.ETXTBSY, 'open-for-writing'], [constants.errno.EOPNOTSUPP, 'in-memory'],
]);

/** Of a read: a thread that is told to end does so behind it. */
const mostAtOnce = 2 ** 24;

/** A mapped file on its way to another thread of the process, which maps it while its handle is open. */
export interface SentFile {
  readonly path: string;
  readonly handle: number;
  readonly bytes: number;
  /** Where it is mapped now. */
  readonly address: bigint;
  readonly writtenNs: bigint;
}

export class WeightFile {
  readonly path: string;
  readonly bytes: number;
  /** Where it was to be mapped and is not. */
  readonly copied: CopiedFile | undefined;
  #handle: number | undefined;
  readonly #mapping: NativeMappedFile | undefined;
  readonly #address: bigint;
  /** As it was before it was mapped. */
  readonly #writtenNs: bigint;

  /** Opens a file; the handle becomes its own. Throws what the system says. */
  constructor(path: string, placement: WeightPlacement, handle = openSync(path, 'r')) {
    this.path = path;
    this.#handle = handle;
    try {
      const { size, mtimeNs } = fstatSync(this.#handle, { bigint: true });
      this.bytes = Number(size);
      this.#writtenNs = mtimeNs;
      const mapping = placement === 'mapped' ? mappingOf(this.#handle, this.bytes) : undefined;
      this.#mapping = typeof mapping === 'object' ? mapping : undefined;
      this.copied = typeof mapping === 'string' ? { path, reason: mapping } : undefined;
    } catch (error) {
      this.close();
      throw error;
    }
    this.#address = this.#mapping?.address() ?? 0n;
  }

  /** Maps a file that another thread has mapped. Throws KV_MODEL_INVALID when it has changed since, or the system does not map it again. */
  static received({ path, handle, bytes, writtenNs }: SentFile): WeightFile {
    const file = new WeightFile(path, 'mapped', handle);
    const isSame = file.bytes === bytes && file.#writtenNs === writtenNs;
    file.#handle = undefined; // the other thread closes it
    if (!isSame) throw file.#changed();
    if (file.#mapping === undefined) throw modelError(`${path} cannot be mapped. Load it with \`weights: 'copied'\`.`);
    file.check();
    return file;
  }

  /** What another thread maps it by, before it is closed here; undefined where nothing is mapped. */
  sent(): SentFile | undefined {
    if (this.#mapping === undefined) return undefined;
    const { path, bytes } = this;
    return { path, handle: this.#handle!, bytes, address: this.#address, writtenNs: this.#writtenNs };
  }

  /** Where another thread's address in the same file is here; undefined where it is in another file. */
  addressOf(address: bigint, sent: SentFile): bigint | undefined {
    return address < sent.address || address >= sent.address + BigInt(sent.bytes) ? undefined : address - sent.address + this.#address;
  }

  /** Fills `into` with the bytes from `at` on. Throws KV_MODEL_INVALID where the file ends in `what`, or cannot be read. */
  read(into: Uint8Array, at: number, what: string): void {
    for (let done = 0; done < into.length;) {
      const read = attempt(this.path, () => readSync(this.#handle!, into.subarray(done, done + mostAtOnce), { position: at + done }));
      if (read === 0) throw modelError(`${this.path} ends inside ${what}: is the download complete?`);
      done += read;
    }
  }

  /** The elements of a tensor, an array or their address; `bytes` are within the file. Throws KV_MODEL_INVALID. */
  tensor(name: string, dtype: WeightDtype, at: number, bytes: number): Weight['data'] {
    if (this.#mapping !== undefined && (dtype === 'int8' || at % dtypeBytes(dtype) === 0)) return this.#address + BigInt(at);
    const memory = new SharedArrayBuffer(bytes); // commands read it that run later: it must not be detached
    const copy = new Uint8Array(memory);
    native().preferHugePages(copy); // decoding reads all of it for each token: 1.05 times as fast
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
    if (this.#mapping !== undefined && !this.#mapping.isIntact()) throw this.#changed();
  }

  /** What is read only while a model is loaded; mapped tensors stay. Idempotent. */
  close(): void {
    if (this.#handle !== undefined) closeSync(this.#handle);
    this.#handle = undefined;
  }

  #changed(): Error {
    return modelError(`${this.path} was cut short or written to while the model was in use, so what was computed last is dropped. Load the model ` +
      "again. To put another file in its place, rename that one over it; `weights: 'copied'` loads files that must be written to.");
  }
}

/** Opens a file of a model. Throws KV_MODEL_INVALID when it is not there, or may not be read, with `hint`. */
export function openWeightFile(path: string, placement: WeightPlacement, hint: string): WeightFile {
  if (!existsSync(path)) throw modelError(`${path} is not there. ${hint}`);
  if (!statSync(path).isFile()) throw modelError(`${path} is no file. ${hint}`);
  return attempt(path, () => new WeightFile(path, placement));
}

/** What the system says becomes a KV_MODEL_INVALID. */
function attempt<T>(path: string, work: () => T): T {
  try {
    return work();
  } catch (cause) {
    throw modelError(`${path} cannot be read (${(cause as Error).message}).`, { cause });
  }
}

/** The file mapped, or why it is copied. */
function mappingOf(handle: number, bytes: number): NativeMappedFile | CopyReason {
  try {
    return new (native().NativeMappedFile)(handle, bytes);
  } catch (error) {
    return isKvError(error, 'KV_DRIVER_CALL_FAILED') ? reasonByErrno.get(error.details.status) ?? 'refused' : 'refused';
  }
}
