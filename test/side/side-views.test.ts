// How rows of side tensors are seen: a view takes as much as was asked for, is shared with the next one where it can be, and shows the
// bytes of its tokens wherever it begins.

import { execFile } from 'node:child_process';
import * as path from 'node:path';
import { promisify } from 'node:util';

import test from 'ava';

import { HandOver, KvCache, type Batch, type Sequence, type SideDtype, type SideView } from 'virtual-kv';
import { Random } from '#internal/base/random.js';
import { seedOf } from '../helpers/seed.js';
import { slow } from '../runner/slow.js';

const KiB = 1024;
const MiB = KiB * KiB;
const width = 1000; // 250 pages of 64 KiB for 4,096 tokens; a page and a mebibyte end inside a token
const tokens = 4096;
const text = Int32Array.from({ length: tokens }, (_, index) => index);

interface World extends Disposable {
  readonly cache: KvCache;
  readonly handOver: HandOver;
  readonly batch: Batch;
  readonly sequence: Sequence;
}

function written(pageBytes = 64 * KiB): World {
  const cache = new KvCache({
    model: { layers: 1, kvHeads: 1, headDim: 64, dtype: 'float32' }, slots: 2, maxTokens: 2 * tokens, memoryBudgetBytes: 2 ** 24, driver: 'host',
    pageBytes: 64 * KiB, mapper: 'off', sideTensors: { hidden: { width, dtype: 'float32', pageBytes } },
  });
  const sequence = cache.acquire({ tokens: text });
  const batch = cache.createBatch();
  batch.add(sequence, tokens);
  cache.prepare(batch);
  cache.writeSide(batch, { hidden: rowsOf(0, tokens) });
  cache.commit(batch);
  const handOver = sequence.handOver();
  return {
    cache, handOver, batch, sequence, [Symbol.dispose]: () => {
      handOver.close();
      cache.close();
    },
  };
}

/** Each element says which it is. */
function rowsOf(from: number, to: number): Float32Array {
  return Float32Array.from({ length: (to - from) * width }, (_, index) => from * width + index);
}

function isRight(rows: Readonly<SideView>, from: number, to: number): boolean {
  return rows.length === (to - from) * width && rows.every((value, index) => value === from * width + index);
}

test('a few rows of a long text are a small buffer, and the next ones are in the same', (t) => {
  using world = written();
  const { handOver } = world;
  t.true(isRight(handOver.rows('hidden', 0, 1), 0, 1));
  const first = handOver.rows('hidden', 1, 2);
  t.true(isRight(first, 1, 2));
  t.is(first.buffer.byteLength, MiB);
  for (let token = 2; token < 200; token += 1) t.is(handOver.rows('hidden', token, token + 1).buffer, first.buffer);
  const last = handOver.rows('hidden', tokens - 1, tokens);
  t.true(isRight(last, tokens - 1, tokens));
  t.true(last.buffer.byteLength <= MiB);
});

test('all rows are one array, also where some of them were seen before, and short ranges are parts of it from then on', (t) => {
  using world = written();
  const { handOver } = world;
  const part = handOver.rows('hidden', 1000, 1001);
  const all = handOver.rows('hidden');
  t.true(isRight(all, 0, tokens));
  t.true(isRight(part, 1000, 1001));
  t.is(handOver.rows('hidden', 3000, 3001).buffer, all.buffer);
});

test('the first look at a few rows is a copy of them alone, the next one and one at many rows are windows', (t) => {
  using world = written();
  const { handOver } = world;
  const first = handOver.rows('hidden', 100, 103);
  t.true(isRight(first, 100, 103));
  t.is(first.buffer.byteLength, 3 * 4 * width);
  t.is(handOver.rows('hidden', 101, 102).buffer, first.buffer, 'what is in the copy is found there');
  t.is(handOver.rows('hidden', 103, 104).buffer.byteLength, MiB);
  using other = written();
  t.true(other.handOver.rows('hidden', 100, 110).buffer.byteLength > 10 * 4 * width);
});

test('a copy of a hit shows its rows wherever it begins, across the ends of pages too', (t) => {
  using world = written();
  const { cache, sequence } = world;
  sequence.release();
  for (const [from, to] of [[0, 1], [16, 17], [15, 19], [32, 40], [4091, 4095]] as const) {
    const hit = cache.acquire({ tokens: text, caching: 'read' });
    using handOver = hit.handOver();
    const rows = handOver.rows('hidden', from, to);
    t.is(rows.buffer.byteLength, (to - from) * 4 * width);
    t.true(isRight(rows, from, to), `${from} to ${to}`);
    hit.release();
  }
});

test('a copy is detached as a window is: once its sequence and hand-over have ended, and where the sequence is truncated before its end', (t) => {
  using world = written();
  const { handOver, sequence } = world;
  const first = handOver.rows('hidden', 4000, 4001);
  sequence.truncate(4000);
  t.is(first.length, 0);
  const second = handOver.rows('hidden', 10, 11);
  t.true(isRight(second, 10, 11));
  handOver.close();
  t.is(second.length, width, 'the sequence still has its rows');
  sequence.release();
  t.is(second.length, 0);
});

