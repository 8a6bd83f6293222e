// Kernels write only what is the sequence's alone: not a fork's rows that its parent maps too, not tokens that are cached.

import { Kernels, type Sequence } from 'virtual-kv';

import { cacheTest, rowTokens, type BenchOptions, type CacheBench } from '../helpers/cache.js';

const options: BenchOptions = { on: 'host' };
const tokens = Array.from({ length: rowTokens + 10 }, (_, index) => index);

const append = (kernels: Kernels, { slot }: Sequence, length: number, count: number): void => {
  const rows = new Float32Array(count * 512);
  const spans = { slots: Int32Array.of(slot), lengths: Int32Array.of(length), tokens: Int32Array.of(count) };
  kernels.append(0, spans, rows, rows);
};

function said(bench: CacheBench, prompt?: readonly number[]): Sequence {
  const sequence = prompt === undefined ? bench.cache.acquire() : bench.cache.acquire({ tokens: prompt });
  bench.compute(sequence, tokens.length);
  bench.cache.stamp(sequence, 0, tokens.length, 7);
  return sequence;
}

for (const isTold of [true, false]) {
  cacheTest(`neither spans nor copies write into what a fork shares, tokens ${isTold ? 'given' : 'not given'}`, options, (t, bench) => {
    using kernels = new Kernels({ cache: bench.cache });
    const parent = said(bench, isTold ? tokens : undefined);
    const fork = parent.fork();
    for (const [from, count] of [[0, 1], [rowTokens - 1, 2], [rowTokens + 1, 3], [tokens.length, 1]] as const) {
      t.throws(() => append(kernels, fork, from, count), { code: 'KV_ROW_SHARED' }, `append at ${from}`);
      const copy = { fromSlot: parent.slot, fromToken: 0, toSlot: fork.slot, toToken: from, tokens: count };
      t.throws(() => kernels.copyTokens([copy]), { code: 'KV_ROW_SHARED' }, `copy to ${from}`);
    }
    t.is(bench.cache.verifyStamp(parent, 0, tokens.length, 7), 0);
    bench.prepare(fork, 1);
    t.notThrows(() => append(kernels, fork, tokens.length, 1), 'its own row by now');
    bench.commit();
    t.is(bench.cache.verifyStamp(parent, 0, tokens.length, 7), 0);
  });
}

cacheTest('tokens that are cached, or going to be, are not written again', options, (t, bench) => {
  using kernels = new Kernels({ cache: bench.cache });
  const sequence = said(bench, tokens);
  t.throws(() => append(kernels, sequence, tokens.length - 1, 1), { code: 'KV_ROW_SHARED' }, 'not told to the index yet');
  bench.cache.prefixes.lookup({ tokens });
  t.throws(() => append(kernels, sequence, 3, 1), { code: 'KV_ROW_SHARED' });
  t.notThrows(() => append(kernels, sequence, tokens.length, 1), 'behind its length');
  sequence.truncate(rowTokens + 2);
  bench.prepare(sequence, 1);
  t.notThrows(() => append(kernels, sequence, rowTokens + 2, 1));
  bench.commit();
});

cacheTest('a sequence of which nothing is shared or cached may be written anywhere; a released one nowhere', options, (t, bench) => {
  using kernels = new Kernels({ cache: bench.cache });
  const sequence = said(bench);
  t.notThrows(() => append(kernels, sequence, 3, 1));
  sequence.release();
  t.throws(() => append(kernels, sequence, 3, 1), { code: 'KV_ROW_SHARED' });
});
