// What an EncoderCache refuses, and that a refusal changes nothing.

import test from 'ava';

import { EncoderCache, EncoderHold } from 'virtual-kv';

import { EncoderBench, rowsOf } from './encoder-bench.js';

test('wrong options of a cache are refused by name', (t) => {
  const kinds = { image: { width: 2, dtype: 'float32' } } as const;
  const wrong: readonly [unknown, string, string][] = [
    [undefined, 'KV_INVALID_OPTION', 'budgetBytes'], [{ budgetBytes: 0, kinds }, 'KV_INVALID_OPTION', 'budgetBytes'],
    [{ budgetBytes: '1', kinds }, 'KV_INVALID_OPTION', 'budgetBytes'], [{ budgetByte: 1, kinds }, 'KV_UNKNOWN_OPTION', 'budgetByte'],
    [{ budgetBytes: 1 }, 'KV_INVALID_OPTION', 'kinds'], [{ budgetBytes: 1, kinds: {} }, 'KV_INVALID_OPTION', 'kinds'],
    [{ budgetBytes: 1, kinds: [] }, 'KV_INVALID_OPTION', 'kinds'], [{ budgetBytes: 1, kinds: { image: 2 } }, 'KV_INVALID_OPTION', 'kinds.image'],
    [{ budgetBytes: 1, kinds: { image: { width: 0, dtype: 'float32' } } }, 'KV_INVALID_OPTION', 'kinds.image.width'],
    [{ budgetBytes: 1, kinds: { image: { width: 2, dtype: 'float64' } } }, 'KV_INVALID_OPTION', 'kinds.image.dtype'],
    [{ budgetBytes: 1, kinds: { image: { width: 2, dtype: 'float32', rows: 1 } } }, 'KV_UNKNOWN_OPTION', 'kinds.image.rows'],
  ];
  for (const [options, code, option] of wrong) {
    const error = t.throws(() => new EncoderCache(options as never), { code });
    t.like(error, { details: { owner: 'EncoderCache', option } });
  }
});

test('a request that says something wrong is rejected by name, and computes nothing', async (t) => {
  const bench = new EncoderBench(6);
  const right = { kind: 'image', hash: 'x', tokens: 1, compute: () => rowsOf('x', 1) };
  const wrong: readonly [unknown, string, string][] = [
    [undefined, 'KV_INVALID_OPTION', 'kind'], [{ ...right, kind: 'imag' }, 'KV_INVALID_OPTION', 'kind'],
    [{ ...right, hash: '' }, 'KV_INVALID_OPTION', 'hash'], [{ ...right, hash: 5 }, 'KV_INVALID_OPTION', 'hash'],
    [{ ...right, hash: 'x'.repeat(1025) }, 'KV_INVALID_OPTION', 'hash'], [{ ...right, hash: new Uint8Array(0) }, 'KV_INVALID_OPTION', 'hash'],
    [{ ...right, compute: undefined }, 'KV_INVALID_OPTION', 'compute'], [{ ...right, compute: rowsOf('x', 1) }, 'KV_INVALID_OPTION', 'compute'],
    [{ ...right, tokens: 0 }, 'KV_INVALID_OPTION', 'tokens'], [{ ...right, tokens: 1.5 }, 'KV_INVALID_OPTION', 'tokens'],
    [{ ...right, domain: 'a' }, 'KV_INVALID_OPTION', 'domain'], [{ ...right, domain: { tenant: 5 } }, 'KV_INVALID_OPTION', 'domain.tenant'],
    [{ ...right, domain: { tenants: 'a' } }, 'KV_UNKNOWN_OPTION', 'domain.tenants'], [{ ...right, whenFull: 'throw' }, 'KV_INVALID_OPTION', 'whenFull'],
    [{ ...right, signal: {} }, 'KV_INVALID_OPTION', 'signal'], [{ ...right, timeoutMs: -1 }, 'KV_INVALID_OPTION', 'timeoutMs'],
    [{ ...right, tenant: 'a' }, 'KV_UNKNOWN_OPTION', 'tenant'],
  ];
  for (const [options, code, option] of wrong) {
    const error = await t.throwsAsync(bench.encoder.acquire(options as never), { code });
    t.like(error, { details: { owner: 'EncoderCache.acquire', option } });
  }
  await t.throwsAsync(bench.encoder.acquire({ ...right, kind: 'imag' }), { message: /Did you mean 'image'\?/ });
  t.throws(() => bench.has('x', { kind: 'video' }), { code: 'KV_INVALID_OPTION', message: /'image' or 'audio'/ });
  t.throws(() => bench.encoder.clear({ tenantt: 'a' } as never), { code: 'KV_UNKNOWN_OPTION', message: /`domain.tenant`/ });
  for (const budget of [0, -1, 1.5, '5', undefined]) t.throws(() => bench.encoder.setBudget(budget as never), { code: 'KV_INVALID_OPTION' });
  t.like(bench.encoder.metrics, { hits: 0, misses: 0, computations: 0 });
  t.like(bench.encoder.counts(), { items: 0, usedBytes: 0, budgetBytes: 48 });
});

test('a range outside the item is refused', async (t) => {
  const bench = new EncoderBench(6);
  const hold = await bench.take('x', 4);
  for (const [from, to] of [[-1, 2], [5, 5], [0, 5], [3, 2], [0.5, 2], ['0', 2], [0, null]] as const) {
    t.throws(() => bench.encoder.range(hold, from as never, to as never), { code: 'KV_INVALID_OPTION', message: /^`(from|to)`/ });
  }
});

test('a hold is worth nothing after its release, in another cache, and once its cache is closed', async (t) => {
  const bench = new EncoderBench(6);
  const released = await bench.take('x', 4);
  const kept = await bench.take('x', 4);
  released.release();
  t.throws(() => bench.encoder.range(released), { code: 'KV_HOLD_STATE', message: /its hold was released/ });
  t.deepEqual(bench.encoder.range(kept), rowsOf('x', 4));
  const other = new EncoderBench(6);
  t.throws(() => other.encoder.range(kept), { code: 'KV_HOLD_STATE', message: /belongs to another cache/ });
  bench.encoder.close();
  t.throws(() => bench.encoder.range(kept), { code: 'KV_CLOSED' });
  t.throws(() => bench.encoder.range(released), { code: 'KV_CLOSED' });
  kept.release();
  t.true(kept.isReleased);
});

test('what is no hold is refused', async (t) => {
  const bench = new EncoderBench(6);
  const hold = await bench.take('x', 4);
  for (const wrong of [undefined, null, {}, 'x', Object.create(EncoderHold.prototype), { ...hold }]) {
    t.throws(() => bench.encoder.range(wrong as never), { instanceOf: TypeError, code: 'KV_INVALID_OPTION', message: /`hold` must be an EncoderHold/ });
  }
  t.throws(() => new (EncoderHold as unknown as new (...given: unknown[]) => unknown)({}, {}), { code: 'KV_INVALID_OPTION', message: /left to `encoderCache.acquire`/ });
});

test('a closed cache refuses everything but its metrics', async (t) => {
  const bench = new EncoderBench(6);
  (await bench.take('x', 4)).release();
  bench.encoder[Symbol.dispose]();
  await t.throwsAsync(bench.take('x', 4), { code: 'KV_CLOSED', message: 'Cannot acquire an item: the encoder cache was closed. Create a new EncoderCache.' });
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
