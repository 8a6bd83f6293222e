// How an engine names rows that are on its device: memory or addresses, from a byte on, of a stream; on every driver, to every place; and
// what is refused.

import test from 'ava';

import { DeviceMemory, Driver, KvCache } from 'virtual-kv';

import { refuses } from '../helpers/refuses.js';
import { CopyBench, KiB, shapes, text } from './copy-bench.js';
import { DeviceSource } from './device-source.js';
import { SideSpeaker, type Spoken } from './side-speaker.js';

for (const place of ['host', 'device'] as const) {
  test(`on host the same call copies at once (${place})`, (t) => {
    const driver = Driver.open('host');
    const sideTensors = { whole: { ...shapes.whole, place }, odd: { ...shapes.odd, place } };
    const cache = new KvCache({
      model: { layers: 1, kvHeads: 16, headDim: 256, dtype: 'float32' }, slots: 2, maxTokens: 64, memoryBudgetBytes: 2 ** 24, pageBytes: 64 * KiB, driver,
      mapper: 'off', sideTensors, sideBudgetBytes: 2 ** 24,
    });
    const source = new DeviceSource(driver);
    const speaker = new SideSpeaker(cache, source);
    const spoken = speaker.say(text);
    source.stream = driver.acquireStream();
    speaker.decode(spoken, 11);
    const handOver = spoken.sequence.handOver();
    t.deepEqual([handOver.arrivedTokens, speaker.wrongRows(handOver, spoken.text)], [11, 0]);
    handOver.close();
    spoken.sequence.release();
    t.is(cache.prefixes.lookup({ tokens: [...text, 11, 12] }).cachedTokens, 11);
    t.like(cache.sideCounts(), { registeredBytes: 0, pageableBytes: 0 });
    const again = cache.acquire({ tokens: [30] });
    const batch = cache.createBatch();
    batch.add(again, 1);
    cache.prepare(batch);
    t.throws(() => cache.writeSide(batch, { whole: 4096n }), { code: 'KV_COPY_OUT_OF_RANGE' }, 'an address that nothing is mapped at');
    cache.discard(batch);
    again.release();
    driver.releaseStream(source.stream);
    source.free();
    cache.close();
    driver.close();
  });
}

test('rows on the device go to a tensor on the device', (t) => {
  const bench = new CopyBench(t, { sideTensors: { whole: { ...shapes.whole, place: 'device' } } });
  const { cache, device, speaker } = bench;
  const spoken = speaker.say(text);
  t.deepEqual([bench.found(), bench.calls('cuMemcpyDtoHAsync'), bench.calls('cuMemHostRegister')], [0, 0, 0]);
  device.completeAll();
  t.is(bench.found(), 10);
  const handOver = spoken.sequence.handOver();
  t.is(speaker.wrongRows(handOver, text), 0);
  handOver.close();
  spoken.sequence.release();
  t.is(cache.counts().retiringSlots, 0);
  bench.close();
});

test('`Sequence.writeSide` takes the rows of all tokens that are being computed', (t) => {
  const bench = new CopyBench(t, { sideTensors: { narrow: shapes.narrow } });
  const { cache, device, speaker } = bench;
  const spoken: Spoken = { sequence: cache.acquire({ tokens: text }), text };
  const batch = cache.createBatch();
  batch.add(spoken.sequence, 6);
  cache.prepare(batch);
  const rows = speaker.rowsOf([spoken], 6)['narrow']!;
  spoken.sequence.writeSide(0, { narrow: rows.subarray(0, 32) });
  spoken.sequence.writeSide(2, { narrow: bench.source.put(rows.slice(32)) });
  cache.commit(batch);
  device.completeAll();
  t.is(bench.found(), 6);
  spoken.sequence.release();
  bench.isRight();
  bench.close();
});

test('rows on the device that cannot be are refused, and nothing counts', (t) => {
  const bench = new CopyBench(t, { sideTensors: { narrow: shapes.narrow } });
  const { cache, device, source, speaker } = bench;
  const spoken: Spoken = { sequence: cache.acquire({ tokens: text }), text };
  const batch = cache.createBatch();
  batch.add(spoken.sequence, 10);
  cache.prepare(batch);
  const rows = source.put(speaker.rowsOf([spoken], 10)['narrow']!);
  const memory = new DeviceMemory({ driver: device.driver, bytes: 10 * 64 });
  const other = Driver.open('host');
  const foreign = new DeviceMemory({ driver: other, bytes: 10 * 64 });
  const write = (narrow: unknown): void => cache.writeSide(batch, { narrow: narrow as bigint });
  refuses(t, () => write({ memory, atByte: 1 }), 'KV_INVALID_OPTION', { option: 'rows.narrow', received: 640 });
  refuses(t, () => write(foreign), 'KV_INVALID_OPTION', { option: 'rows.narrow', received: foreign });
  t.throws(() => write({ memory, at: 1 }), { code: 'KV_UNKNOWN_OPTION' });
  t.throws(() => write({ memory: 0n }), { code: 'KV_INVALID_OPTION' });
  refuses(t, () => write({ memory: 7 }), 'KV_INVALID_OPTION', { option: 'rows.narrow.memory', received: 7 });
  t.throws(() => write(-1n), { code: 'KV_INVALID_OPTION' });
  t.throws(() => write({ memory, atByte: -1 }), { code: 'KV_INVALID_OPTION' });
  t.throws(() => write({ memory, stream: 'legacy' }), { code: 'KV_INVALID_OPTION' });
  t.throws(() => write(Object.create(DeviceMemory.prototype)), { code: 'KV_INVALID_OPTION' });
  t.throws(() => write({ memory, stream: 12345n }), { code: 'KV_DRIVER_MISUSE' });
  memory.close();
  t.throws(() => write(memory), { code: 'KV_CLOSED' });
  t.is(spoken.sequence.sideTokens('narrow'), 0);
  device.clearMisuses();
  write(rows);
  cache.commit(batch);
  device.completeAll();
  t.is(bench.found(), 10);
  spoken.sequence.release();
  foreign.close();
  other.close();
  bench.close();
});
