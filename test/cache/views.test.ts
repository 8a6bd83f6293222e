// Views: a sequence's memory as JavaScript typed arrays. They show the very bytes, and are detached before any of those is
// unmapped: a touch of an unmapped page would end this process, also a `console.log`.

import { inspect } from 'node:util';

import test from 'ava';

import { byteOffset, Driver, KvCache, layoutKinds, onDemand, type Dtype, type Sequence, type TensorView } from 'virtual-kv';

import { assertNothingLeft, cacheTest, cacheTests, pageBytes, rowTokens, tinyModel, type CacheBench } from '../helpers/cache.js';
import { nativeOf } from '../helpers/native-of.js';

const rowBytes = 4 * pageBytes;

/** Bytes of a slot in a tensor, read by the driver. */
function read({ driver }: CacheBench, sequence: Sequence, tensor: number, bytes: number): Uint8Array {
  const into = new Uint8Array(bytes);
  nativeOf(driver).read(into, sequence.address(tensor));
  return into;
}

function bytesOf(view: TensorView): Uint8Array {
  return new Uint8Array(view.buffer, view.byteOffset, view.byteLength);
}

function assertDetached({ t }: CacheBench, view: TensorView): void {
  t.is(view.length, 0);
  t.is(view.byteLength, 0);
  t.is(view[0], undefined);
  t.is(view.buffer.byteLength, 0);
  t.notThrows(() => inspect(view));
  t.notThrows(() => inspect(view.buffer));
}

cacheTests('a view shows the bytes that were stamped, of every mapped token', {}, (t, bench) => {
  const { cache } = bench;
  const sequence = bench.sequenceOf(100);
  cache.stamp(sequence, 0, 2 * rowTokens, 7);
  for (const { index } of cache.tensors) {
    const view = sequence.view(index);
    t.true(view instanceof Uint16Array, 'a float16 is a Uint16');
    t.is(view.byteLength, 2 * pageBytes);
    t.deepEqual(bytesOf(view), read(bench, sequence, index, 2 * pageBytes));
  }
});

cacheTests('what is written through a view is what the driver reads', {}, (t, bench) => {
  const sequence = bench.sequenceOf(100);
  bench.cache.stamp(sequence, 0, 100, 7);
  const view = sequence.view(2);
  view[0]! ^= 1;
  view[view.length - 1] = 0xbeef;
  t.is(bench.cache.verifyStamp(sequence, 0, 100, 7), 1);
  t.deepEqual([...read(bench, sequence, 2, 2 * pageBytes).slice(-2)], [0xef, 0xbe]);
});

cacheTests('a view is copied for another thread, or refused, but never handed over', {}, (t, bench) => {
  const sequence = bench.sequenceOf(100);
  bench.cache.stamp(sequence, 0, 100, 7);
  const view = sequence.view(0);
  let copy: TensorView | undefined;
  try {
    copy = structuredClone(view, { transfer: [view.buffer as ArrayBuffer] });
  } catch (error) {
    t.is((error as Error).name, 'DataCloneError'); // Node 20 copies, later ones refuse
  }
  t.is(view.byteLength, 2 * pageBytes);
  sequence.release();
  assertDetached(bench, view);
  t.true(copy === undefined || copy.byteLength === 2 * pageBytes);
});

for (const [dtype, array] of [
  ['float32', Float32Array], ['float16', Uint16Array], ['bfloat16', Uint16Array], ['float8', Uint8Array], ['int8', Int8Array],
] as const satisfies readonly (readonly [Dtype, unknown])[]) {
  cacheTests(`${dtype} is viewed as ${array.name}`, { model: { ...tinyModel, dtype }, layout: 'fused' }, (t, bench) => {
    const sequence = bench.sequenceOf(1);
    for (const { index } of bench.cache.tensors) t.is(Object.getPrototypeOf(sequence.view(index)), array.prototype);
  });
}

for (const layout of layoutKinds) {
  cacheTests(`element [token, head, i] is where the strides say (${layout})`, { layout, maxTokens: 100 }, (t, bench) => {
    const { cache } = bench;
    const sequences = [bench.sequenceOf(70), bench.sequenceOf(100)];
    let value = 0;
    for (const sequence of sequences) {
      for (const { index, strides } of cache.tensors) {
        const view = sequence.view(index);
        for (const [token, head, i] of [[0, 0, 0], [0, 3, 127], [1, 0, 0], [69, 2, 5]] as const) {
          value += 1;
          view[(token * strides.tokenBytes + head * strides.headBytes) / strides.elementBytes + i] = value;
        }
      }
    }
    value = 0;
    for (const sequence of sequences) {
      for (const tensor of cache.tensors) {
        for (const [token, head, i] of [[0, 0, 0], [0, 3, 127], [1, 0, 0], [69, 2, 5]] as const) {
          value += 1;
          const start = tensor.address - BigInt(tensor.offsetBytes);
          const offset = byteOffset(tensor, sequence.slot, token) + head * tensor.strides.headBytes + i * tensor.strides.elementBytes;
          const into = new Uint8Array(2);
          nativeOf(bench.driver).read(into, start + BigInt(offset));
          t.is(into[0]! + 256 * into[1]!, value);
        }
      }
    }
  });
}

