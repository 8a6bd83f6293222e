// Text that the eviction policy withholds: none of its memory is earmarked for a request, and no request pays for it twice.

import { priority, type EvictionContext, type EvictionPolicy, type NodeView } from 'virtual-kv';

import { cacheTests, rowTokens, type CacheBench } from '../../helpers/cache.js';
import { Speaker, tokensOf } from './spoken.js';

const pinned = tokensOf(1, 2 * rowTokens);
const options = { rows: 8, prefixCache: { policy: priority({ pinnedLevel: 1 }) } } as const;

function pin(speaker: Speaker, text: readonly number[]): void {
  speaker.say(text, { priority: 1 }).release();
}

/** A prompt of all that `rows` rows hold is admitted, one of a token more is refused and evicts nothing. */
function assertAdmitsExactly({ t, cache }: CacheBench, rows: number): void {
  const tokens = rows * rowTokens;
  t.is(cache.counts().admissibleTokens, tokens);
  const { pooledRows } = cache.counts();
  t.throws(() => cache.acquire({ promptTokens: tokens + 1 }), { code: 'KV_OUT_OF_PAGES' });
  t.is(cache.counts().pooledRows, pooledRows);
  t.notThrows(() => {
    cache.acquire({ promptTokens: tokens }).release();
  });
}

cacheTests('pinned text is not admissible, other cached text is', options, (t, bench) => {
  const speaker = new Speaker(bench.cache);
  pin(speaker, pinned);
  speaker.say(tokensOf(2, 3 * rowTokens)).release();
  assertAdmitsExactly(bench, 6);
  t.is(bench.cache.prefixes.lookup({ tokens: [...pinned, 1] }).cachedTokens, 2 * rowTokens);
});

cacheTests('a prompt that continues pinned text needs memory for the rest only', options, (t, bench) => {
  const speaker = new Speaker(bench.cache);
  pin(speaker, pinned);
  const whole = [...pinned, ...tokensOf(3, 6 * rowTokens)];
  t.throws(() => bench.cache.acquire({ tokens: [...whole, 1] }), { code: 'KV_OUT_OF_PAGES' });
  const sequence = speaker.say(whole);
  t.is(sequence.cachedTokens, 2 * rowTokens);
  t.is(speaker.wrongTokens(sequence, whole), 0);
  t.is(bench.cache.counts().admissiblePages, 0);
  sequence.release();
  assertAdmitsExactly(bench, 6);
});

cacheTests('a prompt that shares half of a pinned row needs a row of its own for it', options, (t, bench) => {
  const speaker = new Speaker(bench.cache);
  pin(speaker, pinned);
  const sequence = speaker.say([...pinned.slice(0, rowTokens + 9), 5]);
  assertAdmitsExactly(bench, 5);
  t.is(speaker.wrongTokens(sequence, [...pinned.slice(0, rowTokens + 9), 5]), 0);
  sequence.release();
});

cacheTests('a sequence that computes pinned text again needs no memory beside it', options, (t, bench) => {
  const speaker = new Speaker(bench.cache);
  pin(speaker, pinned);
  const sequence = speaker.say(pinned, { caching: 'write' });
  assertAdmitsExactly(bench, 6);
  t.is(speaker.wrongTokens(sequence, pinned), 0);
  sequence.release();
  assertAdmitsExactly(bench, 6);
});

cacheTests('a sequence that took tokens back leaves the pinned text behind them alone, and is refused where it would need it', options, (t, bench) => {
  const { cache } = bench;
  const speaker = new Speaker(cache);
  pin(speaker, pinned);
  const sequence = speaker.say([...pinned, ...tokensOf(4, 3)], { reserve: 'none' });
  sequence.truncate(rowTokens + 3);
  const other = cache.acquire({ promptTokens: 6 * rowTokens });
  const droppedRows = cache.prefixes.metrics.droppedRows.evicted;
  t.throws(() => speaker.goOn(sequence, pinned.slice(0, rowTokens + 3), [7]), { code: 'KV_OUT_OF_PAGES' });
  t.is(cache.prefixes.metrics.droppedRows.evicted, droppedRows);
  other.release();
  const whole = speaker.goOn(sequence, pinned.slice(0, rowTokens + 3), [8, 9]);
  t.is(speaker.wrongTokens(sequence, whole), 0);
  t.is(cache.prefixes.lookup({ tokens: [...pinned, 1] }).cachedTokens, 2 * rowTokens);
  sequence.release();
});

let nowMs = 0;
const expiring = { ...options, prefixCache: { policy: priority({ pinnedLevel: 1, lifetimeMs: () => 1_000, now: () => nowMs }) } };

cacheTests('pinned text is admissible once it has expired', expiring, (t, bench) => {
  nowMs = 0;
  pin(new Speaker(bench.cache), pinned);
  nowMs = 999;
  assertAdmitsExactly(bench, 6);
  nowMs = 1_000;
  t.is(bench.cache.counts().admissibleTokens, 8 * rowTokens);
  bench.cache.acquire({ promptTokens: 8 * rowTokens }).release();
  t.is(bench.cache.prefixes.lookup({ tokens: [...pinned, 1] }).cachedTokens, 0);
});

/** Keeps what begins a text. */
class KeepsBeginnings implements EvictionPolicy {
  readonly #nodes: NodeView;
  readonly #there = new Set<number>();

  constructor({ nodes }: EvictionContext) {
    this.#nodes = nodes;
  }

  add(node: number): void {
    this.#there.add(node);
  }

  remove(node: number): void {
    this.#there.delete(node);
  }

  split(upper: number): void {
    this.#there.add(upper);
  }

  victim(): number {
    for (const node of this.#there) if (this.#nodes.firstChild[node] === -1 && !this.withholds(node)) return node;
    return -1;
  }

  withholds(node: number): boolean {
    return this.#nodes.from[node] === 0;
  }
}

cacheTests('a policy of one\'s own says what it withholds', { rows: 8, prefixCache: { policy: (context) => new KeepsBeginnings(context) } }, (t, bench) => {
  const speaker = new Speaker(bench.cache);
  const whole = [...pinned, ...tokensOf(5, rowTokens)];
  speaker.say(pinned).release();
  speaker.say(whole).release();
  assertAdmitsExactly(bench, 6);
  t.is(bench.cache.prefixes.lookup({ tokens: whole }).cachedTokens, 2 * rowTokens);
  t.is(bench.cache.metrics.lateErrors, 0);
});
