// Finished texts that wait to be stored: which are dropped when too many wait, and what is told of them.

import test from 'ava';

import { FinishedTexts } from '#internal/tiers/demotions.js';
import type { KnownTokens } from '#internal/cache/sequence-tokens.js';
import type { PrefixIndex } from '#internal/prefix/prefix-index.js';
import { drivers } from '../../helpers/cache.js';
import { turn } from './device-index.js';
import { PlainTier } from './plain-tier.js';
import { benchOf, close, serve, textOf } from './tier-bench.js';

const index = { domainOf: () => ({ key: 'any' }) } as unknown as PrefixIndex;

/** A text of `tokens` tokens that all are `name`, of whose prompt `sharedTokens` were found. */
function known(name: number, tokens: number, sharedTokens: number): KnownTokens {
  const path = { isStored: true, isTransfer: false, length: tokens, promptTokens: tokens - 1, sharedTokens };
  return { path, buffer: new Int32Array(tokens).fill(name) } as unknown as KnownTokens;
}

function namesIn(finished: FinishedTexts): number[] {
  const names: number[] = [];
  for (let next = finished.take(); next !== undefined; next = finished.take()) names.push(next.text[0]!);
  return names;
}

test('where too many tokens wait, texts whose prompts found nothing are dropped first, the oldest of them first, then the oldest; and counted', (t) => {
  const finished = new FinishedTexts(100);
  let heard = 0;
  finished.listen(() => { heard += 1; });
  for (const [name, found] of [[1, 10], [2, 0], [3, 10], [4, 0], [5, 10]] as const) finished.note(known(name, 20, found), index);
  t.deepEqual([finished.count, finished.dropped, heard], [5, 0, 5]);
  finished.note(known(6, 30, 10), index); // 130 tokens
  t.deepEqual([finished.count, finished.dropped], [4, 2]);
  finished.note(known(7, 25, 10), index); // 115, and none that found nothing
  t.deepEqual([finished.dropped, heard], [3, 7]);
  t.deepEqual(namesIn(finished), [3, 5, 6, 7]);
  finished.note(known(8, 500, 0), index);
  t.deepEqual(namesIn(finished), [8], 'one alone waits, however long it is');
  finished.listen(undefined);
  finished.note(known(9, 20, 10), index);
  t.is(finished.count, 0);
});

for (const on of drivers) {
  test(`a text whose reading was interrupted is told as waiting, and is read again by what waits for it (${on})`, async (t) => {
    const tier = new PlainTier('mine');
    const bench = benchOf(t, [tier], { on, memoryBudgetBytes: 2 ** 21 });
    const { prefixes } = bench.cache;
    const counts = (): number[] => [prefixes.tiers!.metrics().waitingTexts, tier.blocks.size, prefixes.tiers!.metrics().droppedTexts];
    await prefixes.tiers!.ready();
    const user = bench.cache.acquire({ tokens: textOf(20, 3) });
    tier.put = async (record, payload) => {
      // Of eight rows one is in use, so it is refused; that ends what is being read.
      if (tier.puts === 0) t.throws(() => bench.cache.acquire({ promptTokens: 2048 }), { code: 'KV_OUT_OF_PAGES' });
      return PlainTier.prototype.put.call(tier, record, payload);
    };
    serve(bench, textOf(40), 1);
    while (prefixes.tiers!.metrics().interruptedTransfers === 0) await turn();
    while (counts()[0] === 0) await turn();
    t.deepEqual(counts(), [1, 1, 0]);
    await prefixes.tiers!.settled();
    t.deepEqual(counts(), [0, 3, 0]);
    user.release();
    await close(bench);
  });
}