cacheTests('after growth the old view still shows its part, and a new one all of it', {}, (t, bench) => {
  const sequence = bench.sequenceOf(rowTokens);
  const before = sequence.view(0);
  before[5] = 55;
  bench.compute(sequence, rowTokens);
  const after = sequence.view(0);
  t.is(before.byteLength, pageBytes);
  t.is(after.byteLength, 2 * pageBytes);
  t.is(after[5], 55);
  after[6] = 66;
  t.is(before[6], 66);
});

cacheTests('asked again without growth, a view is over the same buffer', {}, (t, bench) => {
  const sequence = bench.sequenceOf(1);
  t.is(sequence.view(1).buffer, sequence.view(1).buffer);
  t.not(sequence.view(1).buffer, sequence.view(0).buffer);
});

cacheTests('a sequence without memory has an empty view', {}, (t, { cache }) => {
  t.is(cache.acquire().view(0).length, 0);
});

cacheTests('views show what the mapper has mapped', { growth: () => 3 * rowTokens }, async (t, bench) => {
  const sequence = bench.cache.acquire();
  await bench.cache.settled();
  t.is(sequence.view(0).byteLength, 3 * pageBytes);
});

// Detached

cacheTests('a release detaches every view of the sequence, and of no other', {}, (t, bench) => {
  const [first, second] = [bench.sequenceOf(10), bench.sequenceOf(10)];
  const views = bench.cache.tensors.map(({ index }) => first.view(index));
  bench.compute(first, rowTokens);
  views.push(first.view(0));
  const other = second.view(0);
  first.release();
  for (const view of views) assertDetached(bench, view);
  t.is(other.byteLength, pageBytes);
  other[0] = 1;
});

cacheTests('taking back the tail of an active sequence detaches its views; a new one shows what is left', { rows: 4 }, (t, bench) => {
  const { cache } = bench;
  const [tail, growing] = [bench.sequenceOf(3 * rowTokens), bench.sequenceOf(1)];
  cache.stamp(tail, 0, 3 * rowTokens, 1);
  tail.truncate(rowTokens);
  const view = tail.view(0);
  bench.compute(growing, 2 * rowTokens);
  assertDetached(bench, view);
  t.is(tail.view(0).byteLength, pageBytes);
  t.is(cache.verifyStamp(tail, 0, rowTokens, 1), 0);
});

cacheTests('lowering the budget detaches the views of what it takes', { rows: 4 }, (t, bench) => {
  const sequence = bench.sequenceOf(3 * rowTokens);
  const view = sequence.view(0);
  bench.cache.pool.setBudget(3 * rowBytes);
  t.is(view.byteLength, 3 * pageBytes, 'nothing was taken');
  sequence.truncate(1);
  bench.cache.pool.setBudget(rowBytes);
  assertDetached(bench, view);
  t.is(sequence.view(0).byteLength, pageBytes);
});

cacheTests('`close` detaches every view', {}, (t, bench) => {
  const views = [bench.sequenceOf(10), bench.sequenceOf(200)].map((sequence) => sequence.view(3));
  bench.cache.close();
  for (const view of views) assertDetached(bench, view);
  t.pass();
});

cacheTests('a view can be printed whole while it is mapped', {}, (t, bench) => {
  const view = bench.sequenceOf(10).view(0);
  t.true(inspect(view, { maxArrayLength: null }).length > view.length);
  t.regex(inspect(view.buffer), /ArrayBuffer/);
});

// Limits

test('a view is at most 4 GiB long, however much is mapped', (t) => {
  const driver = Driver.open('host', { memoryBytes: 2 ** 36 }); // nothing of it is touched
  const cache = new KvCache({
    model: { layers: 1, kvHeads: 4096, headDim: 128, dtype: 'float16' }, slots: 1, maxTokens: 4200, growth: onDemand(),
    pageBytes: 2 ** 26, memoryBudgetBytes: 2 ** 34, driver,
  });
  const sequence = cache.acquire();
  const batch = cache.createBatch();
  batch.add(sequence, 4200);
  cache.prepare(batch);
  cache.commit(batch);
  const view = sequence.view(0);
  t.is(view.byteLength, 2 ** 32);
  view[view.length - 1] = 1234;
  const into = new Uint8Array(2);
  nativeOf(driver).read(into, sequence.address(0) + 2n ** 32n - 2n);
  t.is(into[0]! + 256 * into[1]!, 1234);
  cache.close();
  t.is(view.length, 0);
  assertNothingLeft(t, driver, undefined);
});

cacheTest('a driver whose memory the CPU cannot touch has no views', { device: { backing: 'none' } }, (t, bench) => {
  const sequence = bench.sequenceOf(1);
  const error = t.throws(() => sequence.view(0), { code: 'KV_DRIVER_UNSUPPORTED' });
  t.like(error, { recovery: 'fix' });
  t.throws(() => bench.cache.stamp(sequence, 0, 1, 1), { code: 'KV_DRIVER_CALL_FAILED' });
});
