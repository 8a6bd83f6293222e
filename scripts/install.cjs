'use strict';
// Builds the addon when the package is installed: cmake-js where CMake is there, npm's own node-gyp otherwise.
// VKV_BUILD = auto (default) | cmake | gyp | skip chooses by hand.
const { spawnSync } = require('node:child_process');
const path = require('node:path');

const root = path.resolve(__dirname, '..');
const wanted = process.env.VKV_BUILD || 'auto';

const isOnPath = (command) => spawnSync(command, ['--version'], { stdio: 'ignore' }).status === 0;
const runNode = (script, args) =>
  spawnSync(process.execPath, [script, ...args], { cwd: root, stdio: 'inherit' }).status === 0;

function buildWithCmake() {
  let cmakeJs;
  try { cmakeJs = require.resolve('cmake-js/bin/cmake-js'); } catch { return false; }
  const cmake = process.env.CMAKE || 'cmake';
  if (!isOnPath(cmake)) return false;
  return runNode(cmakeJs, ['compile', ...(process.env.CMAKE ? ['-c', cmake] : [])]);
}

function buildWithGyp() {
  const nodeGyp = process.env.npm_config_node_gyp; // npm sets it for lifecycle scripts
  if (nodeGyp) return runNode(nodeGyp, ['rebuild']);
  return spawnSync('node-gyp', ['rebuild'], { cwd: root, stdio: 'inherit' }).status === 0;
}

const builders = {
  skip: () => true,
  cmake: buildWithCmake,
  gyp: buildWithGyp,
  auto: () => buildWithCmake() || buildWithGyp(),
};
const build = builders[wanted];
if (!build) {
  console.error(`virtual-kv: VKV_BUILD is ${JSON.stringify(wanted)}; use one of ${Object.keys(builders).join(', ')}.`);
  process.exit(1);
}
if (!build()) {
  console.error(
    'virtual-kv: the native addon could not be built. It needs a C++20 compiler, and CMake 3.18 or later or python3 ' +
    'with make (for node-gyp). On Debian or Ubuntu: apt-get install build-essential cmake');
  process.exit(1);
}
