// The example of vLLM-Omni's prefix cache, token by token: 4 tokens a page, a text of 12 tokens, one of 8 that shares 4. What is shared,
// what is copied, what a stage reads as one piece.

import { constants } from 'node:os';

import test, { type ExecutionContext } from 'ava';

import { Driver, KvCache, type KvCacheOptions, type Sequence } from 'virtual-kv';
import { MockDevice } from 'virtual-kv/testing';
import { nativeOf } from '../helpers/native-of.js';
import { refuses } from '../helpers/refuses.js';
import { copiesOf, usedPages } from './side-reading.js';
import { SideSpeaker } from './side-speaker.js';

const KiB = 1024;
const a = [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12];
const b = [1, 2, 3, 4, 50, 51, 52, 53];

interface World {
  readonly t: ExecutionContext;
  readonly cache: KvCache;
  readonly speaker: SideSpeaker;
  /** Undefined: the test runs on host, which has no journal. */
  readonly device: MockDevice | undefined;
}

function worlds(title: string, options: Partial<KvCacheOptions>, check: (t: ExecutionContext, world: World) => void): void {
  for (const place of ['host', 'device'] as const) {
    test(`${title} (${place === 'host' ? 'host' : 'mock'})`, (t) => {
      const device = place === 'device' ? new MockDevice({ granularityBytes: 64 * KiB, memoryBytes: 2 ** 26, backing: 'real' }) : undefined;
      const cache = new KvCache({
        model: { layers: 1, kvHeads: 16, headDim: 256, dtype: 'float32' }, slots: 4, maxTokens: 64, memoryBudgetBytes: 2 ** 23, pageBytes: 64 * KiB,
        driver: device?.driver ?? 'host', mapper: 'off',
        sideTensors: {
          hidden: { width: 4096, dtype: 'float32', pageBytes: 64 * KiB, place },
          mm_feature: { width: 8192, dtype: 'float32', pageBytes: 128 * KiB, place },
        },
        sideBudgetBytes: 2 ** 23, ...options,
      });
      try {
        check(t, { t, cache, speaker: new SideSpeaker(cache), device });
        cache.verify();
      } finally {
        cache.close();
        if (device !== undefined) {
          t.deepEqual(device.misuses(), []);
          device.close();
        }
      }
    });
  }
}

/** Asserts how many pages each tensor has: both the same, since pages of both hold 4 tokens. */
function assertPages({ t, cache }: World, pages: number, message?: string): void {
  t.deepEqual(usedPages(cache), { hidden: pages, mm_feature: pages }, message);
}

/** Asserts, where there is a journal, how many tokens were copied since it was cleared: of each tensor in the sequence's slot, and of K and V. */
function assertCopied({ t, cache, device }: World, sequence: Sequence, { tensors, keyValue }: { tensors: number; keyValue: number }): void {
  if (device === undefined) return;
  const copies = (tokens: number, width: number): number[] => (tokens === 0 ? [] : [tokens * width * 4]);
  const keyAndValue = [...copies(keyValue, 16 * 256), ...copies(keyValue, 16 * 256)];
  t.deepEqual(copiesOf(device, cache, sequence), { hidden: copies(tensors, 4096), mm_feature: copies(tensors, 8192), others: keyAndValue });
  device.clearJournal();
}

worlds('a text that shares 4 of 8 tokens aliases their page, copies nothing and computes 4; the next stage reads one piece', {}, (t, world) => {
  const { cache, speaker, device } = world;
  speaker.cacheText(a);
  assertPages(world, 3);
  device?.clearJournal();
  const second = speaker.say(b);
  t.is(second.sequence.cachedTokens, 4);
  assertCopied(world, second.sequence, { tensors: 0, keyValue: 0 });
  assertPages(world, 4, 'three pages of the first text, one of the second');
  using handOver = second.sequence.handOver();
  t.is(speaker.wrongRows(handOver, b), 0);
  if (cache.driver.kind === 'host') t.is(handOver.rows('hidden').length, 8 * 4096, 'one view of cached and computed rows');
  t.is(cache.prefixes.lookup({ tokens: [...b, 9] }).cachedTokens, 8);
});

worlds('the same text again shares 8 tokens by pages, and 3 by bytes once its last token is computed', {}, (t, world) => {
  const { cache, speaker, device } = world;
  speaker.cacheText(a);
  device?.clearJournal();
  const again = { sequence: cache.acquire({ tokens: a }), text: a };
  t.is(again.sequence.cachedTokens, 11);
  t.is(again.sequence.sideTokens('hidden'), 11);
  assertPages(world, 3, 'the page in which its tokens end is shared too, until it is written to');
  using before = again.sequence.handOver();
  t.is(speaker.wrongRows(before, a, 11), 0);
  device?.clearJournal(); // K and V are copied by `acquire`
  speaker.compute([again], 1);
  assertCopied(world, again.sequence, { tensors: 3, keyValue: 0 });
  assertPages(world, 4);
  using handOver = again.sequence.handOver();
  t.is(speaker.wrongRows(handOver, a), 0);
});

