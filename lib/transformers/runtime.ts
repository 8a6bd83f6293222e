// Finds the onnxruntime-node that transformers.js computes with: beside the program, or beside this package. The types
// are the part of it that is used.

import { readFileSync } from 'node:fs';
import { createRequire } from 'node:module';
import * as path from 'node:path';

import { createError } from '../base/errors.js';
import { libraryOf } from '../onnx/library.js';

const packageName = '@huggingface/transformers';
/** Version 3 does not give `num_logits_to_keep` to a session, without which every token's logits are computed. */
const leastVersion = 4;

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
 * Loads it. `from`: a file of the program, or a folder. Throws KV_DEPENDENCY_MISSING, also where transformers.js is
 * older than 4, and KV_ONNX_UNAVAILABLE where it has no library for this machine.
 */
export function findRuntime(from: string | undefined): FoundRuntime {
  const places =
    from === undefined
      ? [process.argv[1], path.join(process.cwd(), 'index.js'), __filename]
      : [path.join(from, 'index.js'), from];
  let dependency = packageName;
  for (const place of places) {
    const transformers =
      place === undefined ? undefined : resolveFrom(path.resolve(place), packageName);
    if (transformers !== undefined && versionOf(transformers) < leastVersion) {
      dependency = `${packageName}@${leastVersion}`;
      continue;
    }
    const main = transformers && resolveFrom(transformers, 'onnxruntime-node');
    if (main === undefined) continue;
    const runtime = createRequire(main)(main) as Runtime;
    return { runtime, library: libraryOf(path.dirname(path.dirname(main))) };
  }
  throw createError('KV_DEPENDENCY_MISSING', {
    dependency,
    purpose: 'virtual-kv/transformers',
  });
}

/** The first number of the version of a package, of which a file in its `dist` is given. */
function versionOf(file: string): number {
  const { version } = JSON.parse(readFileSync(path.join(path.dirname(file), '..', 'package.json'), 'utf8')) as {
    readonly version: string;
  };
  return Number.parseInt(version, 10);
}

function resolveFrom(place: string, name: string): string | undefined {
  try {
    return createRequire(place).resolve(name);
  } catch {
    // it is not there
    return undefined;
  }
}
