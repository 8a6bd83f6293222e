// EncoderCache: what is shared, what is kept and evicted, and what a hold shows.

import test from 'ava';

import { contentHash, EncoderCache } from 'virtual-kv';

import { refuses } from '../helpers/refuses.js';
import { EncoderBench, isSettled, rowBytes, rowsOf, turn, width } from './encoder-bench.js';

test('an item is computed once, and found from then on', async (t) => {
  const bench = new EncoderBench(100);
  const first = await bench.take('cat', 6);
  t.deepEqual(bench.encoder.range(first), rowsOf('cat', 6));
  t.like(first, { kind: 'image', tokens: 6, width, dtype: 'float32', bytes: 6 * rowBytes, isCached: true, isReleased: false });
  const second = await bench.take('cat', 6);
  first.release();
  t.deepEqual(bench.encoder.range(second), rowsOf('cat', 6));
  second.release();
  (await bench.take('cat', 6)).release();
  t.is(bench.called, 'cat');
  t.like(bench.encoder.metrics, { misses: 1, hits: 2, joins: 0, computations: 1, computedBytes: 6 * rowBytes, evictions: 0, waits: 0 });
});

test('an encoder cache of 6 rows: while I is held J waits, and J evicts I once it is released', async (t) => {
  const bench = new EncoderBench(6);
  const held = await bench.take('I', 4);
  const waiting = bench.take('J', 4);
  t.false(await isSettled(waiting));
  t.is(bench.called, 'I', 'J is not computed before it has room');
  t.true(bench.has('I'));
  held.release();
  t.false(bench.has('I'));
  const hold = await waiting;
  t.deepEqual(bench.encoder.range(hold), rowsOf('J', 4));
  t.like(bench.encoder.counts(), { items: 1, heldItems: 1, usedBytes: 4 * rowBytes, heldBytes: 4 * rowBytes, waitingRequests: 0 });
  t.like(bench.encoder.metrics, { waits: 1, evictions: 1, evictedBytes: 4 * rowBytes });
});

test('nothing is evicted before its room is needed, and then the least recently used without a hold', async (t) => {
  const bench = new EncoderBench(6);
  for (const name of ['a', 'b', 'c']) (await bench.take(name, 2)).release();
  t.is(bench.encoder.metrics.evictions, 0);
  (await bench.take('a', 2)).release(); // b is the oldest now
  const held = await bench.take('c', 2);
  await bench.take('d', 2);
  t.deepEqual(['a', 'b', 'c', 'd'].map((name) => bench.has(name)), [true, false, true, true]);
  await bench.take('e', 2);
  t.deepEqual(['a', 'c', 'd', 'e'].map((name) => bench.has(name)), [false, true, true, true]);
  held.release();
  t.is(bench.encoder.metrics.evictions, 2);
});

test('nothing is evicted for an item for which it would not be enough', async (t) => {
  const bench = new EncoderBench(6);
  (await bench.take('idle', 2)).release();
  const held = await bench.take('held', 2);
  const waiting = bench.take('large', 5);
  await turn();
  t.true(bench.has('idle'));
  held.release();
  await waiting;
  t.false(bench.has('idle') || bench.has('held'));
});

test('the order of eviction is that of the last release', async (t) => {
  const bench = new EncoderBench(4);
  const first = await bench.take('first', 2);
  (await bench.take('second', 2)).release();
  first.release();
  await bench.take('third', 2);
  t.true(bench.has('first'));
  t.false(bench.has('second'));
});

test('an item is kept until each hold of it is released, and each counts once', async (t) => {
  const bench = new EncoderBench(4);
  const holds = [await bench.take('I', 4), await bench.take('I', 4)];
  t.like(bench.encoder.counts(), { items: 1, heldItems: 1, holds: 2, usedBytes: 4 * rowBytes });
  const waiting = bench.take('J', 1);
  holds[0]!.release();
  holds[0]!.release();
  t.true(holds[0]!.isReleased);
  t.false(await isSettled(waiting));
  holds[1]![Symbol.dispose]();
  await waiting;
});

test('items of another tenant, salt, adapter, namespace or kind are different items', async (t) => {
  const bench = new EncoderBench(100);
  const names = [
    {}, { domain: { tenant: 'a' } }, { domain: { tenant: 'b' } }, { domain: { tenant: '' } }, { domain: { salt: 'a' } },
    { domain: { adapter: 'a' } }, { domain: { namespace: 'a' } }, { domain: { tenant: 'a', salt: 'a' } }, { kind: 'audio' },
    { hash: Buffer.from('x') },
  ];
  for (const [index, name] of names.entries()) {
    t.false(bench.has('x', name));
    const hold = await bench.take('x', 1, { compute: () => Float32Array.of(index, index), ...name });
    t.true(bench.has('x', name));
    hold.release();
  }
  for (const [index, name] of names.entries()) {
    const hold = await bench.take('x', 1, name);
    t.deepEqual(bench.encoder.range(hold), Float32Array.of(index, index));
  }
  t.is(bench.encoder.metrics.computations, names.length);
});

