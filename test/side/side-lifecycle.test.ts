// Side rows go with the rows of K and V through what a cache does with texts: domains, opt-outs, quotas, scrubbing, and the next turn of
// a conversation. Tokens take a page for each four, in K, V and both tensors.

import test, { type ExecutionContext } from 'ava';

import { KvCache, type KvCacheOptions } from 'virtual-kv';
import { MockDevice } from 'virtual-kv/testing';
import { nativeOf } from '../helpers/native-of.js';
import { copiesOf } from './side-reading.js';
import { SideSpeaker } from './side-speaker.js';

const KiB = 1024;
const a = [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12];

interface World {
  readonly cache: KvCache;
  readonly device: MockDevice;
  readonly speaker: SideSpeaker;
}

interface Domain {
  readonly tenant?: string;
  readonly salt?: string;
  readonly adapter?: string;
}

/** With side tensors on the device, whose calls the mock counts. */
function worlds(title: string, options: Partial<KvCacheOptions>, check: (t: ExecutionContext, world: World) => void): void {
  test(title, (t) => {
    const device = new MockDevice({ granularityBytes: 64 * KiB, memoryBytes: 2 ** 26, backing: 'real' });
    const shape = { width: 4096, dtype: 'float32', pageBytes: 64 * KiB, place: 'device' } as const;
    const cache = new KvCache({
      model: { layers: 1, kvHeads: 16, headDim: 256, dtype: 'float32' }, slots: 4, maxTokens: 64, memoryBudgetBytes: 2 ** 23, pageBytes: 64 * KiB,
      driver: device.driver, mapper: 'off', sideTensors: { hidden: shape, feature: shape }, sideBudgetBytes: 2 ** 23, ...options,
    });
    check(t, { cache, device, speaker: new SideSpeaker(cache) });
    cache.verify();
    cache.close();
    t.deepEqual(device.misuses(), []);
    device.driver.close();
    device.assertNoLeaks();
    device.close();
  });
}

/** Acquires the text, says how many tokens were found with their rows, all of which must be the text's, and releases it. */
function found({ cache, speaker }: World, options: Domain & { readonly tokens: readonly number[] }): number {
  const sequence = cache.acquire({ caching: 'read', ...options });
  const { cachedTokens } = sequence;
  const handOver = sequence.handOver();
  const wrong = speaker.wrongRows(handOver, options.tokens, cachedTokens);
  handOver.close();
  sequence.release();
  if (wrong > 0) throw new Error(`${wrong} rows are wrong`);
  return cachedTokens;
}

/** Caches the text for a domain. */
function cacheText({ cache, speaker }: World, text: readonly number[], domain: Domain & { readonly caching?: 'read' | 'write' }): void {
  const sequence = cache.acquire({ tokens: text, ...domain });
  speaker.compute([{ sequence, text: [...text] }], text.length - sequence.cachedTokens);
  sequence.release();
}

const domains: readonly Domain[] = [{}, { tenant: 'b' }, { salt: 's' }, { adapter: 'l' }, { tenant: 'b', salt: 's' }];

worlds('rows are found by requests of their own tenant, salt and adapter, and by no other', { slots: 8 }, (t, world) => {
  const text = [...a, 13];
  for (const [index, domain] of domains.entries()) {
    for (const other of domains.slice(index)) t.is(found(world, { tokens: text, ...other }), 0);
    cacheText(world, a, domain);
    for (const same of domains.slice(0, index + 1)) t.is(found(world, { tokens: text, ...same }), 12);
  }
});

worlds('rows of another namespace are not found, and those of one that comes back are', {}, (t, world) => {
  const { cache } = world;
  cache.prefixes.setNamespace('weights 1');
  cacheText(world, a, {});
  cache.prefixes.setNamespace('weights 2');
  t.is(found(world, { tokens: [...a, 13] }), 0);
  cache.prefixes.setNamespace('weights 1');
  t.is(found(world, { tokens: [...a, 13] }), 12);
});

worlds('a reset ends all cached rows and gives their pages back, but for those under a hand-over', {}, (t, world) => {
  const { cache, speaker } = world;
  cacheText(world, a, {});
  const kept = speaker.say([60, 61, 62, 63]);
  const handOver = kept.sequence.handOver();
  kept.sequence.release();
  t.is(cache.sideCounts().usedBytes, 8 * 64 * KiB);
  cache.prefixes.reset();
  t.is(cache.sideCounts().usedBytes, 2 * 64 * KiB);
  t.is(found(world, { tokens: [...a, 13] }), 0);
  t.is(speaker.wrongRows(handOver, kept.text), 0);
  handOver.close();
  t.is(cache.sideCounts().usedBytes, 0);
});

