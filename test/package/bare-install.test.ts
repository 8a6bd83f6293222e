// The package where there is Node.js and npm and nothing else: installed from the tarball without the network, and used; and bundled
// by esbuild, or copied. How much it installs, and how long that takes, is bounded here.

import { execFileSync } from 'node:child_process';
import { chmodSync, cpSync, existsSync, mkdirSync, readFileSync, readdirSync, rmSync, statSync } from 'node:fs';
import * as path from 'node:path';

import test from 'ava';

import { BareRoot } from './bare-root.js';
import { Consumer, root } from './consumer.js';
import { here, makeRelease, type Release } from './release.js';

const program = `
  const cache = new KvCache({
    model: { layers: 2, kvHeads: 2, headDim: 64, dtype: 'float16' }, slots: 4, maxTokens: 4096,
    memoryBudgetBytes: 16 * 2 ** 20, driver: 'host', pageBytes: 65_536,
  });
  const sequence = cache.acquire({ promptTokens: 1000 });
  const batch = cache.createBatch();
  batch.add(sequence, 1000);
  cache.prepare(batch);
  cache.commit(batch);
  console.log(sequence.length, 'tokens');
  cache.close();
`;
const required = `const { KvCache } = require('virtual-kv');${program}`;
const imported = `import { KvCache } from 'virtual-kv';${program}`;

let release: Release;
let consumer: Consumer;
const cache = (): string => path.join(consumer.folder, 'npm-cache');
const npm = ['--no-audit', '--no-fund'];

/** Packages that docs/serve.md says to install for serving. */
const servingPackages = (): string[] => /^npm install virtual-kv (.*)$/m.exec(readFileSync(path.join(root, 'docs', 'serve.md'), 'utf8'))![1]!.split(' ');

test.before('npm run release, installed once with the registry', () => {
  release = makeRelease();
  consumer = new Consumer();
  consumer.write('bin/nvcc', '#!/bin/sh\necho called >> "$(dirname "$0")/called"\n');
  chmodSync(path.join(consumer.folder, 'bin', 'nvcc'), 0o755);
  consumer.run('npm', ['install', ...npm, '--cache', cache(), release.tarball], { PATH: `${path.join(consumer.folder, 'bin')}:${process.env['PATH']}` });
  // What a new user installs next, for the cache only.
  const user = new Consumer();
  user.run('npm', ['install', ...npm, '--cache', cache(), ...servingPackages(), 'openai']);
  user.remove();
});

test.after.always(() => {
  release.remove();
  consumer.remove();
});

test.serial('without a compiler, CMake and python it is installed, and works', (t) => {
  const bare = new BareRoot();
  try {
    t.log(`isolated by ${bare.isolation}`);
    for (const tool of ['cc', 'c++', 'g++', 'clang++', 'make', 'ninja', 'cmake', 'python3', 'nvcc']) {
      t.throws(() => bare.run(`${tool} --version`), { message: /exit 127/ }, tool);
    }
    bare.add(release.tarball, 'work/package.tgz');
    bare.add(cache(), 'npm-cache');
    const registry = execFileSync('npm', ['config', 'get', 'registry'], { encoding: 'utf8' }).trim();
    const { seconds, stdout } = bare.run(
      "echo '{}' > package.json && npm install --offline --no-audit --no-fund --cache {root}/npm-cache ./package.tgz",
      '/work', { npm_config_registry: registry, npm_config_update_notifier: 'false' });
    t.log(`installed in ${seconds.toFixed(1)} s`);
    t.true(Number(/added (\d+) packages/.exec(stdout)?.[1]) <= 10, stdout);

    const run = (line: string): string => bare.run(line).stdout;
    t.is(run(`node -e "${required.replaceAll('\n', ' ')}"`), '1000 tokens\n');
    t.is(run(`node --input-type=module -e "${imported.replaceAll('\n', ' ')}"`), '1000 tokens\n');
    const info = JSON.parse(run('npx --offline vkv info --json')) as { addon: { isAvailable: boolean } };
    t.true(info.addon.isAvailable);
    t.regex(run('npx --offline vkv plan --layers 32 --kv-heads 8 --head-dim 128 --dtype float16 --tokens 8192'), /per-layer/);
  } finally {
    bare.remove();
  }
});

test.serial('a new user has an answer: installs, runs fifteen lines, serves, asks with the openai client, looks at the page', (t) => {
  const bare = new BareRoot();
  try {
    bare.add(release.tarball, 'work/package.tgz');
    bare.add(cache(), 'npm-cache');
    bare.add(path.join(root, 'scripts', 'new-user.mjs'), 'work/new-user.mjs');
    const registry = execFileSync('npm', ['config', 'get', 'registry'], { encoding: 'utf8' }).trim();
    const { stdout } = bare.run('node new-user.mjs package.tgz --offline --cache {root}/npm-cache', '/work', { npm_config_registry: registry });
    t.log(stdout);
    for (const part of ['fifteen lines', 'npx vkv plan', 'npx vkv replay', 'openai', 'vkv serve', 'client of docs/serve.md', 'live page', 'vkv top', 'ended with 0']) t.true(stdout.includes(part), part);
  } finally {
    bare.remove();
  }
});

test.serial('a refused system call has its name in a prebuilt addon, which older systems can load', (t) => {
  const opens = `const { diskTier, KvCache } = require('virtual-kv');
    const cache = new KvCache({
      model: { layers: 1, kvHeads: 1, headDim: 64, dtype: 'float16' }, slots: 1, maxTokens: 1024, memoryBudgetBytes: 2 ** 24, driver: 'host',
      prefixCache: { modelId: 'm', tiers: [diskTier({ directory: '/proc/nowhere', bytes: 1e8 })] },
    });
    cache.prefixes.tiers.ready().catch((error) => console.log(error.code, error.details.statusName)).finally(() => cache.shutdown());`;
  t.is(consumer.run(process.execPath, ['-e', opens]), 'KV_STORE_UNAVAILABLE ENOENT\n');
});

