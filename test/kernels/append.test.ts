// Append and copyTokens: exactly the bytes they should write, and no other.

import test, { type ExecutionContext } from 'ava';

import { Driver, Kernels, KvCache, layoutKinds, onDemand, type Instructions, type KvCacheOptions, type ModelShape } from 'virtual-kv';

import { native } from '#internal/device/native.js';
import { Random } from '#internal/base/random.js';
import { bitsOf, roundTo, valueOf } from '../helpers/floats.js';
import { seedOf } from '../helpers/seed.js';

const instructions = native().cpuInstructions as readonly Instructions[];
const model: ModelShape = { layers: 2, kvHeads: 2, headDim: 5, valueHeadDim: 3, dtype: 'float16' };

function withCache(
  t: ExecutionContext, options: Partial<KvCacheOptions>, body: (cache: KvCache) => void,
): void {
  const driver = Driver.open('host');
  const cache = new KvCache({
    model, slots: 3, maxTokens: 2000, memoryBudgetBytes: 64 * 2 ** 20, pageBytes: 65_536, growth: onDemand(), mapper: 'off',
    ...options, driver,
  });
  body(cache);
  cache.close();
  t.is(driver.memory().livePages, 0);
  driver.close();
}

// Every kind of number there is: ordinary, subnormal, half-way between two, too large, infinite, NaN, both zeros.
const special = [
  0, -0, 1, -1, 1 / 3, 65_504, 65_519, 65_520, -70_000, 1e30, 2 ** -14, 2 ** -15, 2 ** -24, 2 ** -25, 1.5 * 2 ** -25, 3 * 2 ** -25,
  1 + 2 ** -11, 1 + 3 * 2 ** -11, 1 + 2 ** -8, 1 + 3 * 2 ** -8, 2 ** -126, 2 ** -133, 2 ** -134, 1.5 * 2 ** -134, 3.4e38, Infinity,
  -Infinity,
].map(Math.fround);

for (const vectors of instructions) {
  for (const dtype of ['float16', 'bfloat16'] as const) {
    test(`every kind of number is rounded to ${dtype} to nearest, ties to even, with ${vectors}`, (t) => {
      const random = new Random(1);
      // Long enough for whole vectors and a rest.
      const numbers = [...special, ...Array.from({ length: 1003 }, () => Math.fround(random.normal() * 2 ** random.integer(20)))];
      const shape: ModelShape = { layers: 1, kvHeads: 1, headDim: numbers.length, dtype };
      withCache(t, { model: shape }, (cache) => {
        using kernels = new Kernels({ cache, instructions: vectors });
        const sequence = cache.acquire();
        const batch = cache.createBatch();
        batch.add(sequence, 1);
        cache.prepare(batch);
        kernels.append(0, batch, Float32Array.from(numbers), new Float32Array(numbers.length).fill(NaN));
        const expected = numbers.map((number) => {
          const rounded = roundTo(dtype, number);
          return Number.isFinite(rounded) ? bitsOf(dtype, rounded)
            : (dtype === 'float16' ? 0x7c00 : 0x7f80) | (rounded < 0 ? 0x8000 : 0);
        });
        t.deepEqual(Array.from(sequence.view(0).subarray(0, numbers.length)), expected);
        const values = sequence.view(1);
        t.true(numbers.every((_, i) => Number.isNaN(valueOf(dtype, values[i]!))), 'NaN stays NaN');
        cache.discard(batch);
        sequence.release();
      });
    });
  }
}

