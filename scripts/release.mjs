// `npm run release`: makes a release from a clean clone on linux-x64. Links the addon of each platform with the C++ runtime inside,
// checks what it needs of the machine it will run on, writes prebuilds/<platform>/virtual_kv.node and prebuilds/SHA256SUMS, packs
// everything, and prints the tarball's name, size and checksum. `npm publish <tarball>` is left to a person.
//   --platform P   only this one (repeatable): linux-x64, linux-arm64, which is cross-compiled (apt-get install g++-aarch64-linux-gnu)
//   --to FOLDER    where the tarball goes, its checksum (.sha256) and the list of its files (.json); the default is the clone
//   --no-pack      leaves out the tarball
//   --dirty        accepts files that are not committed
// Exit code 0: all of it was made and checked.

import { spawnSync } from 'node:child_process';
import { createHash } from 'node:crypto';
import { chmodSync, copyFileSync, existsSync, mkdirSync, readFileSync, readdirSync, rmSync, statSync, writeFileSync } from 'node:fs';
import path from 'node:path';
import { parseArgs } from 'node:util';

import { prepare, root } from './prepare.mjs';
import { checkAddon } from './release/check-addon.mjs';

/** Toolchains of the platforms that are cross-compiled; the machine's own needs none. */
const platforms = { 'linux-x64': undefined, 'linux-arm64': 'scripts/release/linux-arm64.cmake' };
const here = `${process.platform}-${process.arch}`;
const prebuilds = path.join(root, 'prebuilds');

const { values: flags } = parseArgs({ options: {
  platform: { type: 'string', multiple: true, default: Object.keys(platforms) },
  to: { type: 'string', default: root }, pack: { type: 'boolean', default: true }, dirty: { type: 'boolean', default: false },
}, allowNegative: true });

function fail(problem) {
  console.error(`virtual-kv: ${problem}`);
  process.exit(1);
}

function run(command, args) {
  const { status, stdout, stderr, error } = spawnSync(command, args, { cwd: root, encoding: 'utf8', maxBuffer: 2 ** 28 });
  if (status !== 0) fail(`${command} ${args.join(' ')}\n${stdout ?? ''}${stderr ?? ''}${error?.message ?? ''}`);
  return stdout;
}

/** Runs what takes minutes, and shows on stderr how far it is. */
function runShown(what, command, args) {
  console.error(`virtual-kv: ${what}`);
  const { status, error } = spawnSync(command, args, { cwd: root, stdio: ['ignore', 2, 2] });
  if (status !== 0) fail(`${command} ${args.join(' ')} failed${error === undefined ? '' : `: ${error.message}`}.`);
}

/** Builds the addon of a platform and returns its file. The machine's own is linked from the objects of `npm run build:native`. */
function build(platform) {
  const toolchain = platforms[platform];
  const folder = path.join(root, platform === here ? 'build' : path.join('build-release', platform));
  if (platform !== here) {
    if (toolchain === undefined) fail(`${platform} cannot be cross-compiled on ${here}; make the release on linux-x64.`);
    run('cmake', ['-S', '.', '-B', folder, `-DCMAKE_TOOLCHAIN_FILE=${path.join(root, toolchain)}`, '-DCMAKE_BUILD_TYPE=Release']);
  } else if (!existsSync(path.join(folder, 'CMakeCache.txt'))) {
    fail('build/ was not made by CMake. Install CMake 3.18 or later and run `VKV_BUILD=cmake npm run build:native`.');
  }
  runShown(`compiling the addon for ${platform} …`, 'cmake', ['--build', folder, '--parallel', '--target', 'virtual_kv_release']);
  return path.join(folder, 'release', 'virtual_kv.node');
}

function sha256(file) {
  return createHash('sha256').update(readFileSync(file)).digest('hex');
}

/** Checksums in the format of `sha256sum --check`, which lib/device/load-addon.ts reads too. */
function writeSums() {
  const lines = readdirSync(prebuilds, { withFileTypes: true }).filter((entry) => entry.isDirectory()).map(({ name }) => {
    const file = `${name}/virtual_kv.node`;
    return `${sha256(path.join(prebuilds, file))}  ${file}\n`;
  });
  writeFileSync(path.join(prebuilds, 'SHA256SUMS'), lines.sort().join(''));
}

const unknown = flags.platform.find((platform) => !(platform in platforms));
if (unknown !== undefined) fail(`--platform is ${JSON.stringify(unknown)}. Use one of ${Object.keys(platforms).join(', ')}.`);
if (!flags.dirty && run('git', ['status', '--porcelain']) !== '') fail('there are files that are not committed. Commit them, or pass --dirty.');

// Before what takes long.
const missing = ['cmake', ...flags.platform.some((platform) => platform !== here) ? ['aarch64-linux-gnu-g++'] : []]
  .filter((command) => spawnSync(command, ['--version']).status !== 0);
if (missing.length > 0) {
  fail(`there is no ${missing.join(' and no ')}. On Debian or Ubuntu: apt-get install cmake g++-aarch64-linux-gnu. \`--platform ${here}\` needs CMake only.`);
}
prepare();
rmSync(prebuilds, { recursive: true, force: true });
for (const platform of flags.platform) {
  const built = build(platform);
  const problems = checkAddon(built, platform);
  if (problems.length > 0) fail(`the addon for ${platform} would not run everywhere:\n${problems.join('\n')}`);
  const file = path.join(prebuilds, platform, 'virtual_kv.node');
  mkdirSync(path.dirname(file), { recursive: true });
  copyFileSync(built, file);
  chmodSync(file, 0o644);
  console.log(`prebuilds/${platform}/virtual_kv.node  ${statSync(file).size} bytes`);
}
writeSums();
if (flags.pack) {
  const to = path.resolve(flags.to);
  process.env.VKV_RELEASE = 'true'; // scripts/prepack.mjs
  console.error('virtual-kv: packing …');
  const [packed] = JSON.parse(run('npm', ['pack', '--json', '--silent', '--pack-destination', to]));
  const tarball = path.join(to, packed.filename);
  const sum = sha256(tarball);
  writeFileSync(`${tarball}.sha256`, `${sum}  ${packed.filename}\n`);
  writeFileSync(`${tarball}.json`, `${JSON.stringify(packed, undefined, 2)}\n`);
  console.log(`${tarball}  ${packed.size} bytes, ${packed.unpackedSize} unpacked, SHA-256 ${sum}`);
}
