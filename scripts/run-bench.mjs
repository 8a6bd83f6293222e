// `npm run bench`: builds what is missing and runs the benchmark (test/bench/main.ts, compiled with the tests). Arguments go
// to it.

import { prepareTests, runNode } from './prepare.mjs';

prepareTests();
process.exitCode = runNode('build-test/bench/main.js', process.argv.slice(2));
