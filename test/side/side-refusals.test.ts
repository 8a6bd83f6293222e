// Room for side tensors: what is refused has changed nothing, what is only cached is evicted before anything is refused, and what a
// hand-over keeps is what it reads.

import test from 'ava';

import { isKvError, KvCache, lru, type KvCacheOptions, onDemand, type Sequence } from 'virtual-kv';
import { CacheBench, cacheTest } from '../helpers/cache.js';
import { refuses } from '../helpers/refuses.js';
import { SideSpeaker } from './side-speaker.js';

const pageBytes = 65_536;
/** 64 tokens a page. */
const width = 256;

function open(options: Partial<KvCacheOptions> = {}): KvCache {
  return new KvCache({
    model: { layers: 1, kvHeads: 1, headDim: 128, dtype: 'float16' }, layout: 'fused', driver: 'host', pageBytes, slots: 6, maxTokens: 1024,
    memoryBudgetBytes: 64 * pageBytes, mapper: 'off', growth: onDemand(), prefixCache: { policy: lru() },
    sideTensors: { hidden: { width, dtype: 'float32', pageBytes } }, sideBudgetBytes: 4 * pageBytes, ...options,
  });
}

const text = (first: number, tokens: number): number[] => Array.from({ length: tokens }, (_, index) => first + index);

/** Prepares a batch, and takes it back. Returns the code of its refusal. */
function attempt(cache: KvCache, ...parts: readonly (readonly [sequence: Sequence, tokens: number])[]): string {
  const batch = cache.createBatch();
  for (const [sequence, tokens] of parts) batch.add(sequence, tokens);
  try {
    cache.prepare(batch);
  } catch (error) {
    if (!isKvError(error, 'KV_OUT_OF_PAGES')) throw error;
    return `${error.code} ${error.details.sideTensor}`;
  }
  cache.discard(batch);
  return 'done';
}

const found = (cache: KvCache, tokens: readonly number[], needs: readonly string[]): number =>
  cache.prefixes.lookup({ tokens: [...tokens, 99], needs }).cachedTokens;

test('an acquire that side memory refuses evicts neither K and V nor rows of another side tensor', (t) => {
  const shape = { width, dtype: 'float32', pageBytes } as const;
  using cache = open({ memoryBudgetBytes: 6 * pageBytes, sideTensors: { a: shape, b: shape } });
  const speaker = new SideSpeaker(cache);
  const other = text(1000, 128);
  speaker.cacheText(other, { needs: ['a'] }); // 2 side pages, cached
  const held = speaker.say(text(2000, 64), { needs: ['b'] });
  const before = { ...cache.counts() };
  refuses(t, () => cache.acquire({ tokens: text(3000, 200), needs: ['a', 'b'] }),
    'KV_OUT_OF_PAGES', { sideTensor: 'a' }); // 8 of 3
  refuses(t, () => cache.acquire({ tokens: text(3000, 128), needs: ['a', 'b'] }),
    'KV_OUT_OF_PAGES', { sideTensor: 'b' }); // 4 of 3
  t.deepEqual({ ...cache.counts() }, before);
  t.deepEqual([found(cache, other, []), found(cache, other, ['a'])], [128, 128]);
  cache.acquire({ tokens: text(3000, 64), needs: ['a', 'b'] }).release();
  held.sequence.release();
  cache.verify();
});

test('a prepare that one tensor, or one sequence, is refused maps nothing for the others', (t) => {
  using cache = open({ sideTensors: { a: { width: 4, dtype: 'float32', pageBytes }, b: { width: 4096, dtype: 'float32', pageBytes } } }); // 4 tokens of b a page
  const one = cache.acquire({ tokens: [1], reserve: 'none' });
  const two = cache.acquire({ tokens: [2], reserve: 'none' });
  t.is(attempt(cache, [one, 20]), 'KV_OUT_OF_PAGES b');
  t.is(cache.sideCounts().heldBytes, 0);
  t.is(attempt(cache, [one, 8], [two, 8]), 'KV_OUT_OF_PAGES b'); // 1 + 2 pages each
  t.is(cache.sideCounts().heldBytes, 0);
  t.is(attempt(cache, [two, 12]), 'done');
  one.release();
  two.release();
  cache.verify();
});

