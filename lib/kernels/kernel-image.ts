// The CUDA kernels as the driver loads them: the fatbin that nvcc made when the package was installed, or else the PTX that
// comes with the package, which the driver compiles itself. Read once per process and kept.

import { existsSync, readFileSync } from 'node:fs';
import * as path from 'node:path';
import { brotliDecompressSync } from 'node:zlib';

const packageRoot = path.resolve(__dirname, '..', '..');
let image: Uint8Array | undefined;

/** PTX, ended by a zero, or a fatbin. `VKV_KERNELS` names another file: a fatbin, a cubin or PTX. */
export function kernelImage(): Uint8Array {
  image ??= read();
  return image;
}

function read(): Uint8Array {
  const override = process.env['VKV_KERNELS'];
  if (override !== undefined) return ended(readFileSync(override));
  const fatbin = path.join(packageRoot, 'build', 'Release', 'kernels.fatbin');
  if (existsSync(fatbin)) return readFileSync(fatbin);
  return ended(brotliDecompressSync(readFileSync(path.join(packageRoot, 'kernels', 'cuda', 'kernels.ptx.br'))));
}

function ended(text: Uint8Array): Uint8Array {
  const bytes = new Uint8Array(text.length + 1);
  bytes.set(text);
  return bytes;
}
