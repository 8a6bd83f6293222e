// What the cache writes for native engines, read by a C++ program with include/virtual_kv.h.

import { mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import * as path from 'node:path';

import test from 'ava';

import { dtypes, layoutKinds, type KvCache } from 'virtual-kv';

import { cacheTest } from '../helpers/cache.js';
import { hasCompiler, runProbe } from '../helpers/native-probe.js';
import { refuses } from '../helpers/refuses.js';

const probeTest = hasCompiler ? test : test.skip;
const roles = ['key', 'value', 'latent'];

/** The lines of a C++ program that reads them. */
function read(tensors: BigInt64Array, count: number, sequences: Int32Array, sequenceCount: number): readonly (readonly bigint[])[] {
  const folder = mkdtempSync(path.join(tmpdir(), 'vkv-structs-'));
  try {
    const file = path.join(folder, 'structs');
    const bytes = (array: BigInt64Array | Int32Array, size: number): Buffer => Buffer.from(array.buffer, array.byteOffset, size);
    writeFileSync(file, Buffer.concat([bytes(tensors, 64 * count), bytes(sequences, 16 * sequenceCount)]));
    const lines = runProbe('structs_probe', [file, String(count), String(sequenceCount)]);
    return lines.map((line) => line.split(' ').map(BigInt));
  } finally {
    rmSync(folder, { recursive: true });
  }
}

/** The same, from the cache's objects. */
function tensorLines({ tensors }: KvCache): bigint[][] {
  return tensors.flatMap(({ address, strides, layer, role, heads, dim, dtype, shape }) => {
    const { slotBytes, tokenBytes, headBytes, elementBytes } = strides;
    const numbers = [
      slotBytes / elementBytes, tokenBytes / elementBytes, headBytes / elementBytes, layer, roles.indexOf(role), heads, dim,
      dtypes.indexOf(dtype), elementBytes, shape[0], shape[1],
    ];
    return [[address, ...numbers.map(BigInt)], [address + BigInt(2 * slotBytes + 3 * tokenBytes + headBytes)]];
  });
}

const shapes = [
  ...layoutKinds.map((layout) => [layout, { model: { layers: 3, kvHeads: 4, headDim: 64, dtype: 'bfloat16' }, layout }] as const),
  ['MLA', { model: { layers: 2, attention: 'latent', latentDim: 64, dtype: 'float8' } }] as const,
] as const;
for (const [name, options] of shapes) {
  cacheTest(`a C++ engine reads the tensors and sequences that the cache writes [${name}]`, options, (t, bench) => {
    const { cache } = bench;
    const tensors = new BigInt64Array(8 * cache.tensors.length + 1).subarray(1);
    t.is(cache.writeTensors(tensors), cache.tensors.length);
    const [first, second] = [bench.sequenceOf(5), cache.acquire()];
    const batch = bench.batchOf([second, 7], [first, 2]);
    cache.prepare(batch);
    const sequences = new Int32Array(9).subarray(1);
    t.is(cache.writeSequences(batch, sequences), 2);
    const expected = [[second.slot, 0, 7, 0], [first.slot, 5, 2, 7]];
    t.deepEqual(read(tensors, cache.tensors.length, sequences, 2), [...tensorLines(cache), ...expected.map((line) => line.map(BigInt))]);
    cache.discard(batch);
    for (const sequence of [first, second]) sequence.release();
  }, probeTest as typeof test);
}

cacheTest("the sequences of a scheduler's pass are written as they are", {}, (t, { cache }) => {
  const pass = {
    length: 2, slots: Int32Array.of(3, 1, 9), positions: Int32Array.of(10, 0, 9), tokenCounts: Int32Array.of(1, 4, 9), starts: Int32Array.of(0, 1, 9),
  };
  const into = new Int32Array(9);
  t.is(cache.writeSequences(pass, into), 2);
  t.deepEqual([...into], [3, 10, 1, 0, 1, 0, 4, 1, 0]);
});

cacheTest('arrays without room, and batches that are not prepared, are refused, and nothing is written', {}, (t, bench) => {
  const { cache } = bench;
  const short = new BigInt64Array(8 * cache.tensors.length - 1);
  refuses(t, () => cache.writeTensors(short), 'KV_INVALID_OPTION', { received: short.length });
  t.true(short.every((word) => word === 0n));
  t.throws(() => cache.writeTensors(new Int32Array(64) as never), { code: 'KV_INVALID_OPTION' });
  const sequence = cache.acquire();
  const batch = bench.batchOf([sequence, 1]);
  t.throws(() => cache.writeSequences(batch, new Int32Array(4)), { code: 'KV_BATCH_STATE' });
  cache.prepare(batch);
  refuses(t, () => cache.writeSequences(batch, new Int32Array(3)), 'KV_INVALID_OPTION', { received: 3 });
  t.throws(() => cache.writeSequences({ length: 2, slots: new Int32Array(1) } as never, new Int32Array(8)), { code: 'KV_INVALID_OPTION' });
  cache.discard(batch);
  sequence.release();
});
