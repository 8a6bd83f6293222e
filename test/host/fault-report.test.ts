// What VKV_DEBUG=1 says of native code that writes where there is no memory. Each case is a process of its own, which ends by it.
// Slow: it starts processes.

import { spawnSync } from 'node:child_process';

import test from 'ava';

/** Writes floats to an address, as native code does, in a cache with the given tokens prepared; `spoil` is an expression for the address. */
function run(spoil: string, environment: Readonly<Record<string, string>>): { signal: string | null; status: number | null; stderr: string } {
  const program = `
    const { DenseKernels, KvCache } = require('virtual-kv');
    const cache = new KvCache({
      model: { layers: 3, kvHeads: 2, headDim: 64, dtype: 'float32' }, driver: 'host', slots: 4, maxTokens: 4096, pageBytes: 65536,
      memoryBudgetBytes: 2 ** 24, mapper: 'off', layout: ${JSON.stringify(environment['LAYOUT'] ?? 'per-layer')},
    });
    const other = new KvCache({ model: { layers: 1, kvHeads: 1, headDim: 64, dtype: 'float32' }, driver: cache.driver, slots: 1, maxTokens: 64, pageBytes: 65536, memoryBudgetBytes: 2 ** 20 });
    other.close();
    cache.acquire();
    const sequence = cache.acquire();
    const batch = cache.createBatch();
    batch.add(sequence, 100);
    cache.prepare(batch);
    const { key, value } = cache.layer(1);
    const at = (tensor, token) => tensor.addressOf(sequence) + BigInt(4 * token * tensor.strides.token);
    const write = (address) => new DenseKernels({ threads: 1 }).gate(new Float32Array(4), new Float32Array(4), 4, address);
    write(at(key, 99)); // it has memory
    console.error('slot', sequence.slot);
    write(${spoil});
  `;
  const { signal, status, stderr } = spawnSync(process.execPath, ['-e', program], { cwd: __dirname, encoding: 'utf8', env: { ...process.env, ...environment } });
  return { signal, status, stderr };
}

/** What a program says of a write to `token` of the last layer, which sees the end of 150 tokens, in rows of 64. */
function runSliding(sets: string, token: number): { signal: string | null; stderr: string } {
  const program = `
    const { DenseKernels, KvCache } = require('virtual-kv');
    const cache = new KvCache({
      model: { layers: 3, kvHeads: 2, headDim: 128, dtype: 'float32', layerSets: ${sets} }, driver: 'host', slots: 4, maxTokens: 4096,
      pageBytes: 65536, memoryBudgetBytes: 2 ** 24, mapper: 'off', prefixCache: 'off',
    });
    cache.acquire();
    const sequence = cache.acquire();
    const batch = cache.createBatch();
    batch.add(sequence, 150);
    cache.prepare(batch);
    cache.commit(batch);
    const { key } = cache.layer(2);
    const write = (token) => new DenseKernels({ threads: 1 })
      .gate(new Float32Array(4), new Float32Array(4), 4, key.addressOf(sequence) + BigInt(4 * token * key.strides.token));
    write(149);
    write(${token});
  `;
  const { signal, stderr } = spawnSync(process.execPath, ['-e', program], { cwd: __dirname, encoding: 'utf8', env: { ...process.env, VKV_DEBUG: '1' } });
  return { signal, stderr };
}

const isWithoutSanitizer = process.env['VKV_TEST_PRELOAD'] === undefined; // which has a handler of its own
const faultTest = isWithoutSanitizer ? test : test.skip;

for (const [layout, mapped] of [['per-layer', 128], ['fused', 106]] as const) {
  faultTest(`a write behind the mapped tokens is named, and ends the process as before [${layout}]`, (t) => {
    const { signal, stderr } = run('at(value, 700)', { VKV_DEBUG: '1', LAYOUT: layout });
    t.is(signal, 'SIGSEGV');
    t.regex(stderr, new RegExp(`^virtual-kv: native code wrote to 0x[0-9a-f]+, where there is no memory: \`cache\\.tensors\\[3\\]\`, slot 1, token 700\\. ` +
      `Slot 1 has memory for ${mapped} tokens\\. Call \`cache\\.prepare\``, 'm'));
  });
}

const slidingSets = {
  window: "[{ kind: 'full', layers: [0, 1], layout: 'per-layer' }, { kind: 'window', layers: [2], windowTokens: 8, layout: 'per-layer' }]",
  chunk: "[{ kind: 'window', layers: [0, 1], windowTokens: 9 }, { kind: 'chunk', layers: [2], chunkTokens: 70, layout: 'per-layer' }]",
} as const;

for (const [kind, sets] of Object.entries(slidingSets)) {
  for (const token of [20, 700]) {
    faultTest(`a write outside of what a layer set maps names the set and its tokens [${kind}, token ${token}]`, (t) => {
      const { signal, stderr } = runSliding(sets, token);
      t.is(signal, 'SIGSEGV');
      t.regex(stderr, new RegExp(`\`cache\\.tensors\\[4\\]\`, slot 1, token ${token}\\. Slot 1 has memory for tokens \\[128, 192\\) in ` +
        '`cache\\.layout\\.sets\\[1\\]`, .*Call `cache\\.prepare`.*`sequence\\.firstToken\\(4\\)`'));
    });
  }
}

faultTest('a write to a slot without a sequence is named', (t) => {
  const { signal, stderr } = run('key.address + BigInt(4 * 3 * key.strides.slot)', { VKV_DEBUG: '1' });
  t.is(signal, 'SIGSEGV');
  t.regex(stderr, /`cache\.tensors\[2\]`, slot 3, token 0\. .* 0 tokens/);
});

faultTest('other faults, and those of a process that did not ask, are left as they were', (t) => {
  for (const [spoil, environment] of [['16n', { VKV_DEBUG: '1' }], ['at(key, 700)', { VKV_DEBUG: '' }]] as const) {
    const { signal, stderr } = run(spoil, environment);
    t.is(signal, 'SIGSEGV', spoil);
    t.regex(stderr, /slot 1/);
    t.notRegex(stderr, /virtual-kv/);
  }
});
