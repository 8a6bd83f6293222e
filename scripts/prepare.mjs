// Installs and builds what is missing in a clone: npm packages, the addon, TypeScript, and more on request. A step
// runs only when one of its inputs is newer than its output, prints one line, and shows its output only
// when it fails; then the process ends with that step's exit code. Used by start, test, bench and the examples.

import { spawnSync } from 'node:child_process';
import { chmodSync, existsSync, mkdirSync, readdirSync, readFileSync, rmSync, statSync, utimesSync, writeFileSync } from 'node:fs';
import path from 'node:path';
import { fileURLToPath } from 'node:url';

export const root = path.resolve(path.dirname(fileURLToPath(import.meta.url)), '..');
const stamps = path.join(root, 'node_modules', '.cache', 'virtual-kv');

/** Packages, addon and dist/: all that the vkv command needs. */
export function prepare() {
  if (!hasPackages('.')) step('installing npm packages', 'npm', ['ci', '--no-progress'], { VKV_BUILD: 'skip' });
  if (process.env.VKV_ADDON === undefined && isAddonStale()) buildAddon();
  compile({ name: 'dist', title: 'compiling TypeScript', sources: 'lib', project: '.', output: 'dist', then: 'scripts/build-page.mjs' });
  chmodSync(path.join(root, 'dist', 'cli', 'vkv.js'), 0o755); // tsc does not keep the bit
}

/** The same, the examples, which have tests of their own, and the compiled tests. */
export function prepareTests() {
  prepareFolder('examples');
  compile({ name: 'test', title: 'compiling the tests', sources: 'test', output: 'build-test', needs: ['dist', 'examples'] });
  buildNatives();
}

/** The native programs of the tests, where their sources, the addon's objects or the compiler have changed. */
function buildNatives() {
  const stamp = path.join(stamps, 'natives');
  const made = `${process.env.VKV_ADDON ?? ''} ${process.env.CXX ?? ''} ${process.env.VKV_TEST_SANITIZE ?? ''}`;
  const isFresh = existsSync(stamp) && timeOf('native', 'kernels', 'test/native', 'build-test/helpers/native-probe.js') <= timeOf(stamp)
    && readFileSync(stamp, 'utf8') === made && existsSync(path.join(root, 'build-test', 'fake-libcuda'));
  if (isFresh) return;
  const begin = new Date();
  step('compiling native test programs', process.execPath, [path.join('build-test', 'runner', 'build-natives.js')]);
  writeFileSync(stamp, made);
  utimesSync(stamp, begin, begin);
}

/** The same as `prepare`, and the benchmarks with what they take from the tests. */
export function prepareBenchmarks() {
  prepare();
  compile({ name: 'bench', title: 'compiling the benchmarks', sources: 'test/bench', output: 'build-test/bench', needs: ['dist'], uses: ['test'] });
}

/** The same as `prepare`, and a folder with a tsconfig.json of its own (examples) compiled to build-<name>. */
export function prepareFolder(name) {
  prepare();
  compile({ name, title: `compiling ${name}/`, sources: name, output: `build-${name}`, needs: ['dist'] });
}

/** The npm packages that only the example of this name needs, if it has any: examples/<name>/package.json. */
export function prepareExamplePackages(name) {
  preparePackages(path.join('examples', name));
}

/** The npm packages of a folder that has a package.json of its own, and nothing for another. */
export function preparePackages(folder) {
  if (!existsSync(path.join(root, folder, 'package.json')) || hasPackages(folder)) return;
  step(`installing npm packages of ${folder}`, 'npm', ['ci', '--no-progress'], {}, folder);
}

/** Runs a Node program of this package with the same standard streams; returns its exit code. */
export function runNode(script, args, environment = {}) {
  const { status, signal } = spawnSync(process.execPath, [path.join(root, script), ...args], {
    stdio: 'inherit', env: { ...process.env, ...environment },
  });
  return status ?? (signal === 'SIGINT' ? 130 : 1);
}

/** Whether a folder's node_modules has exactly the packages of its lock file. */
function hasPackages(folder) {
  const installed = readJson(path.join(root, folder, 'node_modules', '.package-lock.json'))?.packages;
  if (installed === undefined) return false;
  const wanted = readJson(path.join(root, folder, 'package-lock.json')).packages;
  return Object.entries(wanted).every(([place, { version, optional, peer }]) =>
    place === '' || optional || peer || installed[place]?.version === version);
}