worlds('the same text again shares all 12 tokens with a kept value, and nothing is computed or copied', {}, (t, world) => {
  const { cache, speaker, device } = world;
  const kept = speaker.say(a);
  t.true(kept.sequence.keepValue('logits'));
  device?.clearJournal();
  const whole = cache.acquire({ tokens: a });
  t.deepEqual([whole.cachedTokens, whole.keptValue], [12, 'logits']);
  assertCopied(world, whole, { tensors: 0, keyValue: 0 });
  assertPages(world, 3);
  using all = whole.handOver();
  t.is(speaker.wrongRows(all, a), 0);
});

worlds('a text that ends inside a page shares 4 tokens by the page and 2 by bytes, here of widths 4,096 and 8,192', {}, (t, world) => {
  const { cache, speaker, device } = world;
  speaker.cacheText(a);
  const text = [...a.slice(0, 6), 60, 61];
  const other = { sequence: cache.acquire({ tokens: text }), text };
  t.is(other.sequence.cachedTokens, 6);
  device?.clearJournal();
  speaker.compute([other], 2);
  assertCopied(world, other.sequence, { tensors: 2, keyValue: 0 });
  assertPages(world, 4);
  using handOver = other.sequence.handOver();
  t.is(speaker.wrongRows(handOver, text), 0);
});

// The example's own widths, 2 and 16 floats: pages of 4 tokens would have 32 and 256 bytes, and no driver has them below 4 KiB. So the text
// ends 2 tokens behind pages of 512 and 64 tokens instead of behind one of 4. The simulated device's journal says what was copied.
test('of 2 tokens behind whole pages, here of 512 and 64 tokens, those of widths 2 and 16 are copied and no more: 16 and 128 bytes', (t) => {
  const pageBytes = 4 * KiB;
  const device = new MockDevice({ granularityBytes: pageBytes, memoryBytes: 2 ** 26, backing: 'real' });
  const cache = new KvCache({
    model: { layers: 1, kvHeads: 1, headDim: 64, dtype: 'float32' }, slots: 4, maxTokens: 1024, memoryBudgetBytes: 2 ** 23, pageBytes, driver: device.driver,
    mapper: 'off', sideTensors: { hidden: { width: 2, dtype: 'float32', pageBytes, place: 'device' }, mm_feature: { width: 16, dtype: 'float32', pageBytes, place: 'device' } },
    sideBudgetBytes: 2 ** 23,
  });
  const speaker = new SideSpeaker(cache);
  const long = Array.from({ length: 520 }, (_, index) => index);
  speaker.cacheText(long);
  t.deepEqual(usedPages(cache), { hidden: 2, mm_feature: 9 });
  device.clearJournal();
  const text = [...long.slice(0, 514), 1060, 1061];
  const other = speaker.say(text);
  t.is(other.sequence.cachedTokens, 514);
  t.deepEqual(copiesOf(device, cache, other.sequence), { hidden: [2 * 2 * 4], mm_feature: [2 * 16 * 4], others: [2 * 64 * 4, 2 * 64 * 4] }, 'the others are K and V');
  t.deepEqual(usedPages(cache), { hidden: 3, mm_feature: 10 }, 'one more of each; the others are shared');
  const handOver = other.sequence.handOver();
  t.is(speaker.wrongRows(handOver, text), 0);
  handOver.close();
  cache.verify();
  cache.close();
  t.deepEqual(device.misuses(), []);
  device.close();
});

worlds('of a sequence and its fork at 10 the first that writes detaches 2 tokens of each tensor, the other none', {}, (t, world) => {
  const { speaker, device } = world;
  const parent = speaker.say(a.slice(0, 10));
  device?.clearJournal();
  const child = { sequence: parent.sequence.fork(), text: [...parent.text] };
  assertCopied(world, child.sequence, { tensors: 0, keyValue: 0 });
  assertPages(world, 3);
  speaker.decode(child, 70);
  assertCopied(world, child.sequence, { tensors: 2, keyValue: 2 });
  assertPages(world, 4);
  speaker.decode(parent, 80);
  assertCopied(world, parent.sequence, { tensors: 0, keyValue: 0 });
  assertPages(world, 4);
  for (const spoken of [parent, child]) {
    using handOver = spoken.sequence.handOver();
    t.is(speaker.wrongRows(handOver, spoken.text), 0);
  }
});

worlds('a shortened text is found up to where it was shortened, with its rows', {}, (t, { cache, speaker }) => {
  const spoken = speaker.say(a);
  spoken.sequence.truncate(5);
  t.is(cache.prefixes.lookup({ tokens: a }).cachedTokens, 5);
  t.is(spoken.sequence.sideTokens('hidden'), 5);
  spoken.text.length = 5;
  speaker.decode(spoken, 90);
  using handOver = spoken.sequence.handOver();
  t.is(speaker.wrongRows(handOver, spoken.text), 0);
});

