// The PTX of CUDA kernels that comes with the package. Each file is read at its first use, once per process.

import { readFileSync } from 'node:fs';
import path = require('node:path');
import { brotliDecompressSync } from 'node:zlib';

import { packageFolder } from '../base/package.js';

const texts = new Map<string, Uint8Array>();

/**
 * Returns the PTX `kernels/cuda/NAME.ptx.br`, ended by a zero as drivers want it. Throws what reading the file throws.
 */
export function packagedPtx(name: string): Uint8Array {
  const known = texts.get(name);
  if (known !== undefined) return known;
  const ptx =
    endedByZero(brotliDecompressSync(readFileSync(path.join(packageFolder, 'kernels', 'cuda', `${name}.ptx.br`))));
  texts.set(name, ptx);
  return ptx;
}

export function endedByZero(text: Uint8Array): Uint8Array {
  const bytes = new Uint8Array(text.length + 1);
  bytes.set(text);
  return bytes;
}