test('a range is a view of the rows [from, to), and nothing is copied', async (t) => {
  const { encoder } = new EncoderBench(100);
  const hold = await encoder.acquire({ kind: 'image', hash: 'x', compute: () => rowsOf('x', 6) });
  const all = encoder.range(hold);
  const rest = encoder.range(hold, 4);
  t.deepEqual(rest, rowsOf('x', 6).subarray(4 * width));
  t.is(rest.buffer, all.buffer);
  t.is(rest.byteOffset, 4 * rowBytes);
  t.deepEqual(encoder.range(hold, 1, 3), rowsOf('x', 6).subarray(width, 3 * width));
  t.is(encoder.range(hold, 6).length, 0);
  // @ts-expect-error -- a view is not to be written to
  all[0] = all[0]!;
  if (all instanceof Float32Array) t.is(((floats: Float32Array) => floats.length)(all), 6 * width); // and is accepted where one is read
  t.is(encoder.range(hold, 2, 2).length, 0);
});

test('rows are of the dtype of their kind', async (t) => {
  const arrays = { float32: Float32Array, float16: Uint16Array, bfloat16: Uint16Array, float8: Uint8Array, int8: Int8Array } as const;
  for (const [dtype, constructor] of Object.entries(arrays)) {
    const kinds = { image: { width: 3, dtype: dtype as keyof typeof arrays } };
    const encoder = new EncoderCache({ budgetBytes: 1000, kinds });
    const rows = constructor.of(1, 2, 3, 4, 5, 6);
    const hold = await encoder.acquire({ kind: 'image', hash: 'x', tokens: 2, compute: () => rows });
    t.deepEqual(encoder.range(hold), rows);
    t.is(encoder.counts().usedBytes, rows.byteLength);
  }
});

test('what the encoder does to its own array later does not reach the cache', async (t) => {
  const bench = new EncoderBench(100);
  const rows = rowsOf('x', 4);
  const hold = await bench.take('x', 4, { compute: () => rows });
  rows.fill(0);
  structuredClone(rows, { transfer: [rows.buffer as ArrayBuffer] });
  t.deepEqual(bench.encoder.range(hold), rowsOf('x', 4));
});

test('rows that a caller transfers elsewhere through a view are computed again', async (t) => {
  const bench = new EncoderBench(100);
  const hold = await bench.take('x', 4);
  const { buffer } = bench.encoder.range(hold);
  try {
    (buffer as unknown as { transfer(): unknown }).transfer();
  } catch { /* refused by this version of Node, or not there */ }
  try {
    structuredClone(buffer, { transfer: [buffer as ArrayBuffer] });
  } catch { /* refused by this version of Node */ }
  const isLost = buffer.byteLength === 0;
  if (isLost) refuses(t, () => bench.encoder.range(hold),
    'KV_HOLD_STATE', { problem: 'has lost its rows, which were transferred through a view' });
  else t.deepEqual(bench.encoder.range(hold), rowsOf('x', 4));
  const again = await bench.take('x', 4);
  t.deepEqual(bench.encoder.range(again), rowsOf('x', 4));
  t.is(bench.encoder.metrics.computations, isLost ? 2 : 1);
  hold.release();
  again.release();
  t.like(bench.encoder.counts(), { items: 1, heldItems: 0, usedBytes: 4 * rowBytes });
});

test('an item larger than the whole budget is refused before it is computed, where its size is known', async (t) => {
  const bench = new EncoderBench(6);
  (await bench.take('small', 6)).release();
  const error = await t.throwsAsync(bench.take('large', 7), { instanceOf: RangeError, code: 'KV_ITEM_TOO_LARGE' });
  t.like(error, { details: { kind: 'image', tokens: 7, bytes: 7 * rowBytes, budgetBytes: 6 * rowBytes } });
  t.is(bench.called, 'small');
  t.true(bench.has('small'));
});

test('an item that turns out larger than the whole budget is shared while it is held, and evicts nothing', async (t) => {
  const bench = new EncoderBench(6);
  (await bench.take('small', 6)).release();
  const unknown = { tokens: undefined };
  const first = await bench.take('large', 7, unknown);
  const second = await bench.take('large', 7, unknown);
  t.false(first.isCached);
  t.deepEqual(bench.encoder.range(second), rowsOf('large', 7));
  t.like(bench.encoder.counts(), { outsideBytes: 7 * rowBytes, usedBytes: 6 * rowBytes, heldBytes: 0, items: 2 });
  first.release();
  t.true(bench.has('large'));
  second.release();
  t.false(bench.has('large'));
  t.true(bench.has('small'));
  t.like(bench.encoder.counts(), { outsideBytes: 0, usedBytes: 6 * rowBytes, items: 1 });
  t.is(bench.called, 'small large');
});

