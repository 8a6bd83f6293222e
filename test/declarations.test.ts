// The declarations that are shipped are for older compilers too: what a newer one infers and writes out may not be known there.
// `npm run test:package` compiles against them with the oldest and the newest that are promised.

import { readdirSync, readFileSync } from 'node:fs';
import * as path from 'node:path';

import test from 'ava';

const dist = path.resolve(__dirname, '..', 'dist');
const declarations = readdirSync(dist, { recursive: true, encoding: 'utf8' }).filter((file) => file.endsWith('.d.ts'));

test('no declaration has what TypeScript 5.2 does not know', (t) => {
  t.true(declarations.length > 50);
  // Generic typed arrays and ArrayBufferLike as an argument came with 5.7 and 5.9, NoInfer with 5.4.
  const newer = /\b(?:Big)?(?:Int|Uint|Float)\w*Array<|\bArrayBufferView<|\bNoInfer</;
  t.deepEqual(declarations.filter((file) => newer.test(readFileSync(path.join(dist, file), 'utf8'))), []);
});
