// Rows of side tensors that an engine computes on the device: they are copied to the CPU's memory on a stream of their own, and count once
// they are there. On the mock's manual streams nothing happens until a test says so.

import test, { type ExecutionContext } from 'ava';

import { DeviceMemory, type HandOver } from 'virtual-kv';

import { CopyBench, KiB, longer, shapes, text } from './copy-bench.js';
import type { Spoken } from './side-speaker.js';

test('rows from the device are found once they have arrived, and by one copy per run of pages, for which nothing waits', (t) => {
  const bench = new CopyBench(t, { sideTensors: { whole: shapes.whole } });
  const { cache, device, speaker } = bench;
  const spoken = { sequence: cache.acquire({ tokens: text }), text };
  device.resetCallCounts();
  device.clearJournal();
  const before = bench.calls('cuStreamSynchronize');
  const batch = cache.createBatch();
  batch.add(spoken.sequence, 10);
  cache.prepare(batch);
  const rows = bench.source.putAll(speaker.rowsOf([spoken], 10));
  const waits = bench.calls('cuStreamSynchronize') - before;
  cache.writeSide(batch, rows);
  cache.commit(batch);
  t.is(bench.calls('cuMemcpyDtoHAsync'), 1, 'three pages that follow each other');
  t.is(bench.calls('cuMemHostRegister'), 1);
  t.deepEqual([bench.calls('cuStreamSynchronize') - before, bench.calls('cuEventSynchronize')], [waits, 0]);
  t.is(cache.sideCounts().registeredBytes, 3 * 64 * KiB);
  const handOver = spoken.sequence.handOver();
  const slotAddress = handOver.address('whole');
  const copy = device.journal().find(({ call }) => call === 'cuMemcpyDtoHAsync')!;
  t.true(copy.address + BigInt(copy.bytes) <= slotAddress || copy.address >= slotAddress + 2n ** 20n, 'not to the addresses of the slot');

  t.deepEqual([bench.found(), handOver.tokens, handOver.arrivedTokens], [0, 10, 0]);
  t.is(cache.prefixes.lookup({ tokens: longer, needs: [] }).cachedTokens, 10);
  t.like(cache.prefixes.explain({ tokens: longer }), { reason: 'side-never-written', sideTensor: 'whole' });
  device.completeAll();
  t.deepEqual([bench.found(), handOver.arrivedTokens], [10, 10]);
  t.is(speaker.wrongRows(handOver, text), 0);
  handOver.close();
  spoken.sequence.release();
  bench.isRight();
  t.is(bench.calls('cuMemHostRegister'), 1, 'pages stay registered');
  bench.close();
});

/** Five texts of 3, 4 … tokens, and one token more of each in one batch: what the device did for that. */
function decodeTogether(bench: CopyBench): { readonly copies: number; readonly launches: number; readonly spoken: readonly Spoken[] } {
  const spoken = [3, 4, 5, 6, 7].map((tokens) => bench.speaker.say(Array.from({ length: tokens }, (_, at) => 100 * tokens + at)));
  bench.device.completeAll();
  for (const { sequence, text: own } of spoken) {
    sequence.append(77);
    own.push(77);
  }
  bench.device.resetCallCounts();
  bench.speaker.compute(spoken, 1);
  return { copies: bench.calls('cuMemcpyDtoHAsync'), launches: bench.calls('cuLaunchKernel'), spoken };
}

function areRight(t: ExecutionContext, { speaker, device }: CopyBench, spoken: readonly Spoken[]): void {
  device.completeAll();
  for (const { sequence, text: own } of spoken) {
    const handOver = sequence.handOver();
    t.deepEqual([handOver.arrivedTokens, speaker.wrongRows(handOver, own)], [own.length, 0]);
    handOver.close();
    sequence.release();
  }
}

test('the rows of a decoding step go to the pages of all its sequences by one launch per tensor', (t) => {
  const bench = new CopyBench(t, { slots: 5, sideTensors: { whole: shapes.whole, narrow: shapes.narrow, third: { width: 333, dtype: 'float32' } } });
  const { copies, launches, spoken } = decodeTogether(bench);
  t.deepEqual([copies, launches], [0, 3]);
  t.is(bench.device.pendingWork > 0, true, 'queued, like copies');
  areRight(t, bench, spoken);
  bench.close();
});

for (const [call, what] of [
  ['cuModuleLoadDataEx', 'the device refuses the kernel'], ['cuMemHostGetDevicePointer', 'the kernel cannot write to registered pages'],
  ['cuMemHostRegister', 'no page is registered'],
] as const) {
  test(`where ${what}, the rows of a step are copied one by one`, (t) => {
    const bench = new CopyBench(t, { slots: 5, sideTensors: { narrow: shapes.narrow } });
    bench.device.failCall(call, { result: 'CUDA_ERROR_NOT_SUPPORTED', times: 1000 });
    const { copies, launches, spoken } = decodeTogether(bench);
    t.deepEqual([copies, launches], [5, 0]);
    areRight(t, bench, spoken);
    bench.close();
  });
}

