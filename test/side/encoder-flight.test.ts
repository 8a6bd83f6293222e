// Requests for one item that come together: one computation, and what becomes of the rest when a request gives up or its encoder fails.

import test from 'ava';

import { refusesAsync } from '../helpers/refuses.js';
import { EncoderBench, isSettled, rowBytes, rowsOf, turn } from './encoder-bench.js';

test('requests that come together share one computation, and each has a hold', async (t) => {
  const bench = new EncoderBench(6);
  const requests = [1, 2, 3].map(() => bench.ask('x', 4));
  await turn();
  t.is(bench.called, 'x');
  t.like(bench.encoder.counts(), { computingItems: 1, items: 0, waitingRequests: 3, usedBytes: 4 * rowBytes, heldBytes: 4 * rowBytes });
  bench.calls[0]!.answer();
  const holds = await Promise.all(requests);
  for (const hold of holds) t.deepEqual(bench.encoder.range(hold), rowsOf('x', 4));
  t.is(bench.encoder.counts().holds, 3);
  t.like(bench.encoder.metrics, { misses: 1, joins: 2, hits: 0, computations: 1 });
});

test('requests that wait for room for one item share its place and its computation', async (t) => {
  const bench = new EncoderBench(6);
  const held = await bench.take('held', 4);
  const first = bench.take('x', 4);
  const other = bench.take('y', 2);
  const second = bench.take('x', 4);
  t.false(await isSettled(second));
  held.release();
  await Promise.all([first, second, other]);
  t.is(bench.called, 'held x y');
});

test('a computation goes on for the rest when the request that began it is aborted', async (t) => {
  const bench = new EncoderBench(6);
  const controller = new AbortController();
  const first = bench.ask('x', 4, { signal: controller.signal });
  const second = bench.ask('x', 4);
  await turn();
  controller.abort();
  await t.throwsAsync(first, { code: 'KV_ABORTED' });
  t.false(bench.calls[0]!.signal.aborted);
  bench.calls[0]!.answer();
  t.deepEqual(bench.encoder.range(await second), rowsOf('x', 4));
  t.is(bench.called, 'x');
});

test('the next request computes when the encoder of one that was aborted fails', async (t) => {
  const bench = new EncoderBench(6);
  const controllers = [new AbortController(), new AbortController()];
  const aborted = controllers.map(({ signal }) => bench.ask('x', 4, { signal }));
  const last = bench.ask('x', 4);
  await turn();
  for (const [index, controller] of controllers.entries()) {
    controller.abort();
    await t.throwsAsync(aborted[index]!, { code: 'KV_ABORTED' });
  }
  bench.calls[0]!.fail(new Error('its request is gone'));
  await turn();
  t.is(bench.called, 'x x', 'the second request was aborted before it was asked');
  t.like(bench.encoder.counts(), { computingItems: 1, usedBytes: 4 * rowBytes });
  bench.calls[1]!.answer();
  t.deepEqual(bench.encoder.range(await last), rowsOf('x', 4));
  t.like(bench.encoder.metrics, { computations: 2, failures: 1 });
});

test('a computation whose requests have all given up is aborted, and its room is free', async (t) => {
  const bench = new EncoderBench(6);
  const controllers = [new AbortController(), new AbortController()];
  const requests = controllers.map(({ signal }) => bench.ask('x', 6, { signal }));
  const other = bench.take('other', 6);
  await turn();
  controllers[0]!.abort();
  t.false(bench.calls[0]!.signal.aborted);
  controllers[1]!.abort();
  t.true(bench.calls[0]!.signal.aborted);
  for (const request of requests) await t.throwsAsync(request, { code: 'KV_ABORTED' });
  await other;
  bench.calls[0]!.answer();
  await turn();
  t.false(bench.has('x'), 'what it answers later is not kept');
  t.is(bench.encoder.counts().usedBytes, 6 * rowBytes);
});

test('a request that comes after a computation was given up begins another', async (t) => {
  const bench = new EncoderBench(6);
  const controller = new AbortController();
  const aborted = bench.ask('x', 4, { signal: controller.signal });
  await turn();
  controller.abort();
  const second = bench.ask('x', 4);
  await turn();
  bench.calls[0]!.answer(rowsOf('stale', 4));
  await turn();
  bench.calls[1]!.answer();
  t.deepEqual(bench.encoder.range(await second), rowsOf('x', 4));
  await t.throwsAsync(aborted);
});

