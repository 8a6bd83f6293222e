// graphDigest: a name for a graph and its weights that another file does not share: for tiers, whose text is of use
// only to the weights that computed it. Of large tensors it reads the ends, not all: weights that were trained on
// differ there, a download that was damaged in the middle need not. Where weights lie does not count.

import { createHash } from 'node:crypto';
import { closeSync, fstatSync, openSync, readSync, statSync } from 'node:fs';
import * as path from 'node:path';

import type { OnnxGraph, OnnxTensor } from './graph.js';
import { fieldsOf, ProtobufError, textOf } from './protobuf.js';

/** Bytes at each end of a tensor. */
const endBytes = 1024;

/**
 * Of nodes and tensors. Weights in files beside the graph, or in its own, are in `folder`; what cannot be read there
 * does not count.
 */
export function graphDigest({ nodes, tensors }: OnnxGraph, folder: string): string {
  const hash = createHash('sha256').update('virtual-kv onnx 2');
  const files = new Map<string, number | undefined>();
  const add = (length: number, ends: (at: number, bytes: number) => Uint8Array): void => {
    hash.update(`${length}`).update(ends(0, Math.min(endBytes, length)));
    if (length > endBytes) hash.update(ends(length - endBytes, endBytes));
  };
  try {
    for (const { raw } of nodes) hash.update(raw);
    for (const tensor of tensors.values()) {
      const { parts, data, outside } = contentOf(tensor);
      for (const part of parts) hash.update(part);
      if (data !== undefined) add(data.length, (at, bytes) => data.subarray(at, at + bytes));
      if (outside === undefined) continue;
      const file = path.join(folder, outside.location);
      if (!files.has(file)) files.set(file, tryOpen(file));
      const opened = files.get(file);
      if (opened === undefined) continue;
      add(outside.length ?? Math.max(0, fstatSync(opened).size - outside.offset), (at, bytes) => {
        const end = new Uint8Array(bytes);
        return end.subarray(0, readSync(opened, end, 0, bytes, outside.offset + at));
      });
    }
    return hash.digest('hex');
  } finally {
    for (const file of files.values()) if (file !== undefined) closeSync(file);
  }
}

interface Outside {
  readonly location: string;
  readonly offset: number;
  /** Undefined: to the file's end. */
  readonly length: number | undefined;
}

interface TensorContent {
  /** All but its bytes and where they lie. */
  readonly parts: readonly Uint8Array[];
  readonly data: Uint8Array | undefined;
  /** Of bytes in a file. */
  readonly outside: Outside | undefined;
}

function contentOf({ raw }: OnnxTensor): TensorContent {
  const entries = new Map<string, string>();
  const parts: Uint8Array[] = [];
  let data: Uint8Array | undefined;
  for (const field of fieldsOf(raw)) {
    if (field.number === 9) data = field.bytes;
    else if (field.number === 13) addEntry(field.bytes, entries);
    else if (field.number !== 14) parts.push(field.raw);
  }
  const location = entries.get('location');
  const [offset, length] = ['offset', 'length'].map((name) => {
    const value = Number(entries.get(name));
    return Number.isSafeInteger(value) && value >= 0 ? value : undefined;
  });
  return { parts, data, outside: location === undefined ? undefined : { location, offset: offset ?? 0, length } };
}

function addEntry(message: Uint8Array, entries: Map<string, string>): void {
  try {
    const [key, value] = [1, 2].map((part) => [...fieldsOf(message)].find(({ number }) => number === part)?.bytes);
    if (key !== undefined && value !== undefined) entries.set(textOf(key), textOf(value));
  } catch (error) {
    if (!(error instanceof ProtobufError)) throw error; // onnxruntime says so
  }
}

function tryOpen(file: string): number | undefined {
  try {
    return statSync(file).isFile() ? openSync(file, 'r') : undefined;
  } catch {
    // onnxruntime says so
    return undefined;
  }
}
