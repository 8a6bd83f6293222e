// Finds the onnxruntime-node that transformers.js computes with: beside the program, or beside this package. The types
// are the part of it that is used.

import { createRequire } from 'node:module';
import * as path from 'node:path';

import { createError } from '../base/errors.js';
import { libraryOf } from '../onnx/library.js';

/** A tensor of onnxruntime's. */
export interface OrtTensor {
  readonly type: string;
  readonly dims: readonly number[];
  /** Of one in the CPU's memory. */
  readonly data: ArrayLike<number | bigint>;
}

interface GpuBufferOptions {
  readonly dataType: string;
  readonly dims: readonly number[];
  readonly dispose: () => void;
}

export type CreateSession = (model: unknown, ...rest: readonly unknown[]) => Promise<unknown>;

export interface Runtime {
  readonly InferenceSession: { create: CreateSession };
  readonly Tensor: {
    new (type: string, data: Float32Array, dims: readonly number[]): OrtTensor;
    fromGpuBuffer(buffer: object, options: GpuBufferOptions): OrtTensor;
  };
}

export interface FoundRuntime {
  readonly runtime: Runtime;
  /** Path of its libonnxruntime. */
  readonly library: string;
}

/**
 * Loads it. `from`: a file of the program, or a folder. Throws KV_DEPENDENCY_MISSING, and KV_ONNX_UNAVAILABLE where it
 * has no library for this machine.
 */
export function findRuntime(from: string | undefined): FoundRuntime {
  const places =
    from === undefined
      ? [process.argv[1], path.join(process.cwd(), 'index.js'), __filename]
      : [path.join(from, 'index.js'), from];
  for (const place of places) {
    const transformers =
      place === undefined ? undefined : resolveFrom(path.resolve(place), '@huggingface/transformers');
    const main = transformers && resolveFrom(transformers, 'onnxruntime-node');
    if (main === undefined) continue;
    const runtime = createRequire(main)(main) as Runtime;
    return { runtime, library: libraryOf(path.dirname(path.dirname(main))) };
  }
  throw createError('KV_DEPENDENCY_MISSING', {
    dependency: '@huggingface/transformers',
    purpose: 'virtual-kv/transformers',
  });
}

function resolveFrom(place: string, name: string): string | undefined {
  try {
    return createRequire(place).resolve(name);
  } catch {
    // it is not there
    return undefined;
  }
}
