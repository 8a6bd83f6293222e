// `npm start`: the main job, from a clean clone. Installs and builds what is missing, then replays a generated serving trace
// through real virtual memory on this machine. Arguments go to the command: `npm start -- --limit 100`.

import { prepare, runNode } from './prepare.mjs';

prepare();
process.on('SIGINT', () => {}); // Ctrl-C is for the replay: it ends with the numbers so far
process.exitCode = runNode('dist/cli/vkv.js', ['replay', '--generate', ...process.argv.slice(2)]);
