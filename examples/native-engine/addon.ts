// Compiles engine.cc, by nvcc where it is to compute on a GPU, and loads it. An engine of your own is built as usual, with
// node-gyp or cmake-js: what it needs of this package is the folder include/.

import { spawnSync } from 'node:child_process';
import { existsSync, mkdirSync, renameSync, statSync } from 'node:fs';
import { createRequire } from 'node:module';
import * as path from 'node:path';

export interface NativeEngine {
  /** `tensors` and `sequences` as the cache writes them; rows [row, head, dim], packed one sequence after the other. */
  attend(
    tensors: BigInt64Array, layer: number, sequences: Int32Array, count: number, queryHeads: number,
    keys: Float32Array, values: Float32Array, queries: Float32Array, output: Float32Array, stream: bigint,
  ): void;
}

const root = path.resolve(__dirname, '..', '..');
const source = path.join(root, 'examples', 'native-engine', 'engine.cc');
const header = path.join(root, 'include', 'virtual_kv.h');

/** Where Node.js was installed with its headers, or the package that has them. */
function headersOfNode(): string {
  const own = path.resolve(process.execPath, '..', '..', 'include', 'node');
  return existsSync(path.join(own, 'node_api.h')) ? own
    : path.join(path.dirname(require.resolve('node-api-headers/package.json')), 'include');
}

export function loadEngine(onGpu: boolean): NativeEngine {
  const addon = path.join(__dirname, onGpu ? 'engine-cuda.node' : 'engine.node');
  const isFresh = existsSync(addon) && [source, header].every((file) => statSync(file).mtimeMs < statSync(addon).mtimeMs);
  if (!isFresh) {
    const made = `${addon}.${process.pid}`;
    const shared = ['-std=c++20', '-O2', '-shared', `-I${path.dirname(header)}`, `-I${headersOfNode()}`, '-o', made];
    const [compiler, ...flags] = onGpu ? ['nvcc', '-x', 'cu', '-Xcompiler', '-fPIC'] : [process.env['CXX'] ?? 'c++', '-fPIC', '-pthread'];
    mkdirSync(__dirname, { recursive: true });
    const { status, stderr, error } = spawnSync(compiler, [...flags, ...shared, source], { encoding: 'utf8' });
    if (status !== 0) throw new Error(`${compiler} does not compile engine.cc:\n${error?.message ?? stderr}`);
    renameSync(made, addon);
  }
  return createRequire(__filename)(addon) as NativeEngine;
}
