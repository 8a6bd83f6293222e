// ModelFile: an ONNX file without the bytes of its weights. Large tensors stay in the file, where onnxruntime maps them:
// what is read names their places, as for tensors in files of their own, so that a model of gigabytes takes kilobytes.

import { open, type FileHandle } from 'node:fs/promises';
import * as path from 'node:path';

import { modelError } from '../llama/model-error.js';
import { noModel } from './graph.js';
import { bytesField, cutOff, fieldAt, fieldParts, integerField, joinBytes, mostKeyBytes, ProtobufError, textField } from './protobuf.js';

/** Bytes of a tensor from which on it stays in the file. */
const largeBytes = 4_096;

/** Numbers of fields: of a model its graph, of that a tensor, of that its bytes, and where they are. */
const [graphField, tensorField, dataField, outsideField, placeField] = [7, 5, 9, 13, 14];

/** The model of a file, as bytes. Rejects with KV_MODEL_INVALID. */
export async function readModelFile(file: string): Promise<Uint8Array> {
  try {
    const handle = await open(file);
    try {
      return await readModel(new Source(handle), (await handle.stat()).size, path.basename(file));
    } finally {
      await handle.close();
    }
  } catch (error) {
    if (error instanceof ProtobufError) throw noModel(file, error);
    throw modelError(`${file} cannot be read. Give the path of an ONNX file.`, { cause: error });
  }
}

async function readModel(source: Source, size: number, location: string): Promise<Uint8Array> {
  const readTensor = async (tensor: Field): Promise<Parts | undefined> => {
    if (tensor.end - tensor.start < largeBytes) return undefined;
    const own: Field[] = [];
    const others = await source.rewritten(tensor, (field) => {
      if (field.number === dataField) own.push(field);
      return [dataField, outsideField, placeField].includes(field.number) ? [] : undefined;
    });
    const data = own.at(-1);
    if (data === undefined || data.end - data.start < largeBytes) return undefined;
    const entry = (key: string, value: string): Uint8Array => bytesField(outsideField, textField(1, key), textField(2, value));
    return fieldParts(tensorField, [
      ...others, entry('location', location), entry('offset', String(data.start)), entry('length', String(data.end - data.start)), integerField(placeField, 1),
    ]);
  };
  const readGraph = async (graph: Field): Promise<Parts> =>
    fieldParts(graphField, await source.rewritten(graph, (field) => (field.number === tensorField ? readTensor(field) : undefined)));
  return joinBytes(await source.rewritten({ start: 0, end: size }, (field) => (field.number === graphField ? readGraph(field) : undefined)));
}

type Parts = readonly Uint8Array[];

/** Where the content of a message is in the file. */
interface Message {
  readonly start: number;
  readonly end: number;
}

interface Field extends Message {
  readonly number: number;
}

/** Bytes of the file that are read together for keys of fields. */
const windowBytes = 4_096;

class Source {
  readonly #handle: FileHandle;
  /** Bytes of the file, from `#start` on. */
  #window: Uint8Array = new Uint8Array(0);
  #start = 0;

  constructor(handle: FileHandle) {
    this.#handle = handle;
  }

  /** A message with other fields in the place of those for which `rewrite` gives some. What is kept is read together. */
  async rewritten({ start, end }: Message, rewrite: (field: Field) => Parts | undefined | Promise<Parts | undefined>): Promise<Parts> {
    const parts: Uint8Array[] = [];
    let kept = start;
    for (let at = start; at < end;) {
      const field = await this.#field(at, end);
      const others = await rewrite(field);
      if (others !== undefined) {
        parts.push(await this.#bytes(kept, at), ...others);
        kept = field.end;
      }
      at = field.end;
    }
    return [...parts, await this.#bytes(kept, end)];
  }

  async #field(at: number, end: number): Promise<Field> {
    const keyEnd = Math.min(end, at + mostKeyBytes);
    if (at < this.#start || keyEnd > this.#start + this.#window.length) {
      this.#window = await this.#bytes(at, Math.min(end, at + windowBytes));
      this.#start = at;
    }
    const field = fieldAt(this.#window.subarray(at - this.#start, keyEnd - this.#start), 0);
    if (at + field.end > end) throw cutOff(field.number);
    return { number: field.number, start: at + field.start, end: at + field.end };
  }

  async #bytes(start: number, end: number): Promise<Uint8Array> {
    const bytes = new Uint8Array(end - start);
    for (let filled = 0; filled < bytes.length;) {
      const { bytesRead } = await this.#handle.read(bytes, filled, bytes.length - filled, start + filled);
      if (bytesRead === 0) throw new ProtobufError('it became shorter while it was read');
      filled += bytesRead;
    }
    return bytes;
  }
}
