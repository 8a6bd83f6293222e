// `vkv build-kernels`: compiles the CUDA kernels for the GPUs of this machine, by scripts/build-kernels.cjs, which says how it goes. Exit
// code 1 where there is no nvcc, or where it fails.

import { spawn } from 'node:child_process';
import { once } from 'node:events';
import * as path from 'node:path';

import { Command } from 'commander';

import { packageFolder } from '../base/package.js';

export function buildKernelsCommand(): Command {
  return new Command('build-kernels')
    .description("compile the CUDA kernels for this machine's GPUs with nvcc; otherwise the GPU's driver compiles them at first use")
    .action(async () => {
      const script = path.join(packageFolder, 'scripts', 'build-kernels.cjs');
      const [code] = await once(spawn(process.execPath, [script], { stdio: 'inherit' }), 'close') as [number | null];
      process.exitCode = code ?? 1;
    });
}
