// The CUDA kernels' launches, on the simulated device: it holds every launch against the kernel's own rules of grid, block
// and shared memory, checks that all memory is mapped, and does what the kernel would do. Rows are memory of the device.

import { existsSync, readFileSync } from 'node:fs';
import * as path from 'node:path';
import { brotliDecompressSync } from 'node:zlib';

import test, { type ExecutionContext } from 'ava';

import { Kernels, layoutKinds, type RowDtype } from 'virtual-kv';
import { MockDevice, type MockCall, type MockDeviceOptions } from 'virtual-kv/testing';

import { kernelImages } from '#internal/kernels/kernel-image.js';
import { Random } from '#internal/base/random.js';
import { CacheBench } from '../helpers/cache.js';
import { KernelWorld, pageBytes, type WorldOptions } from '../helpers/kernel-world.js';
import { nativeOf } from '../helpers/native-of.js';
import { randomRules } from '../helpers/random-rules.js';
import { refuses } from '../helpers/refuses.js';
import { seedOf } from '../helpers/seed.js';
import { slow } from '../runner/slow.js';
import { scale } from '../runner/tier.js';

const dtypes: readonly RowDtype[] = ['float32', 'float16', 'bfloat16'];
const root = path.resolve(__dirname, '..', '..');

const openDevice = (options: MockDeviceOptions = {}): MockDevice =>
  new MockDevice({ granularityBytes: pageBytes, memoryBytes: 2 ** 30, hasGarbage: true, ...options });

const launchesOf = (device: MockDevice): number => device.callCounts().cuLaunchKernel;

for (const streams of ['immediate', 'manual'] as const) {
  const seed = seedOf(`launches ${streams}`);
  slow('random steps on the simulated device')(`random steps of random shapes match plain attention (${streams} streams, seed ${seed})`, (t) => {
    const random = new Random(seed);
    const pick = <T>(choices: readonly T[]): T => choices[random.integer(choices.length)]!;
    for (let round = 0; round < 15 * scale; round += 1) {
      const dim = pick([1, 13, 32, 64, 80, 128]);
      const [kvHeads, group] = [pick([1, 2, 3]), pick([1, 2, 4, 5, 9])];
      const options: WorldOptions = {
        kvHeads, group, dim, valueDim: pick([dim, dim, 24]), rules: [{}, randomRules(random, kvHeads * group)],
        cacheDtype: pick(dtypes), rowDtype: pick(dtypes), layout: pick(layoutKinds),
        kernels: { workspaceBytes: pick([0, 2 ** 16, 2 ** 20]) },
      };
      const device = openDevice({ streams });
      const world = new KernelWorld(t, device.driver, random, options);
      t.is(world.kernels.target, 'sm_90');
      const members = pick([1, 2, 4]);
      for (let index = 0; index < members; index += 1) world.acquire();
      t.notThrows(() => {
        world.step(Array.from({ length: members }, () => pick([1, 2, 17, 65])), { as: pick(['fastest', 'prefill']) });
        world.step(Array.from({ length: members }, () => pick([0, 1])), { through: pick(['batch', 'arrays']) });
        world.step(Array.from({ length: members }, () => pick([0, 1, 3, 40])), { through: pick(['batch', 'arrays']) });
        if (members > 1) world.copyTokens(0, 1, Math.min(world.lengths[0]!, world.lengths[1]!));
        world.step(Array.from({ length: members }, () => 1));
      }, `round ${round}, ${JSON.stringify(options)}`);
      world.close();
      device.assertNoLeaks();
      device.close();
    }
  });
}

test('a long sequence is split, and its parts are merged by a second launch', (t) => {
  const device = openDevice();
  const world = new KernelWorld(t, device.driver, new Random(1), {
    layers: 1, kvHeads: 1, group: 2, dim: 16, maxTokens: 4096, kernels: { workspaceBytes: pageBytes },
  });
  world.acquire();
  world.acquire();
  world.step([1500, 3]);
  const before = launchesOf(device);
  world.step([1, 1]);
  t.is(launchesOf(device) - before, 3, 'append, decode and merge');
  world.close();
  device.assertNoLeaks();
  device.close();
});

test('one launch appends to, attends to or copies all tensors of many sequences', (t) => {
  const bench = new CacheBench(t, {
    slots: 300, maxTokens: 64, rows: 300, model: { layers: 1, kvHeads: 1, headDim: 16, dtype: 'float16' },
    device: { granularityBytes: pageBytes, memoryBytes: 2 ** 30 },
  });
  const kernels = new Kernels({ cache: bench.cache, workspaceBytes: pageBytes });
  const batch = bench.cache.createBatch();
  const sequences = Array.from({ length: 200 }, () => bench.cache.acquire());
  for (const sequence of sequences) batch.add(sequence, 1);
  bench.cache.prepare(batch);
  // Any mapped memory serves for rows here.
  const rows = sequences[0]!.address(0) + 1024n;
  const count = (call: () => void): number => {
    const before = launchesOf(bench.mock);
    call();
    return launchesOf(bench.mock) - before;
  };
  t.is(count(() => kernels.append(0, batch, rows, rows)), 1);
  t.is(count(() => kernels.decodeAttention(0, batch, rows, rows + 16_384n)), 1);
  t.is(count(() => kernels.copyTokens(sequences.slice(2, 50).map(({ slot }) => (
    { fromSlot: sequences[1]!.slot, fromToken: 0, toSlot: slot, toToken: 0, tokens: 1 })))), 1);
  t.is(count(() => kernels.copyTokens([])), 0);
  bench.cache.commit(batch);
  for (const sequence of sequences) sequence.release();
  kernels.close();
  bench.close();
});

