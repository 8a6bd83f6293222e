// Which test files run, in which processes. Most are loaded into a few processes, bundles, as starting one and loading the package
// takes as long as ten tests. A file whose first lines say `Alone in its process: …` has one of its own, and one that says
// `Slow: …` is left out of the quick tier whole.

import { existsSync, mkdirSync, readdirSync, readFileSync, rmSync, statSync, writeFileSync } from 'node:fs';
import { availableParallelism } from 'node:os';
import path from 'node:path';

import { root } from '../prepare.mjs';

const built = path.join(root, 'build-test');
const bundles = path.join(built, 'bundles');
/** Of a processor: enough that the last ones to end leave little idle. */
const bundlesEach = 5;

/** The files for AVA, bundles among them. `places`: files and folders in build-test; none: all. */
export function selectTests(places, tier) {
  rmSync(bundles, { recursive: true, force: true });
  const missing = places.filter((place) => !existsSync(path.resolve(root, place)));
  if (missing.length > 0) throw new Error(`There is no ${missing.join(', ')}. Name files and folders below build-test/; give AVA its options with a '=': --match='*text*'.`);
  const all = readdirSync(built, { recursive: true }).filter((name) => name.endsWith('.test.js') && !name.startsWith('package/')).sort();
  const chosen = places.length === 0 ? all : all.filter((name) => places.some((place) => isWithin(path.join(built, name), path.resolve(root, place))));
  if (chosen.length === 0) throw new Error(`There are no tests in ${places.join(', ')}: use paths below build-test/.`);
  const files = chosen.map((name) => ({ name, ...marksOf(name) })).filter(({ isSlow }) => !(isSlow && tier === 'quick'));
  const isFew = places.length > 0 && places.every((place) => statSync(path.resolve(root, place)).isFile());
  const alone = files.filter(({ isAlone }) => isAlone || isFew).map(({ name }) => name);
  const together = files.filter(({ isAlone }) => !isAlone && !isFew).map(({ name }) => name.slice(0, -'.test.js'.length));
  return [...alone, ...writeBundles(together)].map((name) => `build-test/${name}`);
}

function isWithin(file, place) {
  return file === place || file.startsWith(place + path.sep);
}

function marksOf(name) {
  const head = readFileSync(path.join(root, 'test', name.replace(/\.js$/, '.ts')), 'utf8').split('\n\n', 1)[0];
  return { isAlone: /^\/\/ Alone in its process: ./m.test(head), isSlow: /^\/\/ Slow: ./m.test(head) };
}

/** Neighbours, which cost alike, go to different bundles. */
function writeBundles(names) {
  const count = Math.min(bundlesEach * availableParallelism(), Math.ceil(names.length / 4));
  mkdirSync(bundles, { recursive: true });
  return Array.from({ length: count }, (_, at) => {
    const loads = names.filter((_name, index) => index % count === at).map((name) => `loadTests('${name}');\n`);
    const bundle = `bundles/${at + 1}.test.js`;
    writeFileSync(path.join(built, bundle), `'use strict';\nconst { loadTests } = require('../runner/measure.js');\n${loads.join('')}`);
    return bundle;
  });
}