test('a row larger than the whole budget is served as well', async (t) => {
  const bench = new EncoderBench(1, { budgetBytes: 5 });
  const hold = await bench.take('x', 2, { tokens: undefined });
  t.deepEqual(bench.encoder.range(hold), rowsOf('x', 2));
});

test('a lower budget evicts at once the items without a hold, and held ones with their release', async (t) => {
  const bench = new EncoderBench(6);
  const held = await bench.take('held', 3);
  (await bench.take('idle', 3)).release();
  bench.encoder.setBudget(2 * rowBytes);
  t.false(bench.has('idle'));
  t.like(bench.encoder.counts(), { usedBytes: 3 * rowBytes, budgetBytes: 2 * rowBytes });
  held.release();
  t.false(bench.has('held'));
  t.is(bench.encoder.counts().usedBytes, 0);
});

test('`clear` drops the items without a hold, and later requests do not find the held ones', async (t) => {
  const bench = new EncoderBench(100);
  const held = await bench.take('held', 2);
  (await bench.take('idle', 2)).release();
  const joined = bench.ask('running', 2);
  await turn();
  bench.encoder.clear();
  t.false(bench.has('held') || bench.has('idle'));
  t.deepEqual(bench.encoder.range(held), rowsOf('held', 2));
  bench.calls.at(-1)!.answer();
  const running = await joined;
  t.deepEqual(bench.encoder.range(running), rowsOf('running', 2));
  t.false(bench.has('running'), 'computed before it was cleared');
  t.is(bench.encoder.counts().usedBytes, 4 * rowBytes);
  const anew = await bench.take('held', 2, { compute: () => rowsOf('anew', 2) });
  t.deepEqual(bench.encoder.range(anew), rowsOf('anew', 2));
  held.release();
  running.release();
  t.true(bench.has('held'));
  t.like(bench.encoder.counts(), { items: 1, usedBytes: 2 * rowBytes });
});

test('`clear` of a domain drops the items whose domains have its parts', async (t) => {
  const bench = new EncoderBench(100);
  const domains = [{}, { tenant: 'a' }, { tenant: 'a', salt: 's' }, { tenant: 'b', salt: 's' }, { adapter: 'l', tenant: 'a' }];
  const left = (): number[] => domains.flatMap((domain, index) => (bench.has('x', { domain }) ? [index] : []));
  for (const domain of domains) (await bench.take('x', 1, { domain })).release();
  bench.encoder.clear({ tenant: 'a', salt: 's' });
  t.deepEqual(left(), [0, 1, 3, 4]);
  bench.encoder.clear({ tenant: 'a' });
  t.deepEqual(left(), [0, 3]);
  bench.encoder.clear({});
  t.deepEqual(left(), []);
});

test('`close` rejects all that wait, and ends what runs', async (t) => {
  const bench = new EncoderBench(4);
  const held = await bench.take('held', 2);
  const running = bench.ask('running', 2);
  const joined = bench.ask('running', 2);
  const waiting = bench.ask('waiting', 2);
  await turn();
  bench.encoder.close();
  bench.encoder.close();
  for (const one of [running, joined, waiting]) await t.throwsAsync(one, { code: 'KV_CLOSED' });
  t.true(bench.calls.at(-1)!.signal.aborted);
  bench.calls.at(-1)!.answer();
  held.release();
  await turn();
  t.true(bench.encoder.isClosed);
});

test('content is named by its SHA-256, whatever it is given in', (t) => {
  const bytes = Buffer.from('abc');
  const hash = 'ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad';
  t.is(contentHash(bytes), hash);
  t.is(contentHash(new Uint8Array(bytes)), hash);
  t.is(contentHash(new Uint8Array(bytes).buffer), hash);
  t.is(contentHash(new DataView(new Uint8Array([0, ...bytes]).buffer, 1)), hash);
  const [small, large] = [contentHash(new Uint8Array(bytes), '224 pixels'), contentHash(new Uint8Array(bytes), '448 pixels')];
  t.is(new Set([hash, small, large]).size, 3, 'what is told of the encoding counts');
  t.is(contentHash(new Uint8Array(bytes), '224 pixels'), small);
  t.regex(small, /^[0-9a-f]{64}$/);
  t.throws(() => contentHash(new Uint8Array(bytes), 224 as never), { code: 'KV_INVALID_OPTION' });
  for (const wrong of ['abc', [1, 2], undefined, {}]) {
    t.throws(() => contentHash(wrong as never), { instanceOf: TypeError, code: 'KV_INVALID_OPTION' });
  }
});
