// virtual-kv/prometheus: the counts of caches and schedulers as Prometheus metrics, through the optional package
// prom-client. Each scrape reads the values; nothing is counted in between. What is registered under one registry and
// prefix shares one set of metrics, and differs by its labels.

import { createRequire } from 'node:module';

import { createError } from '../base/errors.js';
import { callable, instanceOf } from '../base/options.js';
import {
  KvCache, type CacheCounts, type CacheMetrics, type PoolCounts, type PrefixMetrics, type SideCounts, type TiersMetrics,
} from '../index.js';
import { MetricSet, metricsOf, type MetricDefinition } from './metric-set.js';
import { loadClient, readMetricsOptions, type MetricsOptions, type MetricsRegister } from './metrics-options.js';
import { tierMetrics } from './tier-metrics.js';

export type { MetricsOptions, MetricsRegister } from './metrics-options.js';
export { registerServingMetrics } from './serving-metrics.js';

/** Removes what was registered from the metrics; idempotent. The next scrape removes a closed cache by itself. */
export type UnregisterMetrics = () => void;

/** The counts of a cache at one moment. */
interface MetricSample {
  readonly counts: CacheCounts;
  readonly metrics: CacheMetrics;
  readonly prefixes: PrefixMetrics;
  readonly pool: PoolCounts;
  readonly pageBytes: number;
  /** Of all side tensors together; 0 without any. */
  readonly side: SideCounts;
  /** Undefined without tiers. */
  readonly tiers: TiersMetrics | undefined;
}

const { gauge, gauges, counter, counters } = metricsOf<MetricSample>();

const cacheMetrics: readonly MetricDefinition<MetricSample>[] = [
  gauges('slots', 'state', 'Slots of the cache.', ({ counts }) => ({
    idle: counts.idleSlots, active: counts.activeSlots, retiring: counts.retiringSlots,
    quarantined: counts.quarantinedSlots,
  })),
  gauge('used_tokens', 'Valid tokens of running sequences.', ({ counts }) => counts.usedTokens),
  gauges('rows', 'use', 'Rows, by use: a row may be both mapped and cached.', ({ counts }) => ({
    mapped: counts.mappedRows, idle: counts.idleRows, cached: counts.cachedRows, pooled: counts.pooledRows,
  })),
  gauge('reclaimable_pages', 'Pages that a growing sequence could get.', ({ counts }) => counts.reclaimablePages),
  gauge(
    'admissible_pages', 'Pages that could be set aside for new prompts without a cached prefix.',
    ({ counts }) => counts.admissiblePages),
  gauge(
    'admissible_tokens', 'Tokens of the longest prompt without a cached prefix that would be admitted.',
    ({ counts }) => counts.admissibleTokens),
  gauges('pool_pages', 'state', 'Pages of the page pool; every cache of a shared pool reports the whole pool.', ({
    pool,
  }) => ({
    free: pool.freePages, mapped: pool.mappedPages, quarantined: pool.quarantinedPages,
  })),
  gauge('pool_earmarked_pages', 'Pages of the pool that are set aside for prompts.', ({ pool }) => pool.earmarkedPages),
  gauge(
    'pool_budget_bytes', 'Most bytes of the pages of the pool together.',
    ({ pool, pageBytes }) => pool.budgetPages * pageBytes),
  gauge(
    'pool_created_bytes', 'Bytes of the created pages of the pool.',
    ({ pool, pageBytes }) => pool.createdPages * pageBytes),
  gauge(
    'recent_hit_ratio', 'Share of the prompt tokens of the last requests that was cached.',
    ({ prefixes }) => prefixes.recentHitRate),

  counter('sequences_acquired_total', 'Sequences that got a slot.', ({ metrics }) => metrics.acquired),
  counter('sequences_released_total', 'Sequences that gave their slot back.', ({ metrics }) => metrics.released),
  counters('mapped_pages_total', 'by', 'Pages mapped: while a step waited, by the mapper, or for a shared prefix.', ({
    metrics,
  }) => ({
    foreground: metrics.foregroundMaps, background: metrics.backgroundMaps, alias: metrics.aliasMaps,
  })),
  counter('unmapped_pages_total', 'Pages unmapped.', ({ metrics }) => metrics.unmaps),
  counter('scrubbed_pages_total', 'Pages zeroed between tenants.', ({ metrics }) => metrics.scrubbedPages),
  counter('copied_bytes_total', 'Bytes of K and V copied within the cache.', ({ metrics }) => metrics.copiedBytes),
  counter(
    'detached_rows_total', 'Shared rows copied before a sequence wrote to them.',
    ({ metrics }) => metrics.detachedRows),
  counter(
    'dropped_requests_total', 'Mapping requests that the mapper dropped for want of pages.',
    ({ metrics }) => metrics.droppedRequests),
  counter(
    'late_errors_total', 'Failures in the background, which no call could throw.', ({ metrics }) => metrics.lateErrors),
  counter('prefix_requests_total', 'Requests that looked for a cached prefix.', ({ prefixes }) => prefixes.requests),
  counter('prefix_prompt_tokens_total', 'Tokens of their prompts.', ({ prefixes }) => prefixes.promptTokens),
  counters('prefix_cached_tokens_total', 'by', 'Of these, cached tokens, by how the sequence got them.', ({
    prefixes,
  }) => ({
    adopted: prefixes.adoptedTokens, aliased: prefixes.aliasedTokens, copied: prefixes.copiedTokens,
  })),
  counters(
    'prefix_dropped_rows_total', 'reason', 'Rows that the prefix cache dropped.',
    ({ prefixes }) => prefixes.droppedRows),
  ...tierMetrics,
  gauge('side_budget_bytes', 'Most bytes of the pages of all side tensors together.', ({ side }) => side.budgetBytes),
  gauges('side_bytes', 'use', 'Bytes of side tensors: of running sequences and hand-overs, only cached, or lost to the driver.', ({
    side,
  }) => ({
    held: side.heldBytes, cached: side.usedBytes - side.heldBytes - side.quarantinedBytes,
    quarantined: side.quarantinedBytes,
  })),
  gauge('side_leased_slots', 'Released sequences whose side tensors hand-overs keep.', ({ side }) => side.leasedSlots),
  gauge(
    'side_registered_bytes', 'Bytes in the memory of the CPU that are registered with the device.',
    ({ side }) => side.registeredBytes),
  counter(
    'side_pageable_bytes_total', 'Bytes of rows that the device copied to memory which it would not register.',
    ({ side }) => side.pageableBytes),
];