test.serial('installed where nvcc is, it compiles nothing', (t) => {
  t.false(existsSync(path.join(consumer.folder, 'bin', 'called')));
  consumer.run('sh', ['-c', 'PATH="$PWD/bin:$PATH" npx --offline vkv build-kernels || true']);
  t.true(existsSync(path.join(consumer.folder, 'bin', 'called')), 'it would have been found');
});

test.serial('it installs ten packages at most, and less than 8.5 MB for a platform', (t) => {
  const modules = path.join(consumer.folder, 'node_modules');
  const { packages } = JSON.parse(readFileSync(path.join(modules, '.package-lock.json'), 'utf8')) as { packages: object };
  t.true(Object.keys(packages).length <= 10, Object.keys(packages).join(', '));
  const bytes = readdirSync(modules, { recursive: true, withFileTypes: true }).filter((entry) => entry.isFile())
    .map((entry) => path.join(entry.parentPath, entry.name))
    .filter((file) => !/prebuilds\/linux-/.test(file) || file.includes(`prebuilds/${here}/`))
    .reduce((sum, file) => sum + statSync(file).size, 0);
  t.true(bytes < 8.5e6, `${bytes} bytes`);
  t.log(`${(bytes / 1e6).toFixed(2)} MB, ${Object.keys(packages).length} packages`);
});

test.serial('a folder of the package that was copied finds its own addon', (t) => {
  const copy = path.join(consumer.folder, 'copied');
  cpSync(path.join(consumer.folder, 'node_modules', 'virtual-kv'), copy, { recursive: true });
  consumer.write('copied.cjs', required.replace("'virtual-kv'", "'./copied'"));
  t.is(consumer.run(process.execPath, ['copied.cjs']), '1000 tokens\n');
  rmSync(path.join(copy, 'prebuilds'), { recursive: true });
  t.throws(() => consumer.run(process.execPath, ['copied.cjs']), { message: /copied\/prebuilds\/.*no such file/ }, 'it was no other one');
});

/** The commands of docs/install.md that bundle, each with the shell lines below it in its block. */
const recipes = [...readFileSync(path.join(root, 'docs', 'install.md'), 'utf8').matchAll(/```sh\n(npx esbuild .*?)```/gs)].map((match) => match[1]!);

for (const [at, recipe] of recipes.entries()) {
  const flags = ['--external', '--format=esm'].filter((flag) => recipe.includes(flag)).join(' ') || 'no more flags';
  test.serial(`bundled as docs/install.md says, with ${flags}, it finds the addon (${at + 1})`, (t) => {
    consumer.write('app.js', required);
    consumer.write('app.mjs', imported);
    const out = path.join(consumer.folder, 'out');
    rmSync(out, { recursive: true, force: true });
    const esbuild = path.join(root, 'node_modules', '.bin', 'esbuild');
    consumer.run('sh', ['-ec', recipe.replaceAll('npx esbuild', esbuild)]);
    const isExternal = recipe.includes('--external');
    // The block of ES modules leaves the copying to the one before it.
    if (!isExternal && !existsSync(path.join(out, 'prebuilds'))) cpSync(path.join(consumer.folder, 'node_modules/virtual-kv/prebuilds'), path.join(out, 'prebuilds'), { recursive: true });
    const elsewhere = new Consumer();
    try {
      // A bundle needs nothing around it; an external package is deployed with it.
      cpSync(out, path.join(elsewhere.folder, 'out'), { recursive: true });
      if (isExternal) cpSync(path.join(consumer.folder, 'node_modules'), path.join(elsewhere.folder, 'node_modules'), { recursive: true });
      const [file] = readdirSync(out).filter((name) => name.startsWith('app.'));
      t.is(elsewhere.run(process.execPath, [`out/${file}`]), '1000 tokens\n');
    } finally {
      elsewhere.remove();
    }
  });
}

test('docs/install.md has a command for a package left out, one for a bundle, and one for an ES module', (t) => {
  t.is(recipes.length, 3);
});

test.serial('on macOS and Windows the install script ends well and builds nothing', (t) => {
  const installed = path.join(consumer.folder, 'node_modules', 'virtual-kv');
  for (const platform of ['darwin', 'win32']) {
    consumer.write('fake.cjs', `Object.defineProperty(process, 'platform', { value: '${platform}' });`);
    const said = consumer.run(process.execPath, ['--require', './fake.cjs', path.join(installed, 'scripts', 'install.cjs')]);
    t.regex(said, /native addon for Linux only/);
    t.false(existsSync(path.join(installed, 'build')));
  }
});

test.serial('where no prebuilt addon fits and the tools to build one are missing, the install fails and names them', (t) => {
  const broken = path.join(consumer.folder, 'broken');
  cpSync(path.join(consumer.folder, 'node_modules', 'virtual-kv'), broken, { recursive: true });
  rmSync(path.join(broken, 'prebuilds', here), { recursive: true });
  const tools = path.join(consumer.folder, 'no-tools');
  mkdirSync(tools);
  t.throws(() => consumer.run(process.execPath, [path.join(broken, 'scripts', 'install.cjs')], { PATH: tools }), {
    message: /no prebuilt addon .* a C\+\+20 compiler and make and python3 is missing.*VKV_BUILD=skip/s,
  });
  consumer.run(process.execPath, [path.join(broken, 'scripts', 'install.cjs')], { PATH: tools, VKV_BUILD: 'skip' });
});
