// The CUDA kernels as the driver loads them: the fatbin that nvcc made when the package was installed, or else the PTX that
// comes with the package, which the driver compiles itself: one for GPUs since Ampere, and one for Turing. Read once per process
// and kept.

import { existsSync, readFileSync } from 'node:fs';
import * as path from 'node:path';
import { brotliDecompressSync } from 'node:zlib';

const packageRoot = path.resolve(__dirname, '..', '..');
const images = new Map<string, Uint8Array>();

/**
 * PTX, ended by a zero, or a fatbin, for a GPU of a compute capability (75 is Turing; unsaid, for any GPU since).
 * `VKV_KERNELS` names another file: a fatbin, a cubin or PTX.
 */
export function kernelImage(computeCapability = 75): Uint8Array {
  const name = computeCapability >= 80 ? 'kernels-sm80' : 'kernels';
  const image = images.get(name) ?? read(name);
  images.set(name, image);
  return image;
}

function read(name: string): Uint8Array {
  const override = process.env['VKV_KERNELS'];
  if (override !== undefined) return ended(readFileSync(override));
  const fatbin = path.join(packageRoot, 'build', 'Release', 'kernels.fatbin');
  if (existsSync(fatbin)) return readFileSync(fatbin);
  return ended(brotliDecompressSync(readFileSync(path.join(packageRoot, 'kernels', 'cuda', `${name}.ptx.br`))));
}

function ended(text: Uint8Array): Uint8Array {
  const bytes = new Uint8Array(text.length + 1);
  bytes.set(text);
  return bytes;
}
