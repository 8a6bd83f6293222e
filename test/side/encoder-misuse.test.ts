// What an EncoderCache refuses, and that a refusal changes nothing.

import test from 'ava';

import { refuses } from '../helpers/refuses.js';
import { EncoderBench, rowsOf } from './encoder-bench.js';

test('a request that is refused computes nothing', async (t) => {
  const bench = new EncoderBench(6);
  const right = { kind: 'image', hash: 'x', tokens: 1, compute: () => rowsOf('x', 1) };
  for (const wrong of [{ tokens: 1.5 }, { domain: { tenant: 5 } }, { timeoutMs: -1 }]) {
    await t.throwsAsync(bench.encoder.acquire({ ...right, ...wrong } as never), { code: 'KV_INVALID_OPTION' });
  }
  t.like(bench.encoder.metrics, { hits: 0, misses: 0, computations: 0 });
  t.like(bench.encoder.counts(), { items: 0, usedBytes: 0, budgetBytes: 48 });
});

test('a hold is worth nothing after its release, in another cache, and once its cache is closed', async (t) => {
  const bench = new EncoderBench(6);
  const released = await bench.take('x', 4);
  const kept = await bench.take('x', 4);
  released.release();
  refuses(t, () => bench.encoder.range(released), 'KV_HOLD_STATE', { problem: 'was released' });
  t.deepEqual(bench.encoder.range(kept), rowsOf('x', 4));
  const other = new EncoderBench(6);
  refuses(t, () => other.encoder.range(kept), 'KV_HOLD_STATE', { problem: 'belongs to another cache' });
  bench.encoder.close();
  t.throws(() => bench.encoder.range(kept), { code: 'KV_CLOSED' });
  t.throws(() => bench.encoder.range(released), { code: 'KV_CLOSED' });
  kept.release();
  t.true(kept.isReleased);
});

test('a closed cache refuses everything but its metrics', async (t) => {
  const bench = new EncoderBench(6);
  (await bench.take('x', 4)).release();
  bench.encoder[Symbol.dispose]();
  await t.throwsAsync(bench.take('x', 4), { code: 'KV_CLOSED' });
  t.throws(() => bench.has('x'), { code: 'KV_CLOSED' });
  t.throws(() => bench.encoder.counts(), { code: 'KV_CLOSED' });
  t.throws(() => bench.encoder.clear(), { code: 'KV_CLOSED' });
  t.throws(() => bench.encoder.setBudget(5), { code: 'KV_CLOSED' });
  t.is(bench.encoder.metrics.computations, 1);
});

test('the names of items cannot be made to meet', async (t) => {
  const bench = new EncoderBench(100, { kinds: { 'a': { width: 2, dtype: 'float32' }, 'a","sb': { width: 2, dtype: 'float32' }, '__proto__x': { width: 2, dtype: 'float32' } } });
  const names = [
    { kind: 'a', hash: 'b","sb' }, { kind: 'a","sb', hash: 'b' }, { kind: 'a', hash: 'b62' }, { kind: 'a', hash: Buffer.from('b') },
    { kind: 'a', hash: 'b', domain: { tenant: '"]["a' } }, { kind: '__proto__x', hash: 'b' },
  ];
  for (const name of names) await bench.take('', 1, { ...name, compute: () => new Float32Array(2) });
  t.is(bench.encoder.metrics.computations, names.length);
});