test('rows that are too long for the kernel are copied, whatever goes beside them', (t) => {
  const bench = new CopyBench(t, { slots: 5, sideTensors: { odd: { ...shapes.odd, pageBytes: 1024 * KiB }, narrow: shapes.narrow } });
  const { copies, launches, spoken } = decodeTogether(bench);
  t.deepEqual([copies, launches], [5, 1], 'rows of 80,000 bytes, and of 64');
  areRight(t, bench, spoken);
  bench.close();
});

test('a slot that is released while its rows are on their way is leased again once they are there, and its text is found', (t) => {
  const bench = new CopyBench(t, { slots: 1 });
  const { cache, device, speaker } = bench;
  speaker.cacheText(text);
  t.like(cache.counts(), { retiringSlots: 1 });
  t.throws(() => cache.acquire({ tokens: [50] }), { code: 'KV_NO_FREE_SLOT' });
  device.completeAll();
  t.like(cache.counts(), { retiringSlots: 0 });
  t.is(bench.found(), 10);
  bench.isRight();
  bench.close();
});

test('the wait for a free slot ends when the rows of a released one have arrived', async (t) => {
  const bench = new CopyBench(t, { slots: 1 });
  bench.speaker.cacheText(text);
  const free = bench.cache.slotFree();
  bench.device.completeAll();
  await t.notThrowsAsync(free);
  bench.close();
});

test('pages that rows are on their way to are not evicted, and what was there before is', (t) => {
  const bench = new CopyBench(t, { sideTensors: { whole: shapes.whole }, sideBudgetBytes: 5 * 64 * KiB });
  const { device, speaker } = bench;
  speaker.cacheText([30, 31, 32, 33, 34, 35, 36, 37]);
  device.completeAll();
  t.is(bench.found([30, 31, 32, 33, 34, 35, 36, 37, 38]), 8);
  const one = speaker.say(text); // three pages, under way
  one.sequence.release();
  t.throws(() => speaker.say([40, 41, 42, 43, 44, 45, 46, 47, 48]), { code: 'KV_OUT_OF_PAGES' });
  device.completeAll();
  t.is(bench.found(), 10);
  bench.isRight();
  bench.close();
});

test('tokens taken back while their rows are on their way do not count, and other rows in their place do', (t) => {
  const bench = new CopyBench(t);
  const { cache, device, speaker } = bench;
  const spoken = speaker.say(text);
  spoken.sequence.truncate(5);
  spoken.text = text.slice(0, 5);
  const handOver = spoken.sequence.handOver();
  t.deepEqual([handOver.tokens, handOver.arrivedTokens], [5, 0]);
  speaker.decode(spoken, 60); // behind the first copy
  speaker.decode(spoken, 61);
  t.is(handOver.tokens, 7);
  device.completeAll();
  t.deepEqual([bench.found([1, 2, 3, 4, 5, 60, 61, 62]), bench.found()], [7, 5]);
  t.is(speaker.wrongRows(handOver, spoken.text), 0);
  handOver.close();
  spoken.sequence.release();
  bench.isRight([1, 2, 3, 4, 5, 60, 61, 62]);
  t.is(cache.counts().retiringSlots, 0);
  bench.close();
});

test('a fork waits for rows on their way; both go on with rows of their own', (t) => {
  const bench = new CopyBench(t);
  const { device, speaker } = bench;
  const parent = speaker.say(text);
  const child: Spoken = { sequence: parent.sequence.fork(), text: [...text] };
  t.is(bench.found(), 10, 'the wait has brought them');
  speaker.decode(child, 70);
  speaker.decode(parent, 71);
  for (const spoken of [parent, child]) {
    const handOver = spoken.sequence.handOver();
    t.true(handOver.arrivedTokens >= 10);
    t.is(speaker.wrongRows(handOver, spoken.text), 0, 'reading waits');
    t.is(handOver.arrivedTokens, 11);
    handOver.close();
    spoken.sequence.release();
  }
  device.completeAll();
  t.deepEqual([bench.found([...text, 70, 0]), bench.found([...text, 71, 0])], [11, 11]);
  bench.close();
});