worlds('a text whose writer did not write a tensor is a miss for those that need it, and a hit for others', {}, (t, { cache, speaker }) => {
  speaker.cacheText(a, { needs: ['hidden'] });
  const asked = { tokens: [...a, 1] };
  t.is(cache.prefixes.lookup(asked).cachedTokens, 0);
  t.is(cache.prefixes.lookup({ ...asked, needs: ['hidden'] }).cachedTokens, 12);
  t.is(cache.prefixes.lookup({ ...asked, needs: [] }).cachedTokens, 12);
  t.deepEqual(cache.prefixes.explain(asked), { tokens: 0, reason: 'side-never-written', sideTensor: 'mm_feature', keyValueTokens: 12 });

  speaker.cacheText(a, {});
  t.is(cache.prefixes.lookup(asked).cachedTokens, 12, 'computed again, it is there for all');
});

test('where memory is just enough for a sequence, it goes on in the page of the text that it shares', (t) => {
  using cache = new KvCache({
    model: { layers: 1, kvHeads: 16, headDim: 256, dtype: 'float32' }, slots: 4, maxTokens: 64, memoryBudgetBytes: 2 ** 23, pageBytes: 64 * KiB,
    driver: 'host', sideTensors: { hidden: { width: 4096, dtype: 'float32', pageBytes: 64 * KiB } }, sideBudgetBytes: 128 * KiB,
  });
  const speaker = new SideSpeaker(cache);
  speaker.cacheText(a.slice(0, 8));
  const text = [...a.slice(0, 6), 60, 61];
  const spoken = speaker.say(text);
  t.is(spoken.sequence.cachedTokens, 6);
  using handOver = spoken.sequence.handOver();
  t.is(speaker.wrongRows(handOver, text), 0);
  t.is(cache.prefixes.lookup({ tokens: a }).cachedTokens, 6, 'the other text has lost its end');
  t.is(cache.sideCounts().usedBytes, 128 * KiB);
  cache.verify();
});

test('where the system refuses a mapping, rows are copied instead, and the hit is the same', (t) => {
  const sideDriver = Driver.open('host');
  const cache = new KvCache({
    model: { layers: 1, kvHeads: 16, headDim: 256, dtype: 'float32' }, slots: 4, maxTokens: 64, memoryBudgetBytes: 2 ** 23, pageBytes: 64 * KiB,
    driver: 'host', sideDriver, mapper: 'off',
    sideTensors: { hidden: { width: 4096, dtype: 'float32', pageBytes: 64 * KiB }, odd: { width: 5000, dtype: 'float32', pageBytes: 64 * KiB } },
  });
  const speaker = new SideSpeaker(cache);
  const first = speaker.say(a); // its side slot is in use
  for (const nth of [1, 2]) {
    nativeOf(sideDriver).failCall('mmap-map', nth, constants.errno.ENOMEM);
    const text = [...a.slice(0, 10), 60 + nth, 61];
    const spoken = speaker.say(text);
    t.is(spoken.sequence.cachedTokens, 10);
    const handOver = spoken.sequence.handOver();
    t.is(speaker.wrongRows(handOver, text), 0);
    handOver.close();
    cache.verify();
  }
  const handOver = first.sequence.handOver();
  t.is(speaker.wrongRows(handOver, a), 0);
  handOver.close();
  cache.close();
  sideDriver.close();
});

worlds('a prompt in chunks of 5, 4 and 3 is found up to what was committed', {}, (t, { cache, speaker }) => {
  const sequence = cache.acquire({ tokens: a });
  const found = [];
  for (const chunk of [5, 4, 3]) {
    found.push(cache.prefixes.lookup({ tokens: [...a, 1] }).cachedTokens);
    speaker.compute([{ sequence, text: a }], chunk);
  }
  t.deepEqual([...found, cache.prefixes.lookup({ tokens: [...a, 1] }).cachedTokens], [0, 5, 9, 12]);
});

test('a budget of two pages keeps 8 tokens of side rows beside 11 of K and V', (t) => {
  using cache = new KvCache({
    model: { layers: 1, kvHeads: 16, headDim: 256, dtype: 'float32' }, slots: 4, maxTokens: 64, memoryBudgetBytes: 2 ** 23, pageBytes: 64 * KiB,
    driver: 'host', sideTensors: { hidden: { width: 4096, dtype: 'float32', pageBytes: 64 * KiB } }, sideBudgetBytes: 2 ** 22,
  });
  const speaker = new SideSpeaker(cache);
  speaker.cacheText(a);
  cache.setSideBudget(128 * KiB);
  t.is(cache.prefixes.lookup({ tokens: a, needs: [] }).cachedTokens, 11);
  t.is(cache.prefixes.lookup({ tokens: a }).cachedTokens, 8);
  t.deepEqual(cache.prefixes.explain({ tokens: a }), { tokens: 8, reason: 'side-evicted', sideTensor: 'hidden', keyValueTokens: 12 });
  t.is(cache.sideCounts().usedBytes, 128 * KiB);
  refuses(t, () => speaker.say(a), 'KV_OUT_OF_PAGES', { sideTensor: 'hidden', budgetBytes: 131_072 });
  cache.setSideBudget(2 ** 22);
  const again = speaker.say(a);
  t.is(again.sequence.cachedTokens, 8);
  using handOver = again.sequence.handOver();
  t.is(speaker.wrongRows(handOver, a), 0);
  cache.verify();
});
