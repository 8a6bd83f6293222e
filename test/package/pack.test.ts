// The packed package, as another project gets it: what is in the tarball of a release; and installed from it, with the prebuilt
// addon and with one built from source: require, import, types, the test device and the command. `npm run test:package`; needs
// the npm registry, CMake and a C++ compiler.

import { existsSync, readFileSync, readdirSync } from 'node:fs';
import * as path from 'node:path';
import { brotliDecompressSync } from 'node:zlib';

import test from 'ava';

import { Consumer, root } from './consumer.js';
import { makeRelease, type Release } from './release.js';

const builds = [
  { wanted: 'auto', buildTool: 'cmake-js', left: [] },
  { wanted: 'gyp', buildTool: 'node-gyp', left: ['build/Release/virtual_kv.node'] },
] as const;

const program = `
  const cache = new KvCache({
    model: { layers: 2, kvHeads: 2, headDim: 64, dtype: 'float16' }, slots: 4, maxTokens: 4096,
    memoryBudgetBytes: 16 * 2 ** 20, driver: 'host', pageBytes: 65_536,
  });
  const sequence = cache.acquire({ promptTokens: 1000 });
  const batch = cache.createBatch();
  batch.add(sequence, 1000);
  cache.prepare(batch);
  cache.stamp(sequence, 0, 1000, 7);
  cache.commit(batch);
  if (cache.verifyStamp(sequence, 0, 1000, 7) !== 0) throw new Error('other bytes than were written');
  sequence.release();
  cache.close();
  const device = new MockDevice();
  device.driver.close();
  device.assertNoLeaks();
  device.close();
`;

let release: Release;

test.before('npm run release', () => {
  release = makeRelease();
});

test.after.always(() => release.remove());

