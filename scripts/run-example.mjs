// `npm run example -- toy-engine`: builds what is missing and runs an example by its name; without a name, lists them.
// The .mjs ones also run as they are (`node examples/quick-start.mjs`) once the package is built.

import { existsSync, readdirSync } from 'node:fs';
import path from 'node:path';

import { prepareExamplePackages, prepareFolder, root, runNode } from './prepare.mjs';

const [name, ...args] = process.argv.slice(2);
const examples = readdirSync(path.join(root, 'examples'))
  .filter((file) => /\.(ts|mjs)$/.test(file))
  .map((file) => path.parse(file).name);
if (name === undefined || !examples.includes(name)) {
  console.error(`Usage: npm run example -- NAME, with NAME one of ${examples.join(', ')}`);
  process.exit(name === undefined ? 0 : 2);
}
prepareFolder('examples');
prepareExamplePackages(name);
const plain = `examples/${name}.mjs`;
process.exitCode = runNode(existsSync(path.join(root, plain)) ? plain : `build-examples/${name}.js`, args);
