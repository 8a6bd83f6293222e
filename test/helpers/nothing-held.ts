// assertNothingHeld: what must be so of a cache once its sequences and hand-overs are over and its queued work is done, whatever
// failed before: `reset` drops everything, and nothing stays open, pinned, earmarked or lent, nor listens to a signal.

import { getEventListeners } from 'node:events';
import { setTimeout } from 'node:timers/promises';

import type { ExecutionContext } from 'ava';

import type { KvCache, TierMetrics } from 'virtual-kv';

import type { PrefixIndex } from '#internal/prefix/prefix-index.js';

/** Of a cache that alone uses its pool. `signals`: those that its calls were given. Resets the cache. */
export function assertNothingHeld(t: ExecutionContext, cache: KvCache, what?: string, signals: readonly AbortSignal[] = []): void {
  const { activeSlots, retiringSlots, quarantinedSlots } = cache.counts();
  t.deepEqual({ activeSlots, retiringSlots }, { activeSlots: 0, retiringSlots: 0 }, what);
  cache.prefixes.reset();
  cache.verify();
  (cache.pool as unknown as { quiesce(): void }).quiesce(); // pages of a row that a mapper is at count nowhere
  const { index } = cache.prefixes as unknown as { readonly index: PrefixIndex };
  const { cachedRows, pooledRows, admissiblePages } = cache.counts();
  const { earmarkedPages, budgetPages, quarantinedPages } = cache.pool.counts();
  t.deepEqual(
    { openPaths: index.openPaths, textTokens: index.textTokens, isWithheld: index.withheld.isAny, cachedRows, pooledRows, earmarkedPages },
    { openPaths: 0, textTokens: 0, isWithheld: false, cachedRows: 0, pooledRows: 0, earmarkedPages: 0 }, what,
  );
  // A slot in quarantine keeps what it maps; pages of side tensors in quarantine are not of this budget.
  if (quarantinedSlots === 0) t.true(admissiblePages >= budgetPages - quarantinedPages, what);
  if (cache.sideTensors.length > 0) {
    const { usedBytes, heldBytes, quarantinedBytes, leasedSlots } = cache.sideCounts();
    t.deepEqual({ usedBytes, heldBytes, leasedSlots }, { usedBytes: quarantinedBytes, heldBytes: 0, leasedSlots: 0 }, what);
  }
  for (const signal of signals) t.is(getEventListeners(signal, 'abort').length, 0, what);
}

/**
 * The same of its tiers, once nothing is on its way to them: each is empty, and has all its memory again. Resets the cache.
 * @param shared Names of tiers whose stores others use too, which no reset clears.
 */
export async function assertTiersEmpty(t: ExecutionContext, cache: KvCache, shared: readonly string[] = []): Promise<void> {
  const tiers = cache.prefixes.tiers!;
  await tiers.settled();
  cache.prefixes.reset();
  await tiers.settled();
  // Memory that was lent to slower tiers comes back behind their writes.
  const own = (): TierMetrics[] => tiers.metrics().tiers.filter(({ name, state }) => state === 'open' && !shared.includes(name));
  const hasMemory = (): boolean => own().some((tier) => (tier.own?.bytes ?? 0) > 0);
  for (let turns = 0; turns < 300_000 && hasMemory(); turns += 1) await setTimeout(1);
  for (const { name, blocks, bytes, own: stored } of own()) {
    t.deepEqual({ blocks, bytes, own: stored?.blocks, ownBytes: stored?.bytes }, { blocks: 0, bytes: 0, own: 0, ownBytes: 0 }, name);
  }
}
