// `npm run vkv -- info`: the command from a clone. Builds what is missing and runs it, in the folder of the repository.

import { prepare, runNode } from './prepare.mjs';

prepare();
process.exitCode = runNode('dist/cli/vkv.js', process.argv.slice(2));
