// The packed package, as another project gets it: what is in the tarball; and installed from it, once built by each build
// tool: require, import, types, the test device and the command. `npm run test:package`; needs the npm registry.

import { spawnSync } from 'node:child_process';
import { readFileSync } from 'node:fs';
import * as path from 'node:path';

import test from 'ava';

import { Consumer, root } from './consumer.js';

interface PackedTarball {
  readonly filename: string;
  readonly size: number;
  readonly files: readonly { readonly path: string; readonly mode: number }[];
}

const hasCmake = spawnSync('cmake', ['--version']).status === 0;
const builds = [
  { wanted: 'auto', buildTool: hasCmake ? 'cmake-js' : 'node-gyp' },
  { wanted: 'gyp', buildTool: 'node-gyp' },
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

let packed: PackedTarball;
let packFolder: Consumer;

test.before('npm pack', () => {
  packFolder = new Consumer();
  const { status, stdout, stderr } = spawnSync(
    'npm', ['pack', '--json', '--ignore-scripts', '--pack-destination', packFolder.folder], { cwd: root, encoding: 'utf8' });
  if (status !== 0) throw new Error(stderr);
  packed = (JSON.parse(stdout) as PackedTarball[])[0]!;
});

test.after.always(() => packFolder.remove());

test('the tarball has what is built and what builds the addon, and nothing else', (t) => {
  const files = packed.files.map((file) => file.path);
  const allowed = /^(dist\/.*\.(js|d\.ts)|native\/.*\.(cc|h|txt)|kernels\/.*|scripts\/(install|build-kernels)\.cjs|[^/]+)$/;
  t.deepEqual(files.filter((file) => !allowed.test(file)), []);
  const top = files.filter((file) => !file.includes('/')).sort();
  t.deepEqual(top.filter((file) => !/^(CHANGELOG|README)\.md$/.test(file)), ['CMakeLists.txt', 'LICENSE', 'binding.gyp', 'package.json']);
  const sources = readFileSync(path.join(root, 'native', 'sources.txt'), 'utf8').split('\n').filter((line) => /^[^#]/.test(line));
  for (const file of [...sources, 'native/sources.txt', 'native/status.h', 'kernels/cuda/kernels.ptx.br', 'dist/index.js', 'dist/index.d.ts', 'dist/testing.js']) {
    t.true(files.includes(file), file);
  }
  t.is(packed.files.find((file) => file.path === 'dist/cli/vkv.js')!.mode & 0o111, 0o111, 'the command is executable');
  t.true(packed.size < 1.25 * 2 ** 20, `${packed.size} bytes`);
});

for (const { wanted, buildTool } of builds) {
  test.serial(`installed with VKV_BUILD=${wanted}, it works from another project`, (t) => {
    const consumer = new Consumer();
    try {
      const tarball = path.join(packFolder.folder, packed.filename);
      consumer.run(
        'npm', ['install', '--no-audit', '--no-fund', '--omit=dev', tarball], { VKV_BUILD: wanted, VKV_FATBIN: 'skip' });

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

      if (wanted === 'auto') checkAllTypes(consumer);
    } finally {
      consumer.remove();
    }
  });
}

/** The oldest and the newest compiler that docs/api.md promises, besides our own. */
const compilers = ['5.2.2', '7.0.2'] as const;

function checkAllTypes(consumer: Consumer): void {
  const source = `
    import { KvCache, type KvCacheOptions, type TensorView } from 'virtual-kv';
    import { registerMetrics } from 'virtual-kv/prometheus';
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
    export const more = registerMetrics;`;
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
