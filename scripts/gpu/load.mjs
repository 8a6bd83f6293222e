// Opens the GPU and loads the kernels' module once, so that what fails there fails here, by name, and so that PTX is compiled before
// others need it: node scripts/gpu/load.mjs

import { createRequire } from 'node:module';

const require = createRequire(import.meta.url);
const { Driver, Kernels, KvCache, DenseKernels, onDemand } = require('../../dist/index.js');

const driver = Driver.open('cuda');
const { deviceName, computeCapability, driverVersion } = driver.info;
console.log(`${deviceName}, sm_${computeCapability}, CUDA driver ${driverVersion}`);
const cache = new KvCache({
  model: { layers: 1, kvHeads: 1, headDim: 64, dtype: 'float16' }, slots: 1, maxTokens: 16, driver, growth: onDemand(),
  memoryBudgetBytes: 64 * 2 ** 20,
});
for (const when of ['first', 'again']) {
  const begin = performance.now();
  new Kernels({ cache }).close();
  console.log(`the kernels' module was loaded in ${(performance.now() - begin).toFixed(0)} ms (${when})`);
}
const dense = new DenseKernels({ driver, cublas: process.env.VKV_CUBLAS || 'auto' });
console.log(`matrix products are by ${dense.target}`);
dense.close();
cache.close();
driver.close();
