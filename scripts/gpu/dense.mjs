// Measures the dense kernels and the reference engine for gpu-check; prints tables and, with --json FILE, writes numbers:
//   node scripts/gpu/dense.mjs [--json FILE] [--library libcuda.so.1]
// Exit code 1: the engine's tokens on the device were not the CPU's, or it refused a captured step. Against the simulated device its times mean nothing.

import { createRequire } from 'node:module';
import { parseArgs } from 'node:util';

import { runEngine } from './engine-run.mjs';
import { addResults, print } from './results.mjs';
import { fillRandomly, isSimulated, timeLaunchesUs } from './timing.mjs';

const require = createRequire(import.meta.url);
const api = require('../../dist/index.js');

const { values: flags } = parseArgs({ options: { json: { type: 'string' }, library: { type: 'string' } } });

const driver = api.Driver.open('cuda', { libraryPath: flags.library });
const engine = runEngine(driver, api);
print('The reference engine, 4 texts at once', engine.table);
addResults(flags.json, { engine: engine.table });
const products = measureProducts(driver, api);
const { outputs, inputs, copyGBPerS } = products;
print(`Products of ${outputs} × ${inputs} weights; copies move ${copyGBPerS.toFixed(1)} GB/s, read and written`, products.table);
addResults(flags.json, { products });
driver.close();
if (!engine.isSame) {
  console.log('The device\'s tokens are not the CPU\'s, or a captured step was refused.');
  process.exitCode = 1;
}

/**
 * Times matrix products by the package's kernel and by cuBLAS, where there is one. Few rows are compared with the device's own copy,
 * since each weight is read once; many rows are measured in floating-point operations per second. On a simulated device everything is
 * small.
 */
function measureProducts(driver, { DenseKernels, DeviceMemory, dtypeBytes }) {
  const isSmall = isSimulated(driver);
  const [outputs, inputs, copies] = isSmall ? [64, 64, 2] : [8192, 4096, 4]; // so many matrices, that no cache holds them
  const counts = isSmall ? [1, 9] : [1, 2, 4, 8, 16, 64, 512, 4096];
  const most = counts.at(-1);
  const weights = new DeviceMemory({ driver, bytes: 4 * copies * outputs * inputs });
  const rows = new DeviceMemory({ driver, bytes: 4 * most * (inputs + outputs) });
  fillRandomly(driver, rows.address, rows.bytes, 'float32');
  const bytes = Math.floor(weights.bytes / 2);
  const copyUs = timeLaunchesUs(driver, () => driver.native.copy(weights.address + BigInt(bytes), weights.address, bytes, 0n));
  const copyGBPerS = (2 * bytes) / copyUs / 1e3;
  const output = rows.address + BigInt(4 * most * inputs);
  const table = [];
  for (const cublas of ['off', process.env.VKV_CUBLAS || 'auto']) {
    const dense = new DenseKernels({ driver, cublas });
    for (const dtype of dense.target.startsWith('cublas') || cublas === 'off' ? ['bfloat16', 'float16', 'float32'] : []) {
      const size = BigInt(dtypeBytes(dtype) * outputs * inputs);
      fillRandomly(driver, weights.address, Number(size) * copies, dtype);
      for (const count of counts) {
        const us = timeLaunchesUs(driver, (turn) => {
          const data = weights.address + size * BigInt(turn % copies);
          dense.multiply(rows.address, count, { weight: { data, dtype, outputs, inputs }, output });
        });
        const weightsGBPerS = Number(size) / us / 1e3;
        table.push({
          'by': dense.target, dtype, 'rows': count, us, 'weights GB/s': weightsGBPerS,
          'of the copy\'s traffic': weightsGBPerS / copyGBPerS, 'TFLOP/s': (2 * count * outputs * inputs) / us / 1e6,
        });
      }
    }
    dense.close();
  }
  weights.close();
  rows.close();
  return { outputs, inputs, copyGBPerS, table };
}
