// An unchanged program on transformers.js (transformers/program.mjs), as it is and on the cache's memory: the same
// answers, and both times. Its model is the storyteller of examples/llama, written as ONNX. Run it: npm run example --
// transformers

import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import * as path from 'node:path';
import { pathToFileURL } from 'node:url';

import { install } from 'virtual-kv/transformers';

import { writeStoryteller } from './transformers/storyteller.js';

const here = path.join(__dirname, '..', 'examples', 'transformers');
const program = pathToFileURL(path.join(here, 'program.mjs'));

async function main(): Promise<void> {
  const model = mkdtempSync(path.join(tmpdir(), 'vkv-storyteller-'));
  try {
    writeStoryteller(model);
    process.argv[2] = model;
    console.log('As it is:');
    await import(program.href);
    const memory = install({ memoryBudgetBytes: 2 ** 28, from: here });
    console.log('After install({ memoryBudgetBytes }):');
    await import(`${program.href}?again`);
    const { computedTokens, cachedTokens } = memory.totals;
    console.log(`${computedTokens} tokens computed, ${cachedTokens} found in the cache`);
    await memory.close();
  } finally {
    rmSync(model, { recursive: true });
  }
}

void main();
