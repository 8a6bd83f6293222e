// `npm run vkv|bench|example -- ARGS`: builds what is missing in a clone and runs
//   vkv      the command, in the folder of the repository
//   bench    the benchmark (test/bench/main.ts)
//   example  an example by its name; without a name, lists them. The .mjs ones also run as they are once the package is built.

import { existsSync, readdirSync } from 'node:fs';
import path from 'node:path';

import { prepare, prepareBenchmarks, prepareExamplePackages, prepareFolder, root, runNode } from './prepare.mjs';

function runExample(name, ...args) {
  const examples = readdirSync(path.join(root, 'examples'))
    .filter((file) => /\.(ts|mjs)$/.test(file))
    .map((file) => path.parse(file).name);
  if (!examples.includes(name)) {
    console.error(`Usage: npm run example -- NAME, with NAME one of ${examples.join(', ')}`);
    return name === undefined ? 0 : 2;
  }
  prepareFolder('examples');
  prepareExamplePackages(name);
  const plain = `examples/${name}.mjs`;
  return runNode(existsSync(path.join(root, plain)) ? plain : `build-examples/${name}.js`, args);
}

const [what, ...given] = process.argv.slice(2);
if (what === 'example') process.exitCode = runExample(...given);
else {
  if (what === 'bench') prepareBenchmarks();
  else prepare();
  process.exitCode = runNode(what === 'bench' ? 'build-test/bench/main.js' : 'dist/cli/vkv.js', given);
}
