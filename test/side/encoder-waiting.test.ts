// What waits for room in an EncoderCache: in which order, how it gives up, and that nothing waits for ever.

import { getEventListeners } from 'node:events';

import test from 'ava';

import { mostOvertakes } from '#internal/side/encoder-room.js';
import { refusesAsync } from '../helpers/refuses.js';
import { EncoderBench, isSettled, rowBytes, rowsOf, turn } from './encoder-bench.js';

test('requests get room in the order in which they came, a small one not before a large one', async (t) => {
  const bench = new EncoderBench(6);
  const held = await bench.take('held', 5);
  const large = bench.take('large', 6);
  const small = bench.take('small', 1);
  await turn();
  t.is(bench.called, 'held', 'one row is free, and the large item came first');
  held.release();
  const hold = await large;
  t.false(await isSettled(small));
  hold.release();
  await small;
  t.is(bench.called, 'held large small');
});

test('several requests are served by one release when there is room for all', async (t) => {
  const bench = new EncoderBench(6);
  const held = await bench.take('held', 6);
  const waiting = ['a', 'b', 'c'].map((name) => bench.take(name, 2));
  held.release();
  const holds = await Promise.all(waiting);
  t.deepEqual(holds.map((hold) => [...bench.encoder.range(hold)]), ['a', 'b', 'c'].map((name) => [...rowsOf(name, 2)]));
});

test('an item that is there is given at once although requests wait', async (t) => {
  const bench = new EncoderBench(6);
  await bench.take('held', 4);
  const waiting = bench.take('waits', 6);
  const hold = await bench.take('held', 4);
  t.is(hold.tokens, 4);
  t.false(await isSettled(waiting));
  t.is(bench.encoder.metrics.waits, 1);
});

test('requests for an item in use cannot keep another out for ever', async (t) => {
  const bench = new EncoderBench(4);
  let hold = await bench.take('I', 4);
  const starving = bench.take('J', 4);
  let overtakes = 0;
  let next = bench.take('I', 4);
  for (; await isSettled(next) && overtakes < 10 * mostOvertakes; overtakes += 1) { // I is never without a hold
    hold.release();
    hold = await next;
    next = bench.take('I', 4);
  }
  t.is(overtakes, mostOvertakes);
  hold.release();
  (await starving).release();
  await next;
  t.is(bench.called, 'I J I', 'the last request for I waited its turn');
});

test('a request that waits can be aborted; the next is served, and no listener is left', async (t) => {
  const bench = new EncoderBench(6);
  await bench.take('held', 4);
  const controller = new AbortController();
  const aborted = bench.take('large', 6, { signal: controller.signal });
  const next = bench.take('small', 2);
  t.false(await isSettled(next));
  t.is(getEventListeners(controller.signal, 'abort').length, 1);
  controller.abort(new Error('mine'));
  const error = await t.throwsAsync(aborted, { name: 'AbortError', code: 'KV_ABORTED' });
  t.is((error.cause as Error).message, 'mine');
  await next;
  t.is(getEventListeners(controller.signal, 'abort').length, 0);
  t.is(bench.called, 'held small');
  t.like(bench.encoder.counts(), { waitingRequests: 0, usedBytes: 6 * rowBytes, items: 2 });
});

test('a signal that was aborted before rejects at once, and nothing is computed', async (t) => {
  const bench = new EncoderBench(6);
  await t.throwsAsync(bench.take('x', 1, { signal: AbortSignal.abort() }), { code: 'KV_ABORTED' });
  t.is(bench.called, '');
  t.like(bench.encoder.counts(), { items: 0, usedBytes: 0 });
});

test('no listener is left when a request is served', async (t) => {
  const bench = new EncoderBench(6);
  const { signal } = new AbortController();
  for (const name of ['x', 'x', 'y']) await bench.take(name, 1, { signal, timeoutMs: 1e12 });
  await t.throwsAsync(bench.take('z', 1, { signal, compute: () => { throw new Error('mine'); } }));
  t.is(getEventListeners(signal, 'abort').length, 0);
});

test('a request that waits too long is rejected, with what it waited for', async (t) => {
  const bench = new EncoderBench(6);
  const held = await bench.take('held', 4);
  await refusesAsync(t, bench.take('large', 6, { timeoutMs: 1 }),
    'KV_TIMEOUT', { timeoutMs: 1, waitedFor: 'room in the encoder cache' });
  await refusesAsync(t, bench.ask('slow', 2, { timeoutMs: 1 }),
    'KV_TIMEOUT', { timeoutMs: 1, waitedFor: 'the encoder' });
  t.true(bench.calls.at(-1)!.signal.aborted);
  t.like(bench.encoder.counts(), { waitingRequests: 0, items: 1, computingItems: 0, usedBytes: 4 * rowBytes });
  await bench.take('held', 4, { timeoutMs: 0 });
  held.release();
});

