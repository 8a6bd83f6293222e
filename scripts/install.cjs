'use strict';
// Runs when the package is installed. Where a prebuilt addon of prebuilds/ loads, there is nothing to build, and the package works
// without this script too; elsewhere on Linux, and always in a clone, it builds the addon from source (build-addon.cjs). macOS and
// Windows have no addon, and the install ends well there. VKV_BUILD = auto (default) | gyp | cmake | skip: gyp and cmake build
// from source in any case.
// Exit code 0: the addon loads, or there is none for this platform.
const { spawnSync } = require('node:child_process');
const fs = require('node:fs');
const path = require('node:path');

const { build, readTool } = require('./build-addon.cjs');

const root = path.resolve(__dirname, '..');

/** In another process: a library for another machine may do more than fail to load. */
function loads() {
  const { VKV_ADDON: _, ...env } = process.env;
  const library = JSON.stringify(path.join(root, 'dist', 'device', 'native.js'));
  return spawnSync(process.execPath, ['-e', `require(${library}).native()`], { env, stdio: 'ignore' }).status === 0;
}

const wanted = readTool();
const isClone = fs.existsSync(path.join(root, 'lib'));
if (wanted === 'skip') process.exit(0);
if (process.platform !== 'linux') {
  console.log('virtual-kv: it has a native addon for Linux only; what needs none works here (planning, layouts, block keys).');
  process.exit(0);
}
if (wanted !== 'auto' || isClone || !loads()) build(wanted);