test('rows that are not mapped end the device, as they would a GPU\'s context', (t) => {
  const device = openDevice();
  const world = new KernelWorld(t, device.driver, new Random(1), { kvHeads: 1, group: 1, dim: 8 });
  const sequence = world.cache.acquire();
  const batch = world.cache.createBatch();
  batch.add(sequence, 1);
  world.cache.prepare(batch);
  t.throws(() => world.kernels.append(0, batch, 4096n, 4096n), { code: 'KV_DRIVER_LOST' });
  t.regex(device.misuses()[0]!.rule, /a kernel may use only memory that is mapped/);
  world.kernels.close();
  world.cache.close();
  device.clearMisuses();
  device.close();
});

test('rows before a window or chunk may be unmapped: no launch uses them', (t) => {
  const device = openDevice();
  for (const rules of [{ windowTokens: 40 }, { chunkTokens: 128 }]) {
    const world = new KernelWorld(t, device.driver, new Random(1), {
      layers: 1, kvHeads: 8, group: 1, dim: 64, cacheDtype: 'float16', rules: [rules],
    });
    const sequence = world.acquire();
    const tokensOfPage = pageBytes / (8 * 64 * 2); // 64
    world.step([2 * tokensOfPage]);
    world.step([1], { as: 'prefill' });
    world.step([tokensOfPage]);
    // Tokens from 154 on are seen of the first, from 128 on of the second: two pages of K and of V are not needed any more.
    const driver = nativeOf(device.driver);
    const unneeded = world.cache.tensors.flatMap(({ index }) => [0, pageBytes].map((at) => sequence.address(index) + BigInt(at)));
    for (const address of unneeded) driver.unmap(address, pageBytes); // behind the cache
    world.step([1]);
    world.step([3]);
    world.step([1], { as: 'prefill' });
    t.deepEqual(device.misuses(), []);
    const pages = unneeded.map((address) => {
      const page = driver.createPage(pageBytes, address);
      driver.map(address, pageBytes, page);
      driver.setAccess(address, pageBytes);
      return page;
    });
    world.close();
    for (const page of pages) driver.releasePage(page, pageBytes);
  }
  device.assertNoLeaks();
  device.close();
});

test('a device does not take head dims beyond its kernels', (t) => {
  const bench = new CacheBench(t, {
    device: { granularityBytes: pageBytes }, model: { layers: 1, kvHeads: 1, headDim: 257, dtype: 'float16' },
  });
  refuses(t, () => new Kernels({ cache: bench.cache }),
    'KV_INVALID_OPTION', { owner: 'Kernels', option: 'cache', received: 257 });
  bench.close();
});

test('on a device only addresses are taken for rows and sinks', (t) => {
  const device = openDevice();
  const world = new KernelWorld(t, device.driver, new Random(1), { kvHeads: 1, group: 1, dim: 8 });
  const batch = world.cache.createBatch();
  batch.add(world.cache.acquire(), 1);
  world.cache.prepare(batch);
  refuses(t, () => world.kernels.append(0, batch, new Float32Array(8), new Float32Array(8)),
    'KV_INVALID_OPTION', { option: 'keys', reason: 'type' });
  refuses(t, () => new Kernels({ cache: world.cache, attention: { sinks: Float32Array.of(1) } }),
    'KV_INVALID_OPTION', { option: 'attention.sinks', reason: 'type' });
  world.cache.discard(batch);
  world.kernels.close();
  world.cache.close();
  device.close();
});

// Opening takes a workspace; wherever that fails, nothing stays.
for (const call of ['cuDeviceGetAttribute', 'cuMemAddressReserve', 'cuMemCreate', 'cuMemMap', 'cuMemSetAccess'] as const) {
  test(`opening leaves nothing behind when ${call} fails`, (t) => {
    const bench = new CacheBench(t, { device: { granularityBytes: pageBytes } });
    new Kernels({ cache: bench.cache }).close(); // the module stays
    for (const nth of [1, 2]) {
      bench.mock.failCall(call satisfies MockCall, { nth });
      const before = bench.mock.leaks();
      try {
        new Kernels({ cache: bench.cache, workspaceBytes: 2 * pageBytes }).close();
      } catch (error) {
        t.regex((error as { code: string }).code, /^KV_(DRIVER_CALL_FAILED|OUT_OF_)/);
      }
      t.deepEqual(bench.mock.leaks(), before);
      bench.mock.clearFailures();
    }
    bench.close();
  });
}

