// Finds the libonnxruntime that the user's own onnxruntime-node has: beside this package, or beside the program.

import { existsSync, readdirSync } from 'node:fs';
import { createRequire } from 'node:module';
import * as path from 'node:path';

import { createError } from '../base/errors.js';

const packageName = 'onnxruntime-node';

/** The path of the library. Throws KV_ONNX_UNAVAILABLE where there is none. */
export function findLibrary(): string {
  const folder = packageFolder();
  if (folder === undefined) {
    throw createError('KV_ONNX_UNAVAILABLE', { problem: `the package ${packageName} is found neither from this package nor from ${process.cwd()}` });
  }
  return libraryOf(folder);
}

/** The library in the folder of an onnxruntime-node. Throws KV_ONNX_UNAVAILABLE where it has none for this machine. */
export function libraryOf(folder: string): string {
  const binaries = path.join(folder, 'bin');
  const kinds = existsSync(binaries) ? readdirSync(binaries) : [];
  for (const kind of kinds) { // napi-v3, napi-v6
    const place = path.join(binaries, kind, process.platform, process.arch);
    const file = existsSync(place) ? readdirSync(place).find((name) => /^libonnxruntime\.so(\.\d+)*$/.test(name)) : undefined;
    if (file !== undefined) return path.join(place, file);
  }
  throw createError('KV_ONNX_UNAVAILABLE', { problem: `${folder} has no libonnxruntime.so for ${process.platform} on ${process.arch}` });
}

function packageFolder(): string | undefined {
  for (const from of [__filename, path.join(process.cwd(), 'index.js')]) {
    try {
      const main = createRequire(from).resolve(packageName);
      const end = main.lastIndexOf(`${path.sep}${packageName}${path.sep}`);
      if (end >= 0) return main.slice(0, end + packageName.length + 1);
    } catch { /* not from there */ }
  }
  return undefined;
}