test('a prepare that side memory refuses evicts nothing of K and V', (t) => {
  using cache = open({ memoryBudgetBytes: 4 * pageBytes, prefixCache: { policy: lru() } }); // 128 tokens a row
  const speaker = new SideSpeaker(cache);
  const cached = text(1000, 2 * 128);
  speaker.cacheText(cached, { needs: [] });
  const one = cache.acquire({ tokens: [1], reserve: 'none' });
  t.is(attempt(cache, [one, 4 * 64 + 60]), 'KV_OUT_OF_PAGES hidden');
  t.is(found(cache, cached, []), 256);
  t.is(attempt(cache, [one, 4 * 64]), 'done');
  one.release();
  cache.verify();
});

test('a sequence that was truncated has nothing set aside any more: cached pages go for it, and a refusal names the tensor', (t) => {
  for (const canEvict of [true, false]) {
    using cache = open({ sideBudgetBytes: 2 * pageBytes });
    const speaker = new SideSpeaker(cache);
    const other = speaker.say([50, 51, 52]);
    if (canEvict) other.sequence.release();
    const first = speaker.say([1, 2, 3, 4, 5]);
    const second = cache.acquire({ tokens: [1, 2, 9] });
    t.is(second.cachedTokens, 2);
    second.truncate(0);
    second.append([7, 7, 7]);
    t.is(attempt(cache, [second, 3]), canEvict ? 'done' : 'KV_OUT_OF_PAGES hidden');
    for (const sequence of [first.sequence, second, other.sequence]) if (!sequence.isReleased) sequence.release();
    cache.verify();
  }
});

test('room is where text was dropped, whether or not anybody asks for the counts', (t) => {
  using cache = open();
  const speaker = new SideSpeaker(cache);
  speaker.cacheText(text(1000, 256)); // all pages
  const one = cache.acquire({ needs: ['hidden'] });
  cache.prefixes.reset();
  t.is(attempt(cache, [one, 256]), 'done');
  one.release();
  cache.verify();
});

test('a start that only texts in use continue goes when its pages are needed', (t) => {
  using cache = open({ slots: 3, sideBudgetBytes: 5 * pageBytes });
  const speaker = new SideSpeaker(cache);
  const start = text(1000, 128);
  const [two, one] = [start, start].map((tokens) => ({ sequence: cache.acquire({ tokens: [...tokens, 99], reserve: 'none' }), text: [...tokens, 5, 6] })); // both compute it
  speaker.compute([two!, one!], 128);
  one!.sequence.release(); // its two pages are those of the text: the index heard of it first
  two!.sequence.truncate(128);
  two!.sequence.append([5, 6]);
  speaker.compute([two!], 2); // the text goes on in the third page of the other
  t.is(cache.sideCounts().usedBytes, 5 * pageBytes);
  const three = cache.acquire({ tokens: [3], reserve: 'none' });
  t.is(attempt(cache, [three, 3 * 64]), 'KV_OUT_OF_PAGES hidden');
  t.is(found(cache, [...start, 5, 6], ['hidden']), 130, 'what is refused evicts nothing');
  t.is(attempt(cache, [three, 2 * 64]), 'done');
  two!.sequence.release();
  three.release();
  cache.verify();
});

test('text that was in use when the budget was lowered goes once it is only cached', (t) => {
  using cache = open();
  const speaker = new SideSpeaker(cache);
  const one = speaker.say(text(1000, 256));
  cache.setSideBudget(2 * pageBytes);
  t.is(cache.sideCounts().usedBytes, 4 * pageBytes);
  const handOver = one.sequence.handOver();
  one.sequence.release();
  t.is(cache.sideCounts().usedBytes, 4 * pageBytes);
  handOver.close();
  t.is(cache.sideCounts().usedBytes, 2 * pageBytes);
  t.is(found(cache, one.text, ['hidden']), 128);
  cache.verify();
});

