// A prompt that finds nothing where memory is full takes over the slot of a text that makes way, with the rows mapped there.

import { lru, priority, type KvCache } from 'virtual-kv';

import { cacheTests, rowTokens } from '../../helpers/cache.js';
import { Speaker, tokensOf } from './spoken.js';

const textOf = (name: number, rows: number): number[] => tokensOf(name, rows * rowTokens);

/** Names of the texts of which a row is not cached any more. */
function shortened(cache: KvCache, texts: ReadonlyMap<number, readonly number[]>): number[] {
  return [...texts].filter(([, text]) => cache.prefixes.lookup({ tokens: [...text, 1] }).cachedTokens < text.length).map(([name]) => name);
}

/** Texts of 78 rows together, in this order: of 3 rows, of 1, of 2, and so on. */
function fill(speaker: Speaker, level?: (name: number) => number): Map<number, readonly number[]> {
  const texts = new Map<number, readonly number[]>();
  let rows = 0;
  for (let name = 1; rows < 78; name += 1) {
    const text = textOf(name, [3, 1, 2][(name - 1) % 3]!);
    texts.set(name, text);
    rows += text.length / rowTokens;
    speaker.say(text, level === undefined ? {} : { priority: level(name) }).release();
  }
  return texts;
}

const maps = ({ metrics: { foregroundMaps, aliasMaps, unmaps } }: KvCache): number[] => [foregroundMaps + aliasMaps, unmaps];
const room = { rows: 78, slots: 64, prefixCache: { policy: lru() } } as const;

cacheTests('a prompt takes over the slot of that text, of those used longest ago, whose rows it needs', room, (t, bench) => {
  const speaker = new Speaker(bench.cache);
  const texts = fill(speaker);
  t.is(bench.pool().freePages, 0);
  const before = maps(bench.cache);
  for (const [rows, evicted] of [[1, 2], [2, 3], [3, 1]] as const) {
    const text = textOf(1_000 + rows, rows);
    const sequence = speaker.say(text);
    t.is(speaker.wrongTokens(sequence, text), 0);
    t.deepEqual(shortened(bench.cache, texts), [evicted]);
    texts.delete(evicted);
    sequence.release();
    bench.cache.verify();
  }
  t.deepEqual(maps(bench.cache), before, 'nothing was mapped or unmapped');
});

cacheTests('a prompt longer than every text that may go gets the most rows, and evicts no more than it needs', room, (t, bench) => {
  const speaker = new Speaker(bench.cache);
  fill(speaker);
  const [mapsBefore] = maps(bench.cache);
  const { evicted } = bench.cache.prefixes.metrics.droppedRows;
  const sequence = speaker.say(textOf(1_000, 5));
  const pagesPerRow = bench.cache.layout.pagesPerRow;
  t.is(maps(bench.cache)[0]! - mapsBefore!, 2 * pagesPerRow, 'three of five rows were there');
  t.is(bench.cache.prefixes.metrics.droppedRows.evicted - evicted, 5);
  t.is(speaker.wrongTokens(sequence, textOf(1_000, 5)), 0);
  sequence.release();
  bench.cache.verify();
});

cacheTests('a text that shares rows with others does not make way as a whole', { ...room, rows: 81 }, (t, bench) => {
  const speaker = new Speaker(bench.cache);
  const branches = [1, 2].map((name) => [...textOf(100, 1), ...textOf(100 + name, 1)]);
  for (const text of branches) speaker.say(text).release();
  const texts = fill(speaker);
  t.is(bench.pool().freePages, 0);
  const before = maps(bench.cache);
  speaker.say(textOf(1_000, 3)).release();
  t.deepEqual(shortened(bench.cache, texts), [1]);
  t.deepEqual(shortened(bench.cache, new Map(branches.entries())), []);
  t.deepEqual(maps(bench.cache), before);
  bench.cache.verify();
});

cacheTests('a text of a higher level does not make way, however well its rows fit', { ...room, prefixCache: { policy: priority() } }, (t, bench) => {
  const speaker = new Speaker(bench.cache);
  const texts = fill(speaker, (name) => (name % 3 === 2 ? 1 : 0)); // those of one row
  speaker.say(textOf(1_000, 1)).release();
  t.deepEqual(shortened(bench.cache, texts).map((name) => name % 3), [1]);
  bench.cache.verify();
});
