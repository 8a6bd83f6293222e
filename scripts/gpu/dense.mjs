// What gpu-check measures of the dense arithmetic and the reference engine, as tables and, with --json FILE, as numbers:
//   node scripts/gpu/dense.mjs [--json FILE] [--library libcuda.so.1]
// Exit code 1: the engine's tokens on the device were not the CPU's. Against the simulated device its times mean nothing.

import { writeFileSync } from 'node:fs';
import { createRequire } from 'node:module';
import path from 'node:path';
import { parseArgs } from 'node:util';

import { measureProducts } from './dense-times.mjs';
import { runEngine } from './engine-run.mjs';

const require = createRequire(import.meta.url);
const api = require('../../dist/index.js');
const Table = require('cli-table3');

const { values: flags } = parseArgs({ options: { json: { type: 'string' }, library: { type: 'string' } } });

function print(title, rows) {
  const columns = Object.keys(rows[0]);
  const table = new Table({ head: columns, style: { head: [], border: [], compact: true } });
  for (const row of rows) table.push(columns.map((column) => cell(row[column])));
  console.log(`\n${title}\n${table.toString()}`);
}

function cell(value) {
  if (typeof value !== 'number') return String(value);
  return Number.isInteger(value) ? value.toLocaleString('en') : value.toFixed(value < 10 ? 2 : 1);
}

const driver = api.Driver.open('cuda', { libraryPath: flags.library });
const products = measureProducts(driver, api);
const { outputs, inputs, copyGBPerS } = products;
print(`Products of ${outputs} × ${inputs} weights; copies move ${copyGBPerS.toFixed(1)} GB/s, read and written`, products.table);
const engine = runEngine(driver, api);
print('The reference engine, 4 texts at once', engine.table);
const { info } = driver;
driver.close();
if (flags.json !== undefined) {
  const numbers = { date: new Date().toISOString(), device: info, products, engine: engine.table };
  writeFileSync(flags.json, `${JSON.stringify(numbers, undefined, 2)}\n`);
  console.log(`\nWritten: ${path.resolve(flags.json)}`);
}
if (!engine.isSame) {
  console.log('The device\'s tokens are not the CPU\'s.');
  process.exitCode = 1;
}
