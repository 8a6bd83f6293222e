// Checks one prerequisite of later sections, so that its failure has a name:
//   node scripts/gpu/load.mjs gpu       opens the GPU
//   node scripts/gpu/load.mjs kernels   loads the kernels' module, which compiles PTX before others need it
//   node scripts/gpu/load.mjs cublas    exit code 0 where the loader finds a cuBLAS that works; says nothing

import { createRequire } from 'node:module';

const require = createRequire(import.meta.url);
const { Driver, DenseKernels, loadKernels } = require('../../dist/index.js');

const what = process.argv[2];
const driver = Driver.open('cuda');
const { deviceName, computeCapability, driverVersion } = driver.info;

if (what === 'cublas') {
  const dense = new DenseKernels({ driver, cublas: 'auto' });
  process.exitCode = dense.target.startsWith('cublas') ? 0 : 1;
  dense.close();
} else {
  const { totalBytes, freeBytes } = driver.memory();
  console.log(`${deviceName}, sm_${computeCapability}, CUDA driver ${driverVersion}, ${freeBytes} of ${totalBytes} bytes are free`);
}
if (what === 'kernels') {
  for (const when of ['first', 'again, by another driver']) {
    const loading = Driver.open('cuda');
    const begin = performance.now();
    await loadKernels(loading);
    const ms = performance.now() - begin;
    const bytes = driver.memory().freeBytes;
    loading.close();
    console.log(`the kernels' module was loaded in ${ms.toFixed(0)} ms (${when}), and holds ${driver.memory().freeBytes - bytes} bytes`);
  }
  const dense = new DenseKernels({ driver, cublas: process.env.VKV_CUBLAS || 'auto' });
  console.log(`matrix products are by ${dense.target}`);
  dense.close();
}
driver.close();