test('a kernel that cannot be launched is the driver\'s error', (t) => {
  const bench = new CacheBench(t, { device: { granularityBytes: pageBytes } });
  const kernels = new Kernels({ cache: bench.cache, workspaceBytes: 0 });
  const sequence = bench.cache.acquire();
  bench.prepare(sequence, 1);
  const spans = { slots: Int32Array.of(sequence.slot), lengths: Int32Array.of(0), tokens: Int32Array.of(1) };
  const rows = sequence.address(1);
  bench.mock.failCall('cuLaunchKernel');
  refuses(t, () => kernels.append(0, spans, rows, rows), 'KV_DRIVER_CALL_FAILED', { call: 'cuLaunchKernel' });
  bench.discard();
  sequence.release();
  kernels.close();
  bench.close();
});

test('with manual streams a kernel runs when its stream is completed', (t) => {
  const device = openDevice({ streams: 'manual' });
  const world = new KernelWorld(t, device.driver, new Random(1), { kvHeads: 1, group: 1, dim: 8 });
  const sequence = world.acquire();
  world.step([5]);
  const spans = { slots: Int32Array.of(sequence.slot), lengths: Int32Array.of(4), tokens: Int32Array.of(1) };
  const row = sequence.address(1) + 4096n;
  world.kernels.decodeAttention(0, spans, row, row + 64n);
  t.is(device.pendingWork, 1);
  device.completeAll();
  t.is(device.pendingWork, 0);
  world.close();
  device.assertNoLeaks();
  device.close();
});

/** PTX as it is kept, which says by its last line that it was made from the sources as they are. */
function freshPtx(t: ExecutionContext, image: string, architecture: number): readonly string[] {
  const ptx = brotliDecompressSync(readFileSync(path.join(root, `${image}.ptx.br`))).toString();
  // eslint-disable-next-line @typescript-eslint/no-require-imports
  const { sourceHash } = require(path.join(root, 'scripts', 'build-kernels.cjs')) as { sourceHash(image: string): string };
  t.true(ptx.endsWith(`// sources ${sourceHash(image)}\n`), 'run `npm run build:kernels -- --ptx` after changing a kernel');
  t.regex(ptx, new RegExp(`^\\.version 7\\.0\n\\.target sm_${architecture}\n`));
  return [...ptx.matchAll(/\.entry (\w+)/g)].map((match) => match[1]!).sort();
}

test('so is the PTX of the kernel for side tensors', (t) => {
  t.deepEqual(freshPtx(t, 'kernels/cuda/scatter', 75), ['vkv_scatter']);
});

for (const [image, architecture] of [['kernels', 75], ['kernels-sm80', 80]] as const) {
  test(`the PTX that comes with the package for sm_${architecture} is made from these sources, and has every kernel`, (t) => {
    const entries = freshPtx(t, `kernels/cuda/${image}`, architecture);
    const wanted = ['f32', 'f16', 'bf16'].flatMap((type) => [
      ...[64, 128].flatMap((dim) => [1, 4, 8].map((heads) => `vkv_decode_${type}_d${dim}_h${heads}`)),
      `vkv_decode_${type}_d256_h1`, `vkv_decode_${type}_d256_h4`, `vkv_decode_${type}_any`,
      `vkv_prefill_${type}_r16`, `vkv_prefill_${type}_r32`, ...[1, 2, 4, 8].map((rows) => `vkv_multiply_${type}_r${rows}`),
    ]);
    const tiles = ['f16', 'bf16'].flatMap((type) => [64, 128].map((dim) => `vkv_prefill_${type}_d${dim}`));
    const others = ['append', 'copy', 'merge', 'normalize', 'rotate', 'gate', 'gather', 'narrow', 'bias', 'cap'].map((name) => `vkv_${name}`);
    t.deepEqual(entries, [...wanted, ...tiles, ...others].sort());
  });
}

const isPtx = process.env['VKV_KERNELS'] === undefined && !existsSync(path.join(root, 'build', 'Release', 'kernels.fatbin'));
const withPtx = isPtx ? test : test.skip;
withPtx(`a GPU gets the newest PTX that it takes${isPtx ? '' : ': there is another image'}`, (t) => {
  const targetsFor = (computeCapability: number): readonly (string | undefined)[] => kernelImages(computeCapability)
    .map(({ read }) => /\.target (\w+)/.exec(Buffer.from(read()).toString('latin1', 0, 1000))?.[1]);
  t.deepEqual(targetsFor(75), ['sm_75']);
  for (const computeCapability of [80, 86, 90, 100]) t.deepEqual(targetsFor(computeCapability), ['sm_80', 'sm_75']);
});

test('the PTX of gpu-check\'s block-table kernels is made from these sources', (t) => {
  t.deepEqual(freshPtx(t, 'scripts/gpu/block-table', 80), [1, 4, 8].map((heads) => `vkv_block_table_f16_d128_h${heads}`));
});