for (const layout of layoutKinds) {
  test(`append writes the new tokens of its layer and nothing else (${layout})`, (t) => {
    withCache(t, { layout, model: { ...model, dtype: 'float32' } }, (cache) => {
      using kernels = new Kernels({ cache, threads: 2 });
      const sequences = [cache.acquire(), cache.acquire()];
      const batch = cache.createBatch();
      for (const sequence of sequences) batch.add(sequence, 300);
      cache.prepare(batch);
      for (const sequence of sequences) cache.stamp(sequence, 0, 300, 9);
      cache.commit(batch);
      batch.clear();
      batch.add(sequences[1]!, 100);
      batch.add(sequences[0]!, 1);
      cache.prepare(batch);
      const rows = 101;
      const keys = Float32Array.from({ length: rows * 10 }, (_, i) => i + 0.5);
      const values = Float32Array.from({ length: rows * 6 }, (_, i) => -i);
      kernels.append(1, batch, keys, values);
      for (const [sequence, first, tokens] of [[sequences[1]!, 0, 100], [sequences[0]!, 100, 1]] as const) {
        t.is(cache.verifyStamp(sequence, 0, 300, 9), 0, 'what was there is untouched');
        for (const [tensor, from, width] of [[2, keys, 5], [3, values, 3]] as const) {
          const { strides, heads } = cache.tensors[tensor]!;
          const view = sequence.view(tensor);
          for (let token = 0; token < tokens; token += 1) {
            for (let head = 0; head < heads; head += 1) {
              const at = ((300 + token) * strides.tokenBytes + head * strides.headBytes) / strides.elementBytes;
              const row = ((first + token) * heads + head) * width;
              t.deepEqual(Array.from(view.subarray(at, at + width)), Array.from(from.subarray(row, row + width)));
            }
          }
        }
      }
      cache.commit(batch);
      for (const sequence of sequences) sequence.release();
    });
  });
}

const copied: readonly ModelShape[] = [
  model,
  { layers: 3, kvHeads: 1, headDim: 7, dtype: 'int8' },
  { layers: 2, dtype: 'bfloat16', attention: 'latent', latentDim: 36 },
];
for (const layout of layoutKinds) {
  const seed = seedOf(`copyTokens ${layout}`);
  test(`copyTokens moves any range of any cache, in all tensors at once (${layout}, seed ${seed})`, (t) => {
    const random = new Random(seed);
    for (const shape of copied) {
      withCache(t, { layout, model: shape, slots: 2, memoryBudgetBytes: 2 ** 28 }, (cache) => {
        using kernels = new Kernels({ cache, threads: 3 });
        const [from, to] = [cache.acquire(), cache.acquire()];
        const batch = cache.createBatch();
        batch.add(from, 2000);
        batch.add(to, 2000);
        cache.prepare(batch);
        cache.commit(batch);
        for (let round = 0; round < 10; round += 1) {
          cache.stamp(from, 0, 2000, 1);
          cache.stamp(to, 0, 2000, 2);
          // Two stretches, each to its own place; what tells tokens apart is the stamp's token, so places are kept.
          const first = random.integer(900);
          const second = 1000 + random.integer(900);
          const [some, more] = [random.integer(1000 - first), random.integer(2000 - second)];
          kernels.copyTokens([
            { fromSlot: from.slot, fromToken: first, toSlot: to.slot, toToken: first, tokens: some },
            { fromSlot: from.slot, fromToken: second, toSlot: to.slot, toToken: second, tokens: more },
          ]);
          t.is(cache.verifyStamp(from, 0, 2000, 1), 0);
          t.is(cache.verifyStamp(to, 0, 2000, 1), 2000 - some - more);
          t.is(cache.verifyStamp(to, 0, 2000, 2), some + more);
          t.is(cache.verifyStamp(to, first, some, 1) + cache.verifyStamp(to, second, more, 1), 0);
        }
        from.release();
        to.release();
      });
    }
  });
}

test('copyTokens moves tokens to another place of the same slot', (t) => {
  withCache(t, { model: { layers: 1, kvHeads: 1, headDim: 2, dtype: 'float32' }, layout: 'per-layer' }, (cache) => {
    using kernels = new Kernels({ cache });
    const sequence = cache.acquire();
    const batch = cache.createBatch();
    batch.add(sequence, 6);
    cache.prepare(batch);
    kernels.append(0, batch, Float32Array.from({ length: 12 }, (_, i) => i), new Float32Array(12));
    const { slot } = sequence;
    kernels.copyTokens([{ fromSlot: slot, fromToken: 0, toSlot: slot, toToken: 4, tokens: 2 }]);
    t.deepEqual(Array.from(sequence.view(0).subarray(0, 12)), [0, 1, 2, 3, 4, 5, 6, 7, 0, 1, 2, 3]);
    cache.commit(batch);
    sequence.release();
  });
});