test('a batch that is discarded leaves nothing of its rows, whenever they arrive', (t) => {
  const bench = new CopyBench(t);
  const { cache, device, speaker } = bench;
  const spoken: Spoken = { sequence: cache.acquire({ tokens: text }), text };
  const batch = cache.createBatch();
  batch.add(spoken.sequence, 10);
  cache.prepare(batch);
  cache.writeSide(batch, bench.source.putAll(speaker.rowsOf([{ ...spoken, text: [...text].reverse() }], 10)));
  cache.discard(batch);
  cache.prepare(batch);
  cache.writeSide(batch, bench.source.putAll(speaker.rowsOf([spoken], 10)));
  cache.commit(batch);
  t.is(bench.found(), 0);
  device.completeAll();
  t.is(bench.found(), 10);
  spoken.sequence.release();
  bench.isRight();
  bench.close();
});

test('a write of rows on two streams that is refused at the second counts in no tensor', (t) => {
  const bench = new CopyBench(t);
  const { cache, device, source, speaker } = bench;
  const spoken = speaker.say(text);
  const { sequence } = spoken;
  sequence.append([11, 12, 13, 14]);
  const batch = cache.createBatch();
  batch.add(sequence, 4);
  cache.prepare(batch);
  const given = source.putAll(speaker.rowsOf([{ ...spoken, text: [...text, 11, 12, 13, 14] }], 4));
  const stream = device.driver.acquireStream();
  device.failCall('cuEventRecord', { nth: 3, result: 999 }); // two for each stream
  t.throws(() => { cache.writeSide(batch, { ...given, narrow: { ...given['narrow']!, stream } }); }, { code: 'KV_DRIVER_CALL_FAILED' });
  cache.commit(batch);
  device.completeAll();
  sequence.truncate(12);
  sequence.append([80, 81]);
  batch.clear();
  batch.add(sequence, 2);
  cache.prepare(batch);
  cache.commit(batch);
  for (const name of Object.keys(shapes)) {
    t.is(cache.prefixes.lookup({ tokens: [...text, 11, 12, 80, 81, 1], needs: [name] }).cachedTokens, 10, name);
  }
  sequence.release();
  device.driver.releaseStream(stream);
  bench.close();
});

test('rows written again before the commit count once the last of them are there', (t) => {
  const bench = new CopyBench(t);
  const { cache, device, speaker } = bench;
  const spoken: Spoken = { sequence: cache.acquire({ tokens: text }), text };
  const batch = cache.createBatch();
  batch.add(spoken.sequence, 10);
  cache.prepare(batch);
  const wrong = speaker.rowsOf([{ ...spoken, text: [...text].reverse() }], 10);
  cache.writeSide(batch, bench.source.putAll(wrong));
  cache.writeSide(batch, speaker.rowsOf([spoken], 10)); // from the CPU, behind the copy
  cache.commit(batch);
  t.is(bench.found(), 10);
  device.completeAll();
  spoken.sequence.release();
  bench.isRight();
  bench.close();
});

test('the engine may write its rows again on the stream that it named: that runs behind the copy', (t) => {
  const bench = new CopyBench(t, { sideTensors: { narrow: shapes.narrow }, slots: 1 });
  const { cache, device } = bench;
  const memory = new DeviceMemory({ driver: device.driver, bytes: 4 * 16 * 4 });
  const stream = device.driver.acquireStream();
  const sequence = cache.acquire({ tokens: [1, 2, 3, 4] });
  const batch = cache.createBatch();
  batch.add(sequence, 4);
  cache.prepare(batch);
  memory.write(new Float32Array(64).fill(7));
  cache.writeSide(batch, { narrow: { memory, stream } });
  cache.commit(batch);
  memory.write(new Float32Array(64).fill(8), 0, stream); // behind the stream, and so behind the copy
  const handOver = sequence.handOver();
  t.is(handOver.arrivedTokens, 4);
  t.deepEqual([...handOver.rows('narrow')], new Array<number>(64).fill(7));
  handOver.close();
  sequence.release();
  memory.close();
  device.driver.releaseStream(stream);
  bench.close();
});

test('where the device registers no memory the rows are the same, and the count of bytes says so', (t) => {
  const bench = new CopyBench(t, { sideTensors: { whole: shapes.whole } });
  bench.device.failCall('cuMemHostRegister', { result: 'CUDA_ERROR_OUT_OF_MEMORY', times: 1000 });
  bench.speaker.cacheText(text);
  t.like(bench.cache.sideCounts(), { registeredBytes: 0, pageableBytes: 10 * 16 * KiB });
  t.is(bench.calls('cuMemHostRegister'), 1, 'it is not asked again');
  t.is(bench.calls('cuMemcpyDtoHAsync'), 1);
  bench.device.completeAll();
  t.is(bench.found(), 10);
  bench.isRight();
  bench.close();
});

