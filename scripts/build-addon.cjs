'use strict';
// Builds the addon from source into build/Release: in a clone with cmake-js where CMake is there, otherwise with npm's own node-gyp.
// It runs as `npm run build:native`, and when the package is installed where no prebuilt addon fits; it is shipped with the
// package, so it uses nothing else of scripts/ but addon-sources.cjs. VKV_BUILD = auto (default) | cmake | gyp chooses by hand; CMAKE
// and CXX name other tools.
// Exit code 0: the addon exists and is newer than its sources.
const { spawnSync } = require('node:child_process');
const fs = require('node:fs');
const os = require('node:os');
const path = require('node:path');

const { unpack } = require('./addon-sources.cjs');

const root = path.resolve(__dirname, '..');
const buildFolder = path.join(root, 'build');
const addon = path.join(buildFolder, 'Release', 'virtual_kv.node');
const isClone = fs.existsSync(path.join(root, 'lib'));
const cmake = process.env.CMAKE || 'cmake';
const OLDEST_CMAKE = [3, 18];
const jobs = String(os.availableParallelism());
const APT_LINE = `apt-get install build-essential ${isClone ? 'cmake' : 'python3'}`;
const TOOLS = ['auto', 'cmake', 'gyp', 'skip'];

const isOnPath = (command) => spawnSync(command, ['--version'], { stdio: 'ignore' }).status === 0;

/** What VKV_BUILD asks for. */
function readTool() {
  const wanted = process.env.VKV_BUILD || 'auto';
  if (!TOOLS.includes(wanted)) fail(`VKV_BUILD is ${JSON.stringify(wanted)}.`, `Use one of ${TOOLS.join(', ')}.`);
  return wanted;
}

/** CMake and cmake-js, which are there in a clone only. */
function hasCmake() {
  const { status, stdout } = spawnSync(cmake, ['--version'], { encoding: 'utf8' });
  if (status !== 0 || cmakeJs() === undefined) return false;
  const [major, minor] = (/(\d+)\.(\d+)/.exec(stdout) ?? [0, 0, 0]).slice(1).map(Number);
  return major > OLDEST_CMAKE[0] || (major === OLDEST_CMAKE[0] && minor >= OLDEST_CMAKE[1]);
}

function cmakeJs() {
  try {
    return require.resolve('cmake-js/bin/cmake-js');
  } catch {
    return undefined;
  }
}

function fail(problem, advice) {
  console.error(`virtual-kv: ${problem} ${advice}`);
  process.exit(1);
}

/** Both tools use build/, and neither can use the other's files, nor those of a folder that was copied from elsewhere. */
function removeForeignBuild(foreignFile) {
  const cache = path.join(buildFolder, 'CMakeCache.txt');
  const home = fs.existsSync(cache) ? /^CMAKE_HOME_DIRECTORY:INTERNAL=(.*)$/m.exec(fs.readFileSync(cache, 'utf8'))?.[1] : undefined;
  const isCopied = home !== undefined && home !== fs.realpathSync(root) && home !== root;
  if (isCopied || fs.existsSync(path.join(buildFolder, foreignFile))) fs.rmSync(buildFolder, { recursive: true });
}

function run(command, args) {
  return spawnSync(command, args, { cwd: root, stdio: 'inherit' }).status === 0;
}

function buildWithCmake() {
  removeForeignBuild('config.gypi');
  return run(process.execPath, [cmakeJs(), 'compile', '-p', jobs, ...(process.env.CMAKE ? ['-c', cmake] : [])]);
}

function buildWithGyp() {
  removeForeignBuild('CMakeCache.txt');
  // Headers that came with Node spare node-gyp a download.
  const prefix = path.resolve(process.execPath, '..', '..');
  const hasHeaders = fs.existsSync(path.join(prefix, 'include', 'node', 'node_api.h'));
  const args = ['configure', 'build', `--jobs=${jobs}`, ...(hasHeaders ? [`--nodedir=${prefix}`] : [])];
  const bundled = path.join(prefix, 'lib', 'node_modules', 'npm', 'node_modules', 'node-gyp', 'bin', 'node-gyp.js');
  const script = process.env.npm_config_node_gyp || (fs.existsSync(bundled) ? bundled : undefined);
  return script === undefined ? run('node-gyp', args) : run(process.execPath, [script, ...args]);
}

/** What is left of build/ in an installed package, which nothing compiles again. */
function keepOnlyProducts() {
  for (const folder of [buildFolder, path.dirname(addon)]) {
    for (const name of fs.readdirSync(folder)) {
      if (!['Release', 'virtual_kv.node', 'kernels.fatbin'].includes(name)) fs.rmSync(path.join(folder, name), { recursive: true });
    }
  }
}

function checkTools(tool) {
  const missing = [];
  const compilers = process.env.CXX ? [process.env.CXX.split(' ')[0]] : ['c++', 'g++', 'clang++'];
  if (!compilers.some(isOnPath)) missing.push('a C++20 compiler');
  if (!isOnPath('make') && !isOnPath('ninja')) missing.push('make');
  if (tool === 'gyp' && !isOnPath('python3')) missing.push(isClone ? 'CMake 3.18 or later (or python3, for node-gyp)' : 'python3');
  if (missing.length === 0) return;
  fail(
    `there is no prebuilt addon for ${process.platform}-${process.arch} here, and it cannot be built: ${missing.join(' and ')} is missing.`,
    `On Debian or Ubuntu: ${APT_LINE}. VKV_BUILD=skip installs the package without it.`);
}

/** Ends the process where it fails. */
function build(wanted) {
  if (wanted === 'cmake' && !hasCmake()) {
    fail('VKV_BUILD is cmake, and there is no CMake 3.18 or later, or no cmake-js.', isClone ? APT_LINE : 'Use VKV_BUILD=gyp.');
  }
  const tool = wanted === 'auto' ? (hasCmake() ? 'cmake' : 'gyp') : wanted;
  checkTools(tool);
  unpack();
  const begin = new Date();
  if (!(tool === 'cmake' ? buildWithCmake() : buildWithGyp())) {
    fail(
      `the native addon could not be built with ${tool === 'cmake' ? 'cmake-js' : 'node-gyp'}; its output is above.`,
      `It needs a C++20 compiler (GCC 10 or Clang 12). On Debian or Ubuntu: ${APT_LINE}`);
  }
  // A build with nothing to do leaves the file's time, and the file would look stale. Sources that changed while the
  // compiler ran must count as newer.
  fs.utimesSync(addon, begin, begin);
  if (!isClone) keepOnlyProducts();
}

if (require.main === module) {
  const wanted = readTool();
  if (wanted !== 'skip') build(wanted);
}
module.exports = { build, readTool };
