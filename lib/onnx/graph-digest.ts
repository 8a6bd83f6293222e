// graphDigest: a name for a graph and its weights that another file does not share: for tiers, whose text is of use
// only to the weights that computed it. Of large tensors it reads the ends, not all: weights that were trained on
// differ there, a download that was damaged in the middle need not.

import { createHash } from 'node:crypto';
import { closeSync, fstatSync, openSync, readSync } from 'node:fs';
import * as path from 'node:path';

import type { OnnxGraph, OnnxTensor } from './graph.js';
import { fieldsOf, ProtobufError, textOf } from './protobuf.js';

/** Bytes at each end of a tensor. */
const endBytes = 1024;

/**
 * Of nodes and tensors. Weights in files beside the graph are in `folder`; what cannot be read there does not count.
 */
export function graphDigest({ nodes, tensors }: OnnxGraph, folder: string): string {
  const hash = createHash('sha256').update('virtual-kv onnx 1');
  const files = new Map<string, number | undefined>();
  try {
    for (const { raw } of nodes) hash.update(raw);
    for (const tensor of tensors.values()) {
      const { raw } = tensor;
      hash.update(raw.length <= 2 * endBytes ? raw : raw.subarray(0, endBytes)).update(raw.subarray(-endBytes));
      const outside = outsideOf(tensor);
      if (outside === undefined) continue;
      const file = path.join(folder, outside.location);
      if (!files.has(file)) files.set(file, tryOpen(file));
      const opened = files.get(file);
      if (opened === undefined) continue;
      const end = outside.offset + (outside.length ?? fstatSync(opened).size - outside.offset);
      for (const at of [outside.offset, Math.max(outside.offset, end - endBytes)]) {
        const bytes = new Uint8Array(Math.max(0, Math.min(endBytes, end - at)));
        hash.update(bytes.subarray(0, readSync(opened, bytes, 0, bytes.length, at)));
      }
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

/** Where a tensor lies that is in a file of its own. */
function outsideOf({ raw }: OnnxTensor): Outside | undefined {
  const entries = new Map<string, string>();
  try {
    for (const { number, bytes } of fieldsOf(raw)) {
      if (number !== 13) continue;
      const [key, value] = [1, 2].map((part) => [...fieldsOf(bytes)].find((field) => field.number === part)?.bytes);
      if (key !== undefined && value !== undefined) entries.set(textOf(key), textOf(value));
    }
  } catch (error) {
    if (!(error instanceof ProtobufError)) throw error;
  }
  const location = entries.get('location');
  const [offset, length] = ['offset', 'length'].map((name) => {
    const value = Number(entries.get(name));
    return Number.isSafeInteger(value) && value >= 0 ? value : undefined;
  });
  return location === undefined ? undefined : { location, offset: offset ?? 0, length };
}

function tryOpen(file: string): number | undefined {
  try {
    return openSync(file, 'r');
  } catch {
    // onnxruntime says so
    return undefined;
  }
}