for (const look of ['first', 'second'] as const) {
  test(`a view is detached where its sequence is truncated before its end, also where no page is unmapped (${look} look)`, (t) => {
    using cache = new KvCache({
      model: { layers: 1, kvHeads: 1, headDim: 64, dtype: 'float32' }, slots: 1, maxTokens: 64, memoryBudgetBytes: 2 ** 22, driver: 'host',
      pageBytes: 64 * KiB, mapper: 'off', sideTensors: { hidden: { width: 8, dtype: 'float32', pageBytes: 64 * KiB } },
    });
    const sequence = cache.acquire({ tokens: text.subarray(0, 8) });
    const batch = cache.createBatch();
    batch.add(sequence, 8);
    cache.prepare(batch);
    cache.writeSide(batch, { hidden: new Float32Array(8 * 8).fill(5) });
    cache.commit(batch);
    using handOver = sequence.handOver();
    if (look === 'second') handOver.rows('hidden'); // a copy, and then a window
    const all = handOver.rows('hidden');
    t.is(all.length, 64);
    sequence.truncate(2);
    t.is(all.length, 0);
    t.deepEqual([...handOver.rows('hidden', 0, 2)], new Array(16).fill(5));
  });
}

for (const pageBytes of [64 * KiB, 2 * MiB]) {
  const seed = seedOf(`side views ${pageBytes}`);
  slow('views that grow at random')(`ranges drawn at random show their tokens while the text grows (pages of ${pageBytes / KiB} KiB, seed ${seed})`, (t) => {
    using world = written(pageBytes);
    const { cache, handOver, batch, sequence } = world;
    const random = new Random(seed);
    const old: { readonly rows: Readonly<SideView>; readonly from: number; readonly to: number }[] = [];
    for (let round = 0; round < 100; round += 1) {
      const end = handOver.tokens;
      const from = random.integer(end + 1);
      const to = random.integer(2) === 0 ? Math.min(end, from + random.integer(4)) : from + random.integer(end - from + 1);
      const rows = handOver.rows('hidden', from, to);
      t.true(isRight(rows, from, to), `${from} to ${to}`);
      if (old.length < 10) old.push({ rows, from, to });
      const added = random.integer(40);
      if (added === 0) continue;
      batch.clear();
      batch.add(sequence, added);
      cache.prepare(batch);
      cache.writeSide(batch, { hidden: rowsOf(end, end + added) });
      cache.commit(batch);
    }
    for (const { rows, from, to } of old) t.true(isRight(rows, from, to), `${from} to ${to}, at the end`);
    handOver.close();
    sequence.release();
    for (const { rows } of old) t.is(rows.length, 0);
  });
}

test('a part whose buffer was transferred is an error, as is every new one of that slot', (t) => {
  using world = written();
  const { handOver } = world;
  const { buffer } = handOver.rows('hidden', 0, 1);
  const { transfer } = ArrayBuffer.prototype as { transfer?: (this: ArrayBuffer) => ArrayBuffer };
  if (transfer === undefined) {
    t.log('no ArrayBuffer.prototype.transfer before Node.js 22');
    t.pass();
    return;
  }
  transfer.call(buffer as ArrayBuffer);
  t.throws(() => handOver.rows('hidden', 0, 1), { code: 'KV_VIEW_TRANSFERRED' });
  t.throws(() => handOver.rows('hidden', 3000, 3001), { code: 'KV_VIEW_TRANSFERRED' });
});

for (const [dtype, rows] of [
  ['int32', Int32Array.of(-(2 ** 31), 2 ** 31 - 1, 151_643, 0)], ['float32', Float32Array.of(1.5, -2, 3, 0)], ['bfloat16', Uint16Array.of(1, 2, 65_535, 0)],
  ['float16', Uint16Array.of(1, 2, 65_535, 0)], ['float8', Uint8Array.of(1, 2, 255, 0)], ['int8', Int8Array.of(1, -128, 127, 0)],
] as const satisfies readonly (readonly [SideDtype, SideView])[]) {
  test(`rows of ${dtype} are written and read as a ${rows.constructor.name}`, (t) => {
    using cache = new KvCache({
      model: { layers: 1, kvHeads: 1, headDim: 64, dtype: 'float32' }, slots: 2, maxTokens: 64, memoryBudgetBytes: 2 ** 22, driver: 'host',
      pageBytes: 64 * KiB, mapper: 'off', sideTensors: { codes: { width: 2, dtype } },
    });
    t.is(cache.sideTensors[0]!.tokenBytes, 2 * rows.BYTES_PER_ELEMENT);
    const sequence = cache.acquire({ tokens: [7, 8] });
    const batch = cache.createBatch();
    batch.add(sequence, 2);
    cache.prepare(batch);
    t.throws(() => cache.writeSide(batch, { codes: new Float64Array(4) as never }), { code: 'KV_INVALID_OPTION', message: new RegExp(`a ${rows.constructor.name} of 2 × 2`) });
    cache.writeSide(batch, { codes: rows });
    cache.commit(batch);
    sequence.release();
    const again = cache.acquire({ tokens: [7, 8, 9], needs: ['codes'] });
    t.is(again.cachedTokens, 2);
    using handOver = again.handOver();
    t.deepEqual(handOver.rows('codes'), rows);
  });
}

async function seenBy(scenario: string): Promise<Readonly<Record<string, number>>> {
  const program = path.join(__dirname, 'viewed-hits.js');
  const { stdout } = await promisify(execFile)(process.execPath, ['--expose-gc', '--no-warnings', program, scenario]);
  return JSON.parse(stdout) as Record<string, number>;
}

test('V8 collects garbage while it learns of views of long texts, not with each hit: they own no memory', async (t) => {
  const { hits, quiet } = await seenBy('many hits');
  t.true(quiet! >= 50, `no ${quiet} hits in a row without a collection, in ${hits}`);
});

slow('views that grow at random')('however a view ends, V8\'s count of external memory comes back to where it was, and never falls below zero', async (t) => {
  const { leftMiB } = await seenBy('every end of a view'); // V8 of Node 24 and later ends a process whose count falls below zero
  t.true(Math.abs(leftMiB!) < 10, `${leftMiB} MiB`);
});