worlds('the next turn of a conversation adopts its rows: nothing is mapped and no byte is taken', {}, (t, { cache, device, speaker }) => {
  const turn = speaker.cacheText(a);
  const used = cache.sideCounts().usedBytes;
  device.resetCallCounts();
  const next = [...turn.text, 20, 21, 22, 23];
  const sequence = cache.acquire({ tokens: next, reserve: 'none' });
  t.is(sequence.cachedTokens, 12);
  const { cuMemMap, cuMemSetAccess, cuMemCreate, cuMemUnmap, cuMemcpyDtoDAsync } = device.callCounts();
  t.deepEqual([cuMemMap, cuMemSetAccess, cuMemCreate, cuMemUnmap, cuMemcpyDtoDAsync], [0, 0, 0, 0, 0]);
  t.is(cache.sideCounts().usedBytes, used);
  using handOver = sequence.handOver();
  t.is(speaker.wrongRows(handOver, next, 12), 0);
});

worlds('tensors on the device, one of a width that ends no page with a token, leave the unit in which K and V are shared as it is', {
  sideTensors: { hidden: { width: 4096, dtype: 'float32', place: 'device' }, odd: { width: 5001, dtype: 'float32', place: 'device' } },
}, (t, { cache, device, speaker }) => {
  t.is(cache.layout.tokensPerRow, 4);
  speaker.say(a);
  device.clearJournal();
  const text = [...a.slice(0, 8), 60, 61];
  const other = speaker.say(text);
  t.is(other.sequence.cachedTokens, 8);
  t.deepEqual(copiesOf(device, cache, other.sequence)['others'], [], 'two rows of K and V are shared as pages');
  using handOver = other.sequence.handOver();
  t.is(speaker.wrongRows(handOver, text), 0);
});

worlds('a request that caches nothing finds rows and leaves none; one that reads nothing leaves them for others', {}, (t, world) => {
  const { cache } = world;
  const used = (): number => cache.sideCounts().usedBytes;
  cacheText(world, a, { caching: 'read' });
  t.deepEqual([found(world, { tokens: [...a, 13] }), used()], [0, 0]);
  cacheText(world, a, { caching: 'write' });
  t.deepEqual([found(world, { tokens: [...a, 13] }), used()], [12, 6 * 64 * KiB]);
  const again = cache.acquire({ tokens: a, caching: 'write' });
  t.is(again.cachedTokens, 0);
  again.release();
  t.is(found(world, { tokens: [...a, 13] }), 12);
});

worlds('text above the quota of a tenant loses its rows with its K and V, from its end, and no other tenant does', { prefixCache: { tenantRows: 2 } }, (t, world) => {
  const { cache } = world;
  cacheText(world, [70, 71, 72, 73], { tenant: 'b' });
  cacheText(world, a, {});
  t.is(found(world, { tokens: [...a, 13] }), 8);
  t.is(found(world, { tokens: [70, 71, 72, 73, 13], tenant: 'b' }), 4);
  t.is(cache.sideCounts().usedBytes, 2 * (2 + 1) * 64 * KiB);
});

for (const scrub of ['off', 'between-tenants'] as const) {
  const what = scrub === 'off' ? 'left as they are' : 'zeros first';
  worlds(`with \`scrub: '${scrub}'\` pages that a tenant gave back are ${what} for another`, { scrub }, (t, world) => {
    const { cache } = world;
    cacheText(world, a, { tenant: 'a' });
    cache.prefixes.reset();
    const sequence = cache.acquire({ tokens: a, tenant: 'b' });
    const batch = cache.createBatch();
    batch.add(sequence, 12);
    cache.prepare(batch);
    const handOver = sequence.handOver(); // nothing can be read through it yet; the addresses are a kernel's
    const bytes = new Uint8Array(3 * 64 * KiB);
    nativeOf(cache.driver).read(bytes, handOver.address('hidden'));
    t.is(bytes.some((byte) => byte !== 0), scrub === 'off');
    cache.discard(batch);
    handOver.close();
    sequence.release();
  });
}
