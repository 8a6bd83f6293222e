// What routers hear of tiers: after every operation, the blocks that were told of each tier are those that it has.

import { subscribe, unsubscribe } from 'node:diagnostics_channel';

import test from 'ava';

import { hostTier, type PrefixClearedEvent, type PrefixEvent, type PrefixRemovedEvent, type PrefixStoredEvent, type TierRemovedEvent, type TierStoredEvent } from 'virtual-kv';

import { Random } from '#internal/base/random.js';
import type { OpenTier } from '#internal/tiers/open-tier.js';
import type { CacheBench } from '../../helpers/cache.js';
import { seedOf } from '../../helpers/seed.js';
import { turn } from './device-index.js';
import { PlainTier } from './plain-tier.js';
import { benchOf, close, serve, textOf } from './tier-bench.js';

const seed = seedOf('tier events');
const blockTokens = 16;
const tokenBytes = 2 * 2 * 128 * 2; // of the bench's model

/** Applies the events of the caches with one label, as a router does. */
class Router {
  readonly onDevice = new Set<string>();
  readonly inTier = new Map<string, Set<string>>();
  readonly runs: TierStoredEvent[] = [];
  readonly #label: string;
  #lastNumber = 0;
  readonly #listeners: readonly (readonly [string, (message: unknown) => void])[] = [
    ['prefix-stored', (message) => { this.#apply(message, ({ blockKeys }: PrefixStoredEvent) => { for (const key of blockKeys) this.onDevice.add(key); }); }],
    ['prefix-removed', (message) => { this.#apply(message, ({ blockKeys }: PrefixRemovedEvent) => { for (const key of blockKeys) this.onDevice.delete(key); }); }],
    ['prefix-cleared', (message) => { this.#apply(message, (_: PrefixClearedEvent) => { this.onDevice.clear(); this.inTier.clear(); }); }],
    ['tier-stored', (message) => { this.#apply(message, (event: TierStoredEvent) => { this.runs.push(event); for (const key of event.blockKeys) this.of(event.tier).add(key); }); }],
    ['tier-removed', (message) => { this.#apply(message, ({ tier, blockKeys }: TierRemovedEvent) => { for (const key of blockKeys) this.of(tier).delete(key); }); }],
  ];

  constructor(label: string) {
    this.#label = label;
    for (const [name, listener] of this.#listeners) subscribe(`virtual-kv:${name}`, listener);
  }

  of(tier: string): Set<string> {
    let keys = this.inTier.get(tier);
    if (keys === undefined) this.inTier.set(tier, keys = new Set());
    return keys;
  }

  close(): void {
    for (const [name, listener] of this.#listeners) unsubscribe(`virtual-kv:${name}`, listener);
  }

  #apply<E extends PrefixEvent>(message: unknown, apply: (event: E) => void): void {
    const event = message as E;
    if (event.label !== this.#label) return;
    if (event.eventNumber !== this.#lastNumber + 1) throw new Error(`event ${event.eventNumber} came after ${this.#lastNumber}`);
    this.#lastNumber = event.eventNumber;
    apply(event);
  }
}

/** The keys of the whole blocks that a tier has. */
function keysIn(bench: CacheBench, tier: string): string[] {
  const { opened } = bench.cache.prefixes.tiers as unknown as { readonly opened: readonly OpenTier[] };
  const { contents } = opened.find((open) => open.tier.name === tier)!;
  return [...contents.blocks()].filter(({ tokens }) => tokens.length === blockTokens).map(({ key }) => key).sort();
}

test(`what was told of each tier is what it has, at every moment (seed ${seed})`, async (t) => {
  const label = 'tier events, every moment';
  const router = new Router(label);
  const random = new Random(seed);
  const plain = new PlainTier('plain');
  const tiers = [hostTier({ bytes: 40 * blockTokens * tokenBytes }), plain];
  const bench = benchOf(t, tiers, { prefixCache: { tiers, events: { blockTokens, label } } });
  const { prefixes } = bench.cache;
  let removed = 0;
  for (let round = 0; round < 40; round += 1) {
    const text = textOf(16 + random.integer(200), 1 + random.integer(8));
    const before = router.of('host').size;
    serve(bench, text, 5);
    await prefixes.tiers!.settled();
    if (round === 25) prefixes.reset();
    if (round === 30) await prefixes.promote({ tokens: text });
    await turn();
    if (router.of('host').size < before) removed += 1;
    for (const tier of ['host', 'plain']) t.deepEqual([...router.of(tier)].sort(), keysIn(bench, tier), `round ${round}, ${tier}`);
    if (round !== 25) t.true(prefixes.externalKeys({ tokens: text }, blockTokens).every((key) => router.of('plain').has(key)));
  }
  t.true(router.of('host').size <= 40 && removed > 0);
  for (const { fromToken, blockKeys, parentKey } of router.runs) {
    t.is(fromToken % blockTokens, 0);
    t.true(blockKeys.length > 0);
    t.is(parentKey === undefined, fromToken === 0);
  }
  const told = new Map([...router.inTier].map(([tier, keys]) => [tier, new Set(keys)]));
  prefixes.publishAll();
  await turn();
  for (const [tier, keys] of told) t.deepEqual([...router.of(tier)].sort(), [...keys].sort());
  await prefixes.tiers!.close();
  bench.close();
  t.is(router.inTier.size, 0);
  router.close();
});

test('what a lasting tier has is told when it opens, and text that the device lost as removed there alone', async (t) => {
  const plain = new PlainTier('plain');
  const label = 'tier events, lasting';
  const router = new Router(label);
  const first = benchOf(t, [], { prefixCache: { tiers: [plain] } }); // tells nothing
  const text = textOf(64);
  serve(first, text, 3);
  await first.cache.prefixes.tiers!.settled();
  await close(first);
  t.is(router.inTier.size, 0);

  const rowTokens = 65_536 / (128 * 2);
  const bench = benchOf(t, [], { prefixCache: { tiers: [plain], events: { blockTokens, label } }, memoryBudgetBytes: 3 * 4 * 65_536 });
  await bench.cache.prefixes.tiers!.ready();
  await turn();
  t.deepEqual([...router.of('plain')].sort(), [...bench.cache.prefixes.externalKeys({ tokens: text }, blockTokens)].sort());
  t.is(router.onDevice.size, 0);
  t.like(await bench.cache.prefixes.promote({ tokens: text }), { promotedTokens: 64 });
  await turn();
  t.is(router.onDevice.size, 4);
  const [told] = router.onDevice;
  for (const key of [4, 5]) serve(bench, textOf(3 * rowTokens, key), key); // takes its place
  await bench.cache.prefixes.tiers!.settled();
  await turn();
  t.is(bench.cache.prefixes.lookup({ tokens: text }).cachedTokens, 0);
  t.false(router.onDevice.has(told!));
  t.true(bench.cache.prefixes.externalKeys({ tokens: text }, blockTokens).every((key) => router.of('plain').has(key)));
  await close(bench);
  router.close();
});
