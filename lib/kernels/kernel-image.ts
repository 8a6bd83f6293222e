// The images of the CUDA kernels, best first: the fatbin that nvcc made when the package was installed, and the PTX that comes
// with the package, which the driver compiles itself: one for GPUs since Ampere, and one for those since Turing. A driver may
// refuse one and take the next. Each is read when it is wanted, once per process, and kept.

import { existsSync, readFileSync } from 'node:fs';
import * as path from 'node:path';
import { brotliDecompressSync } from 'node:zlib';

export interface KernelImage {
  /** Of the module that it becomes. */
  readonly name: string;
  /** PTX, ended by a zero, or a fatbin. */
  read(): Uint8Array;
}

const packageRoot = path.resolve(__dirname, '..', '..');
const contents = new Map<string, Uint8Array>();

/**
 * For a GPU of a compute capability (75 is Turing), the one to try first first. `VKV_KERNELS` names a file to use instead of
 * all: a fatbin, a cubin or PTX.
 */
export function kernelImages(computeCapability: number): readonly KernelImage[] {
  const override = process.env['VKV_KERNELS'];
  if (override !== undefined) return [image(override, () => ended(readFileSync(override)))];
  const fatbin = path.join(packageRoot, 'build', 'Release', 'kernels.fatbin');
  return [
    ...(existsSync(fatbin) ? [image('kernels.fatbin', () => readFileSync(fatbin))] : []),
    ...(computeCapability >= 80 ? [ptx('kernels-sm80')] : []),
    ptx('kernels'),
  ];
}

function ptx(name: string): KernelImage {
  const file = path.join(packageRoot, 'kernels', 'cuda', `${name}.ptx.br`);
  return image(name, () => ended(brotliDecompressSync(readFileSync(file))));
}

function image(name: string, open: () => Uint8Array): KernelImage {
  return {
    name,
    read: () => {
      const bytes = contents.get(name) ?? open();
      contents.set(name, bytes);
      return bytes;
    },
  };
}

function ended(text: Uint8Array): Uint8Array {
  const bytes = new Uint8Array(text.length + 1);
  bytes.set(text);
  return bytes;
}
