// The images of the CUDA kernels, best first: the fatbin that `vkv build-kernels` made, and the PTX of the
// package, which the driver compiles: one for GPUs since Ampere, and one for those since Turing. A driver may
// refuse one and take the next. Each is read from disk at its first use, once per process.

import { existsSync, readFileSync } from 'node:fs';
import path = require('node:path');

import { packageFolder } from '../base/package.js';
import { endedByZero, packagedPtx } from '../device/kernel-files.js';

export interface KernelImage {
  /** Name of its module. */
  readonly name: string;
  /** PTX, ended by a zero, or a fatbin. */
  read(): Uint8Array;
}

const contents = new Map<string, Uint8Array>();

/**
 * Returns the images for a compute capability (75 is Turing), in the order to try them. `VKV_KERNELS` names a file to
 * use instead: a fatbin, a cubin or PTX.
 */
export function kernelImages(computeCapability: number): readonly KernelImage[] {
  const override = process.env['VKV_KERNELS'];
  if (override !== undefined) return [image(override, () => endedByZero(readFileSync(override)))];
  const fatbin = path.join(packageFolder, 'build', 'Release', 'kernels.fatbin');
  return [
    ...(existsSync(fatbin) ? [image('kernels.fatbin', () => readFileSync(fatbin))] : []),
    ...(computeCapability >= 80 ? [ptx('kernels-sm80')] : []),
    ptx('kernels'),
  ];
}

function ptx(name: string): KernelImage {
  return { name, read: () => packagedPtx(name) };
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
