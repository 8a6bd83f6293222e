// Copies exactly the npm packages that this package, its report and AVA need into a folder: node scripts/gpu/copy-packages.mjs TO.
// Reads dependencies from the lock file. Leaves out AVA's bundler (@vercel/nft), which AVA loads for shared workers only.

import { cpSync, existsSync, readFileSync } from 'node:fs';
import path from 'node:path';
import { fileURLToPath } from 'node:url';

const root = path.resolve(path.dirname(fileURLToPath(import.meta.url)), '..', '..');
const to = path.resolve(process.argv[2]);
const { packages } = JSON.parse(readFileSync(path.join(root, 'package-lock.json'), 'utf8'));
const leftOut = new Set(['@vercel/nft', 'node-addon-api']);

/** Where Node finds `name` from a package at `place`: the nearest node_modules going up. */
function resolve(name, place) {
  for (let folder = place; ; folder = folder.slice(0, Math.max(0, folder.lastIndexOf('node_modules') - 1))) {
    const candidate = path.posix.join(folder, 'node_modules', name);
    if (packages[candidate] !== undefined) return candidate;
    if (folder === '') return undefined;
  }
}

const wanted = new Set();
function want(name, from) {
  const place = resolve(name, from);
  if (place === undefined || wanted.has(place) || leftOut.has(name)) return;
  wanted.add(place);
  for (const dependency of Object.keys(packages[place].dependencies ?? {})) want(dependency, place);
}

for (const name of Object.keys(packages[''].dependencies)) want(name, '');
for (const name of ['ava', 'cli-table3']) want(name, ''); // results.mjs prints tables
for (const place of wanted) {
  const from = path.join(root, place);
  if (!existsSync(from)) continue;
  const inner = path.join(from, 'node_modules');
  cpSync(from, path.join(to, path.relative('node_modules', place)), {
    recursive: true, filter: (source) => source !== inner,
  });
}
