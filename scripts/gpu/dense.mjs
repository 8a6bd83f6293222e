// What gpu-check measures of the dense arithmetic and the reference engine, as tables and, with --json FILE, as numbers:
//   node scripts/gpu/dense.mjs [--json FILE] [--library libcuda.so.1]
// Exit code 1: the engine's tokens on the device were not the CPU's. Against the simulated device its times mean nothing.

import { createRequire } from 'node:module';
import { parseArgs } from 'node:util';

import { measureProducts } from './dense-times.mjs';
import { runEngine } from './engine-run.mjs';
import { addResults } from './results.mjs';
import { print } from './tables.mjs';

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
  console.log('The device\'s tokens are not the CPU\'s.');
  process.exitCode = 1;
}
