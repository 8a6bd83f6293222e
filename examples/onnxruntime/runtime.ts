// Loads onnxruntime-node, which is installed in examples/onnxruntime only (`npm run example -- onnxruntime` installs it),
// or says why it is missing. The types are the part of it that the example and its tests use.

import { existsSync } from 'node:fs';
import { createRequire } from 'node:module';
import * as path from 'node:path';

export interface OnnxTensor {
  readonly data: Float32Array | BigInt64Array;
  readonly dims: readonly number[];
}

export interface OnnxSession {
  run(feeds: Readonly<Record<string, OnnxTensor>>): Promise<Readonly<Record<string, OnnxTensor>>>;
  release(): Promise<void>;
}

export interface OnnxRuntime {
  readonly Tensor: new (type: 'float32' | 'int64', data: Float32Array | BigInt64Array, dims: readonly number[]) => OnnxTensor;
  readonly InferenceSession: {
    create(model: Uint8Array, options: { readonly executionProviders: ['cpu'] }): Promise<OnnxSession>;
  };
}

const folder = path.join(__dirname, '..', '..', 'examples', 'onnxruntime');
const binaries = path.join(folder, 'node_modules', 'onnxruntime-node', 'bin', 'napi-v6');

/** What is missing to run it; undefined where it runs. */
export function whyNoOnnxRuntime(): string | undefined {
  if (!existsSync(binaries)) return 'onnxruntime-node is not installed; `npm run example -- onnxruntime` installs it';
  if (!existsSync(path.join(binaries, process.platform, process.arch))) {
    return `onnxruntime-node has no binary for ${process.platform} on ${process.arch}`;
  }
  const { header } = process.report.getReport() as { header: { glibcVersionRuntime?: string } };
  return header.glibcVersionRuntime === undefined ? 'onnxruntime-node needs the GNU C library' : undefined;
}

/** Throws an error that says what is missing. */
export function loadOnnxRuntime(): OnnxRuntime {
  const missing = whyNoOnnxRuntime();
  if (missing !== undefined) throw new Error(`This example cannot run: ${missing}.`);
  return createRequire(path.join(folder, 'package.json'))('onnxruntime-node') as OnnxRuntime;
}