const sets = new WeakMap<MetricsRegister, Map<string, MetricSet<KvCache, MetricSample>>>();

/**
 * Registers the metrics of a cache. Throws KV_CLOSED, KV_DEPENDENCY_MISSING when prom-client is not installed,
 * KV_INVALID_OPTION when another cache of that registry and prefix has the same labels, or other label names.
 * @param load Loads prom-client; for tests.
 */
export function registerMetrics(
  cache: KvCache, options: MetricsOptions = {}, load: (name: string) => unknown = createRequire(__filename),
): UnregisterMetrics {
  instanceOf(KvCache)(cache, { owner: 'registerMetrics', option: 'cache' });
  if (cache.isClosed) throw createError('KV_CLOSED', { operation: 'register its metrics', owner: 'KvCache' });
  const { register, prefix, labels } =
    readMetricsOptions('registerMetrics', options, cacheMetrics.flatMap(({ labels }) => labels));
  callable()(load, { owner: 'registerMetrics', option: 'load' });
  const client = loadClient(load);
  const registry = register ?? client.register;
  const ofRegister = sets.get(registry) ?? new Map<string, MetricSet<KvCache, MetricSample>>();
  sets.set(registry, ofRegister);
  const set = ofRegister.get(prefix) ?? new MetricSet<KvCache, MetricSample>({
    owner: 'registerMetrics', definitions: cacheMetrics, isClosed: ({ isClosed }) => isClosed, sample: sampleOf,
    client, registry, prefix, labelNames: Object.keys(labels), onEmpty: () => ofRegister.delete(prefix),
  });
  const leave = set.add({ source: cache, labels });
  ofRegister.set(prefix, set);
  return leave;
}

function sampleOf(cache: KvCache): MetricSample {
  return {
    counts: cache.counts(), metrics: cache.metrics, prefixes: cache.prefixes.metrics, pool: cache.pool.counts(),
    pageBytes: cache.pool.pageBytes,
    tiers: cache.prefixes.tiers?.metrics(),
    side: cache.sideCounts(),
  };
}