test('a request that is aborted before its encoder was called does not call it', async (t) => {
  const bench = new EncoderBench(6);
  const controller = new AbortController();
  const aborted = bench.ask('x', 4, { signal: controller.signal });
  controller.abort();
  await t.throwsAsync(aborted, { code: 'KV_ABORTED' });
  await turn();
  t.is(bench.called, '');
});

test('a failure is that of all requests that wait, and the next request computes again', async (t) => {
  const bench = new EncoderBench(6);
  const requests = [bench.ask('x', 4), bench.ask('x', 4)];
  const waiting = bench.take('other', 6);
  await turn();
  const mine = new Error('mine');
  bench.calls[0]!.fail(mine);
  for (const request of requests) t.is(await t.throwsAsync(request), mine);
  t.is(bench.called, 'x other', 'one content is not tried once per request');
  (await waiting).release();
  t.deepEqual(bench.encoder.range(await bench.take('x', 4)), rowsOf('x', 4));
});

test('an encoder that throws instead of rejecting fails alike, with whatever it throws', async (t) => {
  const bench = new EncoderBench(6);
  for (const thrown of [undefined, null, 1, 'text']) {
    const compute = (): never => { throw thrown; }; // eslint-disable-line @typescript-eslint/only-throw-error
    await bench.take('x', 4, { compute }).then(() => t.fail(), (error: unknown) => t.is(error, thrown));
  }
  t.like(bench.encoder.counts(), { items: 0, usedBytes: 0, waitingRequests: 0, computingItems: 0 });
  t.is(bench.encoder.metrics.failures, 4);
});

test('an answer that is not the rows of the item is an error, and is not kept', async (t) => {
  const bench = new EncoderBench(20);
  const answers: readonly [answer: unknown, received?: string, more?: object][] = [
    [undefined], [[1, 2]], [new Float64Array(8)], [new Uint8Array(8)], [new Float32Array(10), '10 elements'], [{ length: 8 }],
    [new Float32Array(7), '7 elements', { tokens: undefined }], [new Float32Array(0), '0 elements', { tokens: undefined }],
  ];
  for (const [answer, received = answer, more] of answers) {
    await refusesAsync(t, bench.take('x', 4, { compute: () => answer as never, ...more }),
      'KV_INVALID_OPTION', { isReturned: true, received });
  }
  t.like(bench.encoder.counts(), { items: 0, usedBytes: 0 });
});

test('a hash with another number of rows is a mistake of the request that says so, and of no other', async (t) => {
  const bench = new EncoderBench(20);
  const unknown = bench.ask('x', 4, { tokens: undefined });
  const wrong = bench.ask('x', 5);
  await turn();
  bench.calls[0]!.answer();
  await refusesAsync(t, wrong, 'KV_INVALID_OPTION', { reason: 'range', option: 'tokens', received: 5 });
  const held = await unknown;
  await refusesAsync(t, bench.take('x', 3), 'KV_INVALID_OPTION', { option: 'tokens', received: 3 });
  const running = bench.ask('y', 2);
  await t.throwsAsync(bench.take('y', 3), { code: 'KV_INVALID_OPTION' });
  await turn();
  bench.calls[1]!.answer();
  (await running).release();
  held.release();
  t.like(bench.encoder.counts(), { items: 2, heldItems: 0, waitingRequests: 0 });
});

test('an encoder may use the cache', async (t) => {
  const bench = new EncoderBench(6);
  const held = await bench.take('held', 4);
  const hold = await bench.take('outer', 2, {
    compute: async () => {
      held.release();
      bench.encoder.clear();
      const inner = await bench.take('inner', 2);
      const rows = bench.encoder.range(inner).slice();
      inner.release();
      return rows;
    },
  });
  t.deepEqual(bench.encoder.range(hold), rowsOf('inner', 2));
});

test('a listener of an abort may use the cache', async (t) => {
  const bench = new EncoderBench(6);
  const controller = new AbortController();
  const aborted = bench.ask('x', 6, { signal: controller.signal });
  const next = bench.take('y', 6);
  await turn();
  bench.calls[0]!.signal.addEventListener('abort', () => bench.encoder.close());
  controller.abort();
  await t.throwsAsync(aborted, { code: 'KV_ABORTED' });
  await t.throwsAsync(next, { code: 'KV_CLOSED' });
});
