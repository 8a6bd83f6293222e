// Groups of rows that a shortened sequence shares with others: what it has given up of them is not its own when it ends.

import test from 'ava';

import { KvCache, onDemand } from 'virtual-kv';

import { cacheTest, type BenchOptions } from '../../helpers/cache.js';
import { Speaker, tokensOf } from './spoken.js';

const model = { layers: 3, kvHeads: 2, headDim: 160, valueHeadDim: 96, dtype: 'float16' } as const;
const text = Array.from({ length: 60 }, (_, index) => 7 * index);

test('a sequence that was shortened inside a group of rows leaves no slot that claims the rest of the group', (t) => {
  const cache = new KvCache({ driver: 'host', model, layout: 'sliced', slots: 2, maxTokens: 20_000, memoryBudgetBytes: 2 ** 28, growth: onDemand(), mapper: 'off' });
  const { groupRows } = cache.layout;
  t.true(groupRows > 2, 'the shape has groups of rows');
  const batch = cache.createBatch();
  const long = cache.layout.tokensIn(groupRows); // a whole group
  const tokens = Array.from({ length: long + 1 }, (_, index) => text[index % text.length]! + index);
  const compute = (sequence: ReturnType<KvCache['acquire']>): void => {
    const from = sequence.length;
    batch.clear();
    batch.add(sequence, tokens.length - 1 - from);
    cache.prepare(batch);
    for (let at = from; at < tokens.length - 1; at += 997) cache.stamp(sequence, at, Math.min(997, tokens.length - 1 - at), 1);
    cache.commit(batch);
  };
  const first = cache.acquire({ tokens: tokens.slice(0, -1) });
  compute(first);
  const fork = first.fork();
  fork.truncate(Math.floor(long / groupRows)); // the first rows of the group
  first.release();
  fork.release();
  const again = cache.acquire({ tokens });
  t.true(again.mappedRows >= cache.layout.rowsFor(again.length), `${again.length} tokens have ${again.mappedRows} rows`);
  t.is(cache.verifyStamp(again, 0, again.length, 1), 0);
  cache.close();
});

/** Groups of four rows of four tokens. */
const groups: BenchOptions = {
  model: { layers: 2, layerShapes: [{ kvHeads: 8, headDim: 64 }, { kvHeads: 2, headDim: 64 }], dtype: 'float16' },
  pageBytes: 4096, device: { granularityBytes: 4096 }, slots: 2, maxTokens: 64, memoryBudgetBytes: 100 * 4096, mapper: 'off',
};

cacheTest('rows that a released sequence had given up inside a group are not left in the slot with its text', groups, (t, bench) => {
  const { cache } = bench;
  const { groupRows } = cache.layout;
  t.true(groupRows > 1, 'the shape has groups of rows');
  const speaker = new Speaker(cache);
  const group = tokensOf(1, cache.layout.tokensIn(groupRows));
  const first = speaker.say(group);
  const fork = first.fork();
  const batch = bench.batchOf([first, 1]);
  cache.prepare(batch);
  cache.discard(batch, { fence: { step: 1 } }); // its work goes on
  first.truncate(2);
  fork.release();
  first.release();
  const other = speaker.say(tokensOf(2, 2)); // in the fork's slot
  t.is(other.slot, fork.slot);
  cache.completeStep(1);
  const text = [...group, 7, 8];
  const again = cache.acquire({ tokens: text });
  t.is(again.slot, first.slot);
  t.is(again.cachedTokens, group.length);
  t.true(again.mappedRows >= cache.layout.rowsFor(again.length));
  speaker.compute(again, text, 2);
  t.is(speaker.wrongTokens(again, text), 0);
});

cacheTest('the slot of a fork that failed, and could not be cleared, is leased only without the rows it was to share', groups, (t, bench) => {
  const { cache, mock } = bench;
  const speaker = new Speaker(cache);
  const text = tokensOf(1, cache.layout.tokensIn(cache.layout.groupRows));
  const parent = speaker.say(text);
  cache.counts(); // the rows get a number
  parent.truncate(2); // which still has all of the group
  mock.failCall('cuMemUnmap', { times: 1_000 });
  t.throws(() => parent.fork(), { code: 'KV_DRIVER_CALL_FAILED' });
  mock.clearFailures();
  const other = speaker.say(tokensOf(2, 6), { caching: 'off' });
  t.is(speaker.wrongTokens(other, tokensOf(2, 6)), 0);
  t.is(speaker.wrongTokens(parent, text), 0);
});