/** A minute or two at first: it says how far it is. */
function buildAddon() {
  const { status } = spawnSync(process.execPath, ['scripts/progress.cjs', 'building the addon', process.execPath, 'scripts/build-addon.cjs'], {
    cwd: root, stdio: ['ignore', 'inherit', 'inherit'],
  });
  if (status !== 0) process.exit(status || 1);
}

function isAddonStale() {
  const addon = path.join(root, 'build', 'Release', 'virtual_kv.node');
  return !existsSync(addon) || timeOf('native', 'kernels', 'CMakeLists.txt', 'binding.gyp', 'package.json') > timeOf(addon);
}

/** @param uses Folders that the sources import from. @param then A program that completes the output. */
function compile({ name, title, sources, output, project = sources, needs = [], uses = [], then }) {
  const stamp = path.join(stamps, name);
  const inputs = [sources, ...uses, 'tsconfig.json', ...needs.map((other) => path.join(stamps, other))];
  if (existsSync(path.join(root, output)) && existsSync(stamp) && timeOf(...inputs) <= timeOf(stamp)) return;
  const begin = new Date();
  const tsc = path.join('node_modules', 'typescript', 'bin', 'tsc');
  const state = path.join(stamps, `${name}.tsbuildinfo`); // what tsc compiled last, so that it compiles only what changed
  if (!existsSync(path.join(root, output))) rmSync(state, { force: true });
  step(title, process.execPath, [tsc, '-p', project, '--noEmitOnError', '--incremental', '--tsBuildInfoFile', state]);
  removeOrphans(path.join(root, sources), path.join(root, output));
  if (then !== undefined) step(`${title} of the live page`, process.execPath, [then]);
  mkdirSync(stamps, { recursive: true });
  writeFileSync(stamp, '');
  utimesSync(stamp, begin, begin); // a source that changes during the compilation must count as newer
}

/** Has the next `prepare` compile a folder's TypeScript again, all of it. */
export function forget(name) {
  for (const file of [name, `${name}.tsbuildinfo`]) rmSync(path.join(stamps, file), { force: true });
}

/** Removes compiled files without a source, which would still run, or ship. */
function removeOrphans(sources, output) {
  for (const entry of readdirSync(output, { recursive: true })) {
    const compiled = /^(.*?)(\.d\.ts|\.js)(\.map)?$/.exec(entry);
    if (compiled === null || existsSync(path.join(sources, `${compiled[1]}.ts`))) continue;
    rmSync(path.join(output, entry), { force: true });
  }
}

/** The latest change in files and folders, npm packages left out, in ms; 0 for missing ones. */
function timeOf(...places) {
  let latest = 0;
  for (const place of places) {
    const full = path.resolve(root, place);
    if (!existsSync(full)) continue;
    const stats = statSync(full);
    const entries = stats.isDirectory() ? readdirSync(full, { recursive: true }) : [];
    latest = Math.max(latest, stats.isDirectory() ? 0 : stats.mtimeMs);
    for (const entry of entries) {
      if (entry.split(path.sep).includes('node_modules')) continue;
      const found = statSync(path.join(full, entry), { throwIfNoEntry: false });
      if (found?.isFile()) latest = Math.max(latest, found.mtimeMs);
    }
  }
  return latest;
}

function step(title, command, args, environment = {}, folder = '.') {
  process.stderr.write(`virtual-kv: ${title} … `);
  const startMs = performance.now();
  const { status, error, stdout, stderr } = spawnSync(command, args, {
    cwd: path.join(root, folder), encoding: 'utf8', maxBuffer: 2 ** 28, stdio: ['ignore', 'pipe', 'pipe'],
    env: { ...process.env, ...environment },
  });
  if (status === 0) {
    process.stderr.write(`${((performance.now() - startMs) / 1e3).toFixed(1)} s\n`);
    return;
  }
  process.stderr.write(`failed\n${stdout ?? ''}${stderr ?? ''}${error ? `${error.message}\n` : ''}`);
  process.exit(status || 1);
}

function readJson(file) {
  return existsSync(file) ? JSON.parse(readFileSync(file, 'utf8')) : undefined;
}
