// What eviction of side tensors costs, and which text it takes.
// Alone in its process: it collects garbage.

import test from 'ava';

import { SideCover } from '#internal/side/side-cover.js';
import { KvCache } from 'virtual-kv';
import { SideSpeaker } from './side-speaker.js';

const pageBytes = 64 * 1024;
const held = 200;

test('texts in use are not looked at for the pages that are evicted', (t) => {
  using cache = new KvCache({
    model: { layers: 1, kvHeads: 1, headDim: 64, dtype: 'float16' }, slots: 2, maxTokens: 64, memoryBudgetBytes: 2 ** 26, driver: 'host', pageBytes,
    mapper: 'off', handOverSlots: held, sideTensors: { hidden: { width: 16_384, dtype: 'float32', pageBytes } }, // a page each token
    sideBudgetBytes: 500 * pageBytes,
  });
  const rows = new Float32Array(50 * 16_384);
  const say = (tokens: readonly number[]): void => {
    const batch = cache.createBatch();
    const sequence = cache.acquire({ tokens });
    batch.add(sequence, tokens.length);
    cache.prepare(batch);
    cache.writeSide(batch, { hidden: rows.subarray(0, tokens.length * 16_384) });
    cache.commit(batch);
    if (tokens.length === 1) sequence.handOver();
    sequence.release();
  };
  for (let text = 0; text < held; text += 1) say([text]); // used longest ago, and kept
  const cached = [1000, 2000, 3000, 4000].map((first) => Array.from({ length: 50 }, (_, index) => first + index));
  for (const text of cached) say(text);
  t.is(cache.sideCounts().usedBytes, 400 * pageBytes);

  const { isEnd } = SideCover.prototype;
  let asked = 0;
  SideCover.prototype.isEnd = function (this: SideCover, page: number): boolean {
    asked += 1;
    return isEnd.call(this, page);
  };
  try {
    cache.setSideBudget((held + 20) * pageBytes);
  } finally {
    SideCover.prototype.isEnd = isEnd;
  }
  t.is(cache.sideCounts().usedBytes, (held + 20) * pageBytes);
  t.true(asked <= 2 * 180, `${asked} pages were looked at for 180 that went`);
  for (const [index, tokens] of [0, 0, 0, 20].entries()) {
    t.is(cache.prefixes.explain({ tokens: [...cached[index]!, 1], needs: ['hidden'] }).tokens, tokens, `text ${index}`);
  }
  cache.verify();
});

test('a text that was looked at for eviction and is used again then goes last', (t) => {
  using cache = new KvCache({
    model: { layers: 1, kvHeads: 1, headDim: 64, dtype: 'float16' }, slots: 2, maxTokens: 64, memoryBudgetBytes: 2 ** 24, driver: 'host', pageBytes,
    mapper: 'off', sideTensors: { hidden: { width: 16_384, dtype: 'float32', pageBytes } }, sideBudgetBytes: 100 * pageBytes,
  });
  const say = (tokens: readonly number[]): void => {
    const sequence = cache.acquire({ tokens });
    const batch = cache.createBatch();
    batch.add(sequence, tokens.length - sequence.cachedTokens);
    cache.prepare(batch);
    cache.writeSide(batch, { hidden: new Float32Array((tokens.length - sequence.cachedTokens) * 16_384) });
    cache.commit(batch);
    sequence.release();
  };
  const [one, other] = [[1, 2, 3, 4, 5, 6], [11, 12, 13, 14, 15, 16]];
  say(one);
  say(other);
  cache.setSideBudget(11 * pageBytes); // the end of the first goes, which stays the oldest
  const found = (text: readonly number[]): number => cache.prefixes.explain({ tokens: [...text, 99], needs: ['hidden'] }).tokens;
  t.deepEqual([found(one), found(other)], [5, 6]);
  say(one);
  cache.setSideBudget(10 * pageBytes);
  t.deepEqual([found(one), found(other)], [6, 4]);
});

for (const names of [['narrow', 'wide'], ['wide', 'narrow']] as const) {
  test(`tensors used at the same time lose the end of a text together, the wider one first, whichever is declared first (${names.join(', ')})`, (t) => {
    const shapes = { narrow: { width: 4096, dtype: 'float32', pageBytes }, wide: { width: 8192, dtype: 'float32', pageBytes: 2 * pageBytes } } as const; // 4 tokens a page
    using cache = new KvCache({
      model: { layers: 1, kvHeads: 1, headDim: 64, dtype: 'float16' }, slots: 2, maxTokens: 64, memoryBudgetBytes: 2 ** 24, driver: 'host', pageBytes,
      mapper: 'off', sideTensors: Object.fromEntries(names.map((name) => [name, shapes[name]])), sideBudgetBytes: 9 * pageBytes,
    });
    const text = Array.from({ length: 12 }, (_, index) => index + 1);
    const speaker = new SideSpeaker(cache);
    speaker.cacheText(text);
    const found = (needs?: readonly string[]): number => cache.prefixes.lookup({ tokens: [...text, 99], needs }).cachedTokens;
    const state = (): number[] => [cache.sideCounts().usedBytes / pageBytes, found(['narrow']), found(['wide']), found()];
    t.deepEqual(state(), [9, 12, 12, 12]);
    cache.setSideBudget(8 * pageBytes); // one page of the narrow one would do
    t.deepEqual(state(), [7, 12, 8, 8]);
    cache.setSideBudget(6 * pageBytes); // what a request that needs both cannot use goes before what it can
    t.deepEqual(state(), [6, 8, 8, 8]);
    cache.setSideBudget(9 * pageBytes);
    cache.acquire({ tokens: [...text, 99], needs: ['narrow'] }).release();
    cache.setSideBudget(3 * pageBytes);
    t.deepEqual(state(), [2, 8, 0, 0], 'what was used later stays');
    cache.verify();
  });
}