test('the tarball has what is built, what builds the addon, documents and examples, and nothing else', (t) => {
  const files = release.files.map((file) => file.path);
  const allowed = new RegExp([
    'dist/.*\\.(js|d\\.ts)', 'dist/server/page/page\\.(html|css)', 'prebuilds/(SHA256SUMS|linux-(x64|arm64)/virtual_kv\\.node)', 'native/addon-sources\\.json\\.br', 'kernels/cuda/.*\\.ptx\\.br',
    'scripts/(install|addon-sources|build-addon|build-kernels)\\.cjs', 'docs/[^/]*\\.(md|svg|json)', 'include/virtual_kv\\.h', 'examples/.*\\.(ts|mjs|md|json|csv|jsonl|cc)', 'examples/llama/storyteller/model\\.safetensors', '[^/]+',
  ].map((pattern) => `^${pattern}$`).join('|'));
  t.deepEqual(files.filter((file) => !allowed.test(file)), []);
  const top = files.filter((file) => !file.includes('/')).sort();
  t.deepEqual(top.filter((file) => !/^(CHANGELOG|README)\.md$/.test(file)), ['LICENSE', 'binding.gyp', 'package.json']);
  const sources = readFileSync(path.join(root, 'native', 'sources.txt'), 'utf8').split('\n').filter((line) => /^[^#]/.test(line));
  const wanted = [
    'native/addon-sources.json.br', 'kernels/cuda/kernels.ptx.br', 'include/virtual_kv.h', 'dist/index.js', 'dist/index.d.ts', 'dist/testing.js',
    ...release.platforms.map((platform) => `prebuilds/${platform}/virtual_kv.node`), 'prebuilds/SHA256SUMS',
  ];
  for (const file of wanted) t.true(files.includes(file), file);
  const texts = JSON.parse(brotliDecompressSync(readFileSync(path.join(root, 'native', 'addon-sources.json.br'))).toString()) as Record<string, string>;
  const built = [...sources, 'native/sources.txt', 'native/status.h', 'kernels/cuda/kernels.cu', 'build/node-addon-api/napi.h'];
  t.deepEqual(built.filter((file) => !texts[file]), []);
  t.is(release.files.find((file) => file.path === 'dist/cli/vkv.js')!.mode & 0o111, 0o111, 'the command is executable');
  t.true(release.size < 5 * 2 ** 20, `${release.size} bytes`);
});

test('every link and picture of the package\'s documents leads to a file of the package', (t) => {
  const files = new Set(release.files.map((file) => file.path));
  const folders = new Set([...files].flatMap((file) => file.split('/').map((_, at, parts) => parts.slice(0, at).join('/'))));
  for (const document of [...files].filter((file) => file.endsWith('.md'))) {
    const text = readFileSync(path.join(root, document), 'utf8');
    for (const [, target] of text.matchAll(/\]\(([^)#:\s]+)(?:#[^)]*)?\)/g)) {
      const file = path.posix.join(path.posix.dirname(document), target!).replace(/\/$/, '');
      t.true(files.has(file) || folders.has(file), `${document} → ${target}`);
    }
  }
});

for (const { wanted, buildTool, left } of builds) {
  test.serial(`installed with VKV_BUILD=${wanted}, it works from another project`, (t) => {
    const consumer = new Consumer();
    try {
      consumer.run(
        'npm', ['install', '--no-audit', '--no-fund', '--omit=dev', release.tarball], { VKV_BUILD: wanted });
      t.deepEqual(filesBelow(consumer.folder, 'node_modules/virtual-kv', 'build'), left, 'nothing else is left of a build');

      consumer.write('require.cjs', `
        const { KvCache } = require('virtual-kv');
        const { MockDevice } = require('virtual-kv/testing');
        ${program}
        console.log(Object.keys(require('virtual-kv')).sort().join());`);
      consumer.write('import.mjs', `
        import * as all from 'virtual-kv';
        import { KvCache } from 'virtual-kv';
        import { MockDevice } from 'virtual-kv/testing';
        ${program}
        console.log(Object.keys(all).filter((name) => !['default', '__esModule', 'module.exports'].includes(name)).sort().join());`);
      const required = consumer.run(process.execPath, ['require.cjs']);
      t.true(required.split(',').includes('KvCache'));
      t.is(consumer.run(process.execPath, ['import.mjs']), required, 'import sees every name that require sees');

      const info = JSON.parse(consumer.run('npx', ['--no-install', 'vkv', 'info', '--json'])) as { addon: { buildTool: string } };
      t.is(info.addon.buildTool, buildTool);
      const plan = consumer.run('npx', [
        '--no-install', 'vkv', 'plan', '--layers', '32', '--kv-heads', '8', '--head-dim', '128', '--dtype', 'float16',
        '--slots', '64', '--max-tokens', '8192', '--json']);
      t.is((JSON.parse(plan) as { tokenBytes: number }).tokenBytes, 2048);

      if (wanted !== 'auto') return;
      const installed = path.join(consumer.folder, 'node_modules', 'virtual-kv');
      const mapped = filesBelow(installed, '', 'dist').filter((file) => file.endsWith('.js') && /sourceMappingURL/.test(readFileSync(path.join(installed, file), 'utf8')));
      t.deepEqual(mapped, [], 'no file names a source map, none of which is in the package');
      t.true(consumer.run(process.execPath, [path.join(installed, 'examples', 'quick-start.mjs')]).includes('tokens in'), 'an example runs where it is installed');
      checkAllTypes(consumer);
    } finally {
      consumer.remove();
    }
  });
}

/** Files below `root`/`place`/`folder`, by their path from `root`/`place`; none without the folder. */
function filesBelow(base: string, place: string, folder: string): string[] {
  const full = path.join(base, place, folder);
  if (!existsSync(full)) return [];
  return readdirSync(full, { recursive: true, withFileTypes: true }).filter((entry) => entry.isFile())
    .map((entry) => path.relative(path.join(base, place), path.join(entry.parentPath, entry.name))).sort();
}

/** The oldest and the newest compiler that docs/api.md promises, besides our own. */
const compilers = ['5.2.2', '7.0.2'] as const;

function checkAllTypes(consumer: Consumer): void {
  const source = `
    import { KvCache, type KvCacheOptions, type TensorView } from 'virtual-kv';
    import { LlamaEngine, LlamaTokenizer, type ChatMessage } from 'virtual-kv/llama';
    import { registerMetrics, registerServingMetrics } from 'virtual-kv/prometheus';
    import { ModelServer, type ModelServerOptions } from 'virtual-kv/server';
    import { MockDevice } from 'virtual-kv/testing';
    const options: KvCacheOptions = {
      model: { layers: 1, kvHeads: 1, headDim: 64, dtype: 'float16' }, slots: 1, maxTokens: 1, memoryBudgetBytes: 1,
    };
    // @ts-expect-error -- an option that is not there
    export const wrong: KvCacheOptions = { ...options, maxToken: 1 };
    export function use(device: MockDevice): bigint {
      using cache = new KvCache({ ...options, driver: device.driver });
      const sequence = cache.acquire({ tokens: new Int32Array(3), caching: 'read' });
      const view: TensorView = sequence.view(0);
      return sequence.address(0) + BigInt(view.length);
    }
    export const more = [registerMetrics, registerServingMetrics, LlamaEngine];
    export const messages: readonly ChatMessage[] = [{ role: 'user', content: 'Hi' }];
    export const serve = (options: ModelServerOptions): ModelServer => new ModelServer({ ...options, tokenizer: new LlamaTokenizer('.') });`;
  for (const file of ['types.ts', 'types.mts', 'types.cts']) consumer.write(file, source);
  const others = compilers.map((version) => {
    const folder = new Consumer();
    folder.run('npm', ['install', '--no-audit', '--no-fund', `typescript@${version}`]);
    return folder;
  });
  try {
    for (const compiler of [undefined, ...others.map(({ folder }) => path.join(folder, 'node_modules', 'typescript'))]) {
      consumer.checkTypes('types.ts', { module: 'node16', moduleResolution: 'node16' }, compiler);
      consumer.checkTypes('types.mts', { module: 'node16', moduleResolution: 'node16' }, compiler);
      consumer.checkTypes('types.mts', { module: 'nodenext', moduleResolution: 'nodenext' }, compiler);
      consumer.checkTypes('types.cts', { module: 'nodenext', moduleResolution: 'nodenext' }, compiler);
      consumer.checkTypes('types.ts', { module: 'esnext', moduleResolution: 'bundler' }, compiler);
    }
  } finally {
    for (const folder of others) folder.remove();
  }
}