test('`refuse` rejects at once instead of waiting, and nothing is computed', async (t) => {
  const bench = new EncoderBench(6);
  const held = await bench.take('held', 4);
  const refuse = { whenFull: 'refuse' } as const;
  const error = await t.throwsAsync(bench.take('x', 3, refuse), { code: 'KV_ENCODER_FULL' });
  t.like(error, { details: { kind: 'image', neededBytes: 3 * rowBytes, heldBytes: 4 * rowBytes, budgetBytes: 6 * rowBytes, waiting: 0 } });
  (await bench.take('fits', 2, refuse)).release();
  (await bench.take('evicts', 2, refuse)).release();
  (await bench.take('held', 4, refuse)).release();
  const waiting = bench.take('waits', 6);
  await refusesAsync(t, bench.take('x', 1, refuse), 'KV_ENCODER_FULL', { waiting: 1 });
  await t.throwsAsync(bench.take('waits', 6, refuse), { code: 'KV_ENCODER_FULL' });
  held.release();
  await waiting;
  await refusesAsync(t, bench.take('x', undefined as never, { ...refuse, tokens: undefined }),
    'KV_ENCODER_FULL', { neededBytes: undefined, waiting: 0 });
  t.is(bench.called, 'held fits evicts waits');
});

test('an item of unknown size is computed when a row has room, and given when all its rows have', async (t) => {
  const bench = new EncoderBench(6);
  const unknown = { tokens: undefined };
  const full = await bench.take('full', 6);
  const first = bench.take('first', 4, unknown);
  await turn();
  t.is(bench.called, 'full', 'no row has room');
  full.release();
  const held = await first;
  const second = bench.take('second', 4, unknown);
  t.false(await isSettled(second));
  const third = bench.take('third', 1);
  t.false(await isSettled(third));
  t.is(bench.called, 'full first second');
  held.release();
  t.deepEqual(bench.encoder.range(await second), rowsOf('second', 4));
  await third;
});

test('an item of unknown size keeps its place while it is computed', async (t) => {
  const bench = new EncoderBench(6);
  const first = bench.ask('first', 6, { tokens: undefined });
  await turn();
  const held = await bench.take('held', 2);
  const second = bench.take('second', 6);
  bench.calls[0]!.answer();
  await turn();
  held.release();
  t.true(await isSettled(first));
  t.false(await isSettled(second));
  (await first).release();
  await second;
});

test('two items of unknown size never wait for each other', async (t) => {
  const bench = new EncoderBench(6);
  const requests = ['a', 'b', 'c'].map((name) => bench.ask(name, 6, { tokens: undefined }));
  await turn();
  t.is(bench.called, 'a b c');
  for (const call of [...bench.calls].reverse()) call.answer();
  await Promise.all(requests.map((request) => request.then((hold) => hold.release())));
  t.is(bench.encoder.counts().usedBytes, 6 * rowBytes);
});

test('`refuse` of an item of unknown size that turns out too large for now rejects; the rest wait', async (t) => {
  const bench = new EncoderBench(6);
  const refused = bench.ask('x', 4, { tokens: undefined, whenFull: 'refuse' });
  const patient = bench.ask('x', 4, { tokens: undefined });
  await turn();
  const held = await bench.take('held', 4);
  bench.calls[0]!.answer();
  await t.throwsAsync(refused, { code: 'KV_ENCODER_FULL' });
  t.false(await isSettled(patient));
  held.release();
  t.deepEqual(bench.encoder.range(await patient), rowsOf('x', 4));
  t.is(bench.called, 'x held');
});

test('an item whose requests have all ended when the encoder answers does not make later requests wait', async (t) => {
  const bench = new EncoderBench(4);
  await bench.take('held', 3);
  const abort = new AbortController();
  const unknown = bench.ask('x', 2, { tokens: undefined, signal: abort.signal });
  const wrong = bench.ask('x', 5);
  await turn();
  abort.abort();
  await t.throwsAsync(unknown, { code: 'KV_ABORTED' });
  bench.calls.at(-1)!.answer(rowsOf('x', 2));
  await t.throwsAsync(wrong, { code: 'KV_INVALID_OPTION' });
  t.like(bench.encoder.counts(), { computingItems: 0, waitingRequests: 0 });
  const small = await bench.take('small', 1, { whenFull: 'refuse' });
  t.is(small.tokens, 1);
});

test('a larger budget serves those that wait; a lower one rejects those that ask for more than all of it', async (t) => {
  const bench = new EncoderBench(6);
  const held = await bench.take('held', 6);
  const large = bench.take('large', 6);
  const small = bench.take('small', 2);
  const computed = bench.ask('computed', 5, { tokens: undefined });
  bench.encoder.setBudget(3 * rowBytes);
  await t.throwsAsync(large, { code: 'KV_ITEM_TOO_LARGE' });
  t.false(await isSettled(small));
  bench.encoder.setBudget(9 * rowBytes);
  t.deepEqual(bench.encoder.range(await small), rowsOf('small', 2));
  await turn();
  bench.calls.at(-1)!.answer();
  t.false(await isSettled(computed), 'its five rows have no room');
  bench.encoder.setBudget(4 * rowBytes);
  const outside = await computed;
  t.false(outside.isCached);
  held.release();
  outside.release();
  t.like(bench.encoder.counts(), { outsideBytes: 0, waitingRequests: 0 });
});

test('a thousand requests that wait are served one after the other', async (t) => {
  const bench = new EncoderBench(1);
  const held = await bench.take('held', 1);
  const waiting = Array.from({ length: 1000 }, (_, index) => bench.take(`x${index}`, 1).then((hold) => hold.release()));
  held.release();
  await Promise.all(waiting);
  t.is(bench.encoder.metrics.computations, 1001);
  t.like(bench.encoder.counts(), { items: 1, waitingRequests: 0 });
});
