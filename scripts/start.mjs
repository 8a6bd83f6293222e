// `npm start`: the main job, from a clean clone. Installs and builds what is missing, loads the small Llama of this repository,
// and serves requests that share prefixes through three schedulers, without and with the prefix cache; writes the report's
// plot to serving-report.svg. `npm start -- --prompt "…"` streams a completion instead. Other arguments go to the benchmark.

import { prepare, prepareFolder, runNode } from './prepare.mjs';

const given = process.argv.slice(2);
const isPrompt = given.some((argument) => argument === '--prompt' || argument.startsWith('--prompt='));
prepare();
prepareFolder('examples');
process.exitCode = isPrompt
  ? runNode('build-examples/llama.js', given)
  : runNode('build-examples/serving-benchmark.js', ['--report', 'serving-report.svg', ...given]);
