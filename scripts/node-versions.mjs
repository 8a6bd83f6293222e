// `npm run test:node -- 22 24 26`: runs the tests on other releases of Node.js, all with the one addon that is built. A release
// is installed once from the npm package `node` into build-nodes/<release>. Arguments after `--` go to AVA. With `--addon` it runs only
// the tests of the addon, which must call each of its functions. Where the
// registry cannot be reached, it says so; that is a failure only in CI.

import { spawnSync } from 'node:child_process';
import { chmodSync, existsSync, mkdirSync, mkdtempSync, readdirSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { createRequire } from 'node:module';
import { tmpdir } from 'node:os';
import path from 'node:path';

import { prepareTests, root } from './prepare.mjs';

/** Since Node.js 22 JavaScript detaches buffers itself (`ArrayBuffer.prototype.transfer`). */
const onlyOnNode20 = new Set(['detach']);
/** Tests that call every function of the addon, on every driver; `--addon` checks that they still do. */
const addonTests = [
  'cache', 'contract', 'cuda', 'device', 'host', 'kernels', 'llama/mapped.test.js', 'mock', 'native', 'side', 'store', 'teardown', 'tiers/partial-reads.test.js',
  'tiers/reorder.test.js', 'tiers/tier-contract.test.js',
].map((name) => `build-test/${name}`);
const noter = path.join(root, 'build-test', 'helpers', 'addon-calls.js');

const [own, forAva] = divided(process.argv.slice(2));
const isAddonOnly = own.includes('--addon');
const releases = own.filter((argument) => argument !== '--addon');
if (releases.length === 0 || releases.some((release) => !/^\d+(\.\d+)*$/.test(release))) {
  console.error('usage: node scripts/node-versions.mjs [--addon] <release of Node.js>… [-- <arguments of AVA>]');
  process.exit(2);
}
prepareTests();
for (const release of releases) {
  const node = install(release);
  if (node === undefined) continue;
  console.log(`Node.js ${spawnSync(node, ['--version'], { encoding: 'utf8' }).stdout.trim()}`);
  const status = isAddonOnly ? runAddonTests(node) : runTests(node, forAva);
  if (status !== 0) process.exitCode = status;
}

function divided(given) {
  const at = given.indexOf('--');
  return at < 0 ? [given, []] : [given.slice(0, at), given.slice(at + 1)];
}

/** The executable of a release; undefined where it cannot be installed. */
function install(release) {
  const folder = path.join(root, 'build-nodes', release);
  const node = path.join(folder, 'node_modules', 'node', 'bin', 'node');
  if (existsSync(node)) return node;
  mkdirSync(folder, { recursive: true });
  writeFileSync(path.join(folder, 'package.json'), '{ "private": true }\n');
  const { status, stdout, stderr } = spawnSync(
    'npm', ['install', '--no-save', '--no-package-lock', '--no-audit', '--no-fund', '--prefix', folder, `node@${release}`],
    { cwd: folder, encoding: 'utf8' });
  if (status === 0 && existsSync(node)) return node;
  rmSync(folder, { recursive: true, force: true });
  console.error(`${stdout ?? ''}${stderr ?? ''}`);
  console.error(`virtual-kv: Node.js ${release} could not be installed from the npm registry; nothing was tested on it.`);
  if (process.env.CI) process.exit(1);
  console.log('0 passed, 0 failed, 1 skipped');
  return undefined;
}

function runTests(node, given, environment = {}) {
  const { status } = spawnSync(node, [path.join(root, 'scripts', 'test.mjs'), ...given], {
    cwd: root, stdio: 'inherit',
    env: { ...process.env, PATH: `${path.dirname(node)}${path.delimiter}${process.env.PATH}`, ...environment },
  });
  return status ?? 1;
}

function runAddonTests(node) {
  const folder = mkdtempSync(path.join(tmpdir(), 'virtual-kv-calls-'));
  chmodSync(folder, 0o777); // tests start processes of other users
  try {
    const options = [process.env.NODE_OPTIONS, `--require ${JSON.stringify(noter)}`].filter(Boolean).join(' ');
    const status = runTests(node, forAva.length > 0 ? forAva : addonTests, { VKV_ADDON_CALLS: folder, NODE_OPTIONS: options });
    return status === 0 ? checkCalls(folder) : status;
  } finally {
    rmSync(folder, { recursive: true, force: true });
  }
}

function checkCalls(folder) {
  const called = new Set(readdirSync(folder).flatMap((file) => readFileSync(path.join(folder, file), 'utf8').split('\n')));
  const require = createRequire(import.meta.url);
  const addon = require(process.env.VKV_ADDON ?? path.join(root, 'build', 'Release', 'virtual_kv.node'));
  const all = require(noter).functionsOf(addon);
  const missing = all.filter((name) => !called.has(name) && !onlyOnNode20.has(name));
  if (missing.length === 0) {
    console.log(`all ${all.length} functions of the addon were called`);
    return 0;
  }
  console.error(`virtual-kv: of the addon's ${all.length} functions these were never called: ${missing.join(', ')}`);
  return 1;
}