test('a bound that is lowered holds for all tensors where the driver takes no page back', (t) => {
  const low = 2 * pageBytes;
  const shape = { width, dtype: 'float32', pageBytes, place: 'device' } as const;
  for (let nth = 1, isReached = true; isReached; nth += 1) {
    const bench = new CacheBench(t, {
      pageBytes, device: { granularityBytes: pageBytes }, sideTensors: { a: shape, b: shape }, sideBudgetBytes: 16 * pageBytes, mapper: 'off',
    });
    const { cache } = bench;
    const speaker = new SideSpeaker(cache);
    speaker.cacheText(text(1000, 256));
    cache.prefixes.reset(); // four free pages in each
    bench.fail('cuMemRelease', nth);
    try {
      cache.setSideBudget(low);
      isReached = false;
    } catch (error) {
      t.is((error as { code?: string }).code, 'KV_DRIVER_CALL_FAILED');
    }
    bench.forgiveAll();
    t.is(cache.sideCounts().budgetBytes, low);
    const one = speaker.say(text(1000, 64));
    refuses(t, () => speaker.compute([one], 64), 'KV_OUT_OF_PAGES', { sideTensor: 'a' });
    one.sequence.release();
    cache.setSideBudget(16 * pageBytes);
    speaker.cacheText(text(5000, 256));
    bench.close();
    t.true(isReached || nth > 1, 'it was refused once');
  }
});

test('a hand-over of a released sequence keeps the pages of its rows, of its tensors alone', (t) => {
  const shape = { width, dtype: 'float32', pageBytes } as const;
  using cache = open({ sideTensors: { a: shape, b: shape }, sideBudgetBytes: 12 * pageBytes, prefixCache: 'off' });
  const speaker = new SideSpeaker(cache);
  const spoken = { sequence: cache.acquire({ tokens: text(1000, 300) }), text: text(1000, 300) };
  speaker.compute([spoken], 100);
  speaker.compute([spoken], 200, ['b']); // b has 100 rows
  const [onlyA, both] = [spoken.sequence.handOver(['a']), spoken.sequence.handOver()];
  const [seen] = [both.rows('b', 0, 10)];
  const pages = (): number => cache.sideCounts().heldBytes / pageBytes;
  t.is(pages(), 10);
  spoken.sequence.release();
  t.is(seen.length, 10 * width, 'what is seen stays where it is');
  t.is(pages(), 10);
  both.close();
  t.is(onlyA.tokens, 300);
  t.is(speaker.wrongRows(onlyA, spoken.text), 0);
  onlyA.close();
  t.is(pages(), 0);

  const other = { sequence: cache.acquire({ tokens: text(1000, 300) }), text: text(1000, 300) };
  speaker.compute([other], 100);
  speaker.compute([other], 200, ['b']);
  const [first, last] = [other.sequence.handOver(['a']), other.sequence.handOver(['b'])];
  other.sequence.release();
  t.is(pages(), 5 + 2);
  first.close();
  t.is(pages(), 2);
  t.is(speaker.wrongRows(last, other.text.slice(0, 100)), 0);
  last.close();
  cache.verify();
});

cacheTest('a hand-over is complete once its sequence is released, also while work is queued for it', {
  sideTensors: { hidden: { width: 4, dtype: 'float32' } }, device: { streams: 'manual' },
}, (t, { cache, mock }) => {
  const batch = cache.createBatch();
  const sequence = cache.acquire({ tokens: [1, 2, 3] });
  batch.add(sequence, 3);
  cache.prepare(batch);
  cache.writeSide(batch, { hidden: new Float32Array(3 * 4) });
  cache.commit(batch);
  const handOver = sequence.handOver();
  t.false(handOver.isComplete);
  mock.queueWork(0n, [{ address: sequence.address(0), bytes: 1, access: 'read' }]);
  sequence.release({ fence: { stream: 0n } });
  t.is(cache.counts().retiringSlots, 1);
  t.true(handOver.isComplete);
  t.is(handOver.tokens, 3);
  mock.completeAll();
  t.is(cache.counts().retiringSlots, 0);
  t.deepEqual([handOver.isComplete, handOver.tokens], [true, 3]);
  handOver.close();
});