test('a page that is given back to the system is unregistered first, behind copies to its neighbours', (t) => {
  const bench = new CopyBench(t, { sideTensors: { whole: shapes.whole } });
  const { cache, device, speaker } = bench;
  const spoken = speaker.say(text);
  device.completeAll();
  t.is(cache.sideCounts().registeredBytes, 3 * 64 * KiB);
  spoken.sequence.truncate(0);
  spoken.text = [];
  spoken.sequence.append([20, 21]);
  spoken.text.push(20, 21);
  speaker.compute([spoken], 2); // one of the three pages is written to
  t.is(device.pendingWork > 0, true);
  cache.setSideBudget(64 * KiB);
  t.true(bench.calls('cuMemHostUnregister') >= 1);
  const handOver = spoken.sequence.handOver();
  t.is(speaker.wrongRows(handOver, spoken.text), 0);
  speaker.decode(spoken, 22); // registered again
  t.is(cache.sideCounts().registeredBytes, 64 * KiB);
  device.completeAll();
  t.is(speaker.wrongRows(handOver, spoken.text), 0);
  handOver.close();
  spoken.sequence.release();
  bench.close();
});

test('no address of a slot is registered, whatever was written, shared, detached and cut there', (t) => {
  const bench = new CopyBench(t); // 3 slots, and 2 that hand-overs may keep
  const { device, speaker } = bench;
  const slots: HandOver[] = [];
  const say = (tokens: readonly number[]): Spoken => {
    const spoken = speaker.say(tokens);
    device.completeAll(); // else its slot is not leased again
    slots.push(spoken.sequence.handOver());
    return spoken;
  };
  for (const first of [10, 20]) say([first, ...text]).sequence.release();
  const spoken = [say(text), say([...text.slice(0, 6), 50, 51]), say([60])];
  for (const one of spoken) {
    one.sequence.truncate(one.text.length - 1);
    one.text.length -= 1;
    for (const token of [70, 71, 72, 73]) speaker.decode(one, token);
  }
  const registered = device.journal().filter(({ call }) => call === 'cuMemHostRegister');
  t.true(registered.length >= 3);
  for (const name of Object.keys(shapes)) {
    const addresses = slots.map((handOver) => handOver.address(name)).sort((one, other) => (one < other ? -1 : 1));
    t.is(new Set(addresses).size, 5, 'all slots that the tensor has');
    const end = 2n * addresses[4]! - addresses[3]!;
    t.deepEqual(registered.filter(({ address, bytes }) => address < end && address + BigInt(bytes) > addresses[0]!), [], name);
  }
  for (const handOver of slots) handOver.close();
  for (const { sequence } of spoken) sequence.release();
  bench.close();
});

test('rows of a lost device never arrive: nothing is read in their place', (t) => {
  const bench = new CopyBench(t);
  const { cache, device, speaker } = bench;
  const spoken = speaker.say(text);
  const handOver = spoken.sequence.handOver();
  device.loseDevice();
  t.throws(() => handOver.rows('whole', 0, 10), { code: 'KV_DRIVER_LOST' });
  t.deepEqual([handOver.tokens, handOver.arrivedTokens], [10, 0]);
  t.throws(() => handOver.rows('whole', 0, 10), { code: 'KV_DRIVER_LOST' });
  t.notThrows(() => handOver.rows('whole', 0, 0));
  handOver.close();
  cache.close();
  t.notThrows(() => bench.source.free());
  device.driver.close();
  device.assertNoLeaks();
  device.close();
});

test('several copies under way arrive in their order, each for itself', (t) => {
  const bench = new CopyBench(t, { sideTensors: { narrow: shapes.narrow } });
  const { device, source, speaker } = bench;
  const spoken = speaker.say([1, 2, 3]);
  const handOver = spoken.sequence.handOver();
  device.completeAll();
  source.stream = device.driver.acquireStream();
  speaker.decode(spoken, 4);
  t.deepEqual([handOver.tokens, handOver.arrivedTokens], [4, 3]);
  t.is(bench.found([1, 2, 3, 4, 0]), 3);
  device.completeStream(source.stream);
  t.is(handOver.arrivedTokens, 4, 'the stream waits for the copy');
  speaker.decode(spoken, 5);
  speaker.decode(spoken, 6);
  t.is(handOver.arrivedTokens, 4);
  t.is(speaker.wrongRows(handOver, spoken.text, 4), 0);
  t.is(handOver.arrivedTokens, 4, 'rows that are there are read without waiting');
  handOver.rows('narrow', 4, 5);
  t.is(bench.found([1, 2, 3, 4, 5, 6, 0]), 6);
  handOver.close();
  spoken.sequence.release();
  device.driver.releaseStream(source.stream);
  bench.close();
});
