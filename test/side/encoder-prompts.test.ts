// Images in prompts: which of their rows an engine asks the encoder cache for, beside a KvCache whose hits end at any token.

import type { Sequence } from 'virtual-kv';

import { cacheTest, type CacheBench } from '../helpers/cache.js';
import { EncoderBench, rowsOf, width } from './encoder-bench.js';

/** Rows of four tokens: 16 KiB per token and tensor in pages of 64 KiB. */
const fourTokens = { on: 'host', model: { layers: 1, kvHeads: 32, headDim: 256, dtype: 'float16' }, maxTokens: 64, mapper: 'off' } as const;
const image = { at: 0, length: 6 } as const;
const place = (hash: string) => [{ ...image, kind: 'item', hash } as const];
const foo = [-1, -1, -1, -1, -1, -1, 100];
const barBaz = [-1, -1, -1, -1, -1, -1, 200, 300];

/** Embeddings of the image's tokens from `cached` on, as an engine asks for them; undefined where it needs none. */
async function embed(encoders: EncoderBench, hash: string, cached: number): Promise<number[] | undefined> {
  if (cached >= image.at + image.length) return undefined;
  const hold = await encoders.take(hash, image.length);
  const rows = [...encoders.encoder.range(hold, Math.max(0, cached - image.at))];
  hold.release();
  return rows;
}

function computeAll(bench: CacheBench, tokens: readonly number[], hash: string): Sequence {
  const sequence = bench.cache.acquire({ tokens, items: place(hash) });
  bench.compute(sequence, tokens.length - sequence.length);
  return sequence;
}

cacheTest('an image that ends inside a row is found to its last token, and its encoder is not called again', fourTokens, async (t, bench) => {
  t.is(bench.cache.layout.tokensIn(1), 4);
  const encoders = new EncoderBench(6);
  const first = bench.cache.acquire({ tokens: foo, items: place('cat') });
  t.deepEqual(await embed(encoders, 'cat', first.cachedTokens), [...rowsOf('cat', 6)]);
  bench.compute(first, foo.length);
  first.release();
  encoders.encoder.clear(); // the rows need not be there any more
  const second = bench.cache.acquire({ tokens: barBaz, items: place('cat') });
  t.is(second.cachedTokens, 6);
  t.is(await embed(encoders, 'cat', second.cachedTokens), undefined);
  t.is(encoders.called, 'cat', 'once, for the first prompt');
  bench.compute(second, 2);
  second.release();
});

cacheTest('rounded down to rows the same hit needs the image\'s last two rows again', fourTokens, async (t, bench) => {
  const encoders = new EncoderBench(6);
  computeAll(bench, foo, 'cat').release();
  const { cachedTokens } = bench.cache.acquire({ tokens: barBaz, items: place('cat') });
  const rounded = Math.floor(cachedTokens / 4) * 4;
  t.deepEqual(await embed(encoders, 'cat', rounded), [...rowsOf('cat', 6).subarray(4 * width)]);
  t.is(encoders.called, 'cat', 'all of the image is encoded for two tokens');
  t.deepEqual(await embed(encoders, 'cat', rounded), [...rowsOf('cat', 6).subarray(4 * width)]);
  t.is(encoders.called, 'cat', 'as long as the encoder cache has it, once');
});

cacheTest('an image that is cached in part is asked for from its first missing token on', fourTokens, async (t, bench) => {
  const encoders = new EncoderBench(6);
  const sequence = bench.cache.acquire({ tokens: foo, items: place('cat') });
  await embed(encoders, 'cat', 0);
  bench.compute(sequence, 5); // a chunk of the prompt
  sequence.release();
  const next = bench.cache.acquire({ tokens: barBaz, items: place('cat') });
  t.is(next.cachedTokens, 5);
  t.deepEqual(await embed(encoders, 'cat', next.cachedTokens), [...rowsOf('cat', 6).subarray(5 * width)]);
  t.is(encoders.called, 'cat');
});

cacheTest('another image at the same place is found neither in the prefix nor in the encoder cache', fourTokens, async (t, bench) => {
  const encoders = new EncoderBench(12);
  const first = bench.cache.acquire({ tokens: foo, items: place('cat') });
  await embed(encoders, 'cat', first.cachedTokens);
  bench.compute(first, foo.length);
  const other = bench.cache.acquire({ tokens: foo, items: place('dog') });
  t.is(other.cachedTokens, 0);
  t.deepEqual(await embed(encoders, 'dog', other.cachedTokens), [...rowsOf('dog', 6)]);
  t.is(encoders.called, 'cat dog');
});
