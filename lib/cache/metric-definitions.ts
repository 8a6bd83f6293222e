// MetricDefinition: what monitoring shows of a cache, as plain data: name, meaning and where the value is. Knows no
// metrics library; virtual-kv/prometheus registers these. Names follow Prometheus' rules: base units, `_total` for sums.

import type { CacheCounts, CacheMetrics } from './statistics.js';
import type { PoolCounts } from '../device/page-pool.js';
import type { PrefixMetrics } from './prefix-statistics.js';

/** What a cache said at one moment. */
export interface MetricSample {
  readonly counts: CacheCounts;
  readonly metrics: CacheMetrics;
  readonly prefixes: PrefixMetrics;
  readonly pool: PoolCounts;
  readonly pageBytes: number;
}

export interface MetricDefinition {
  /** Without the prefix. */
  readonly name: string;
  readonly help: string;
  readonly kind: 'gauge' | 'counter';
  /** Name of the label that tells the values apart; undefined: there is one value. */
  readonly label: string | undefined;
  /** The values, each with its label's value. */
  readonly read: (sample: MetricSample) => readonly (readonly [value: number, label?: string])[];
}

type One = (sample: MetricSample) => number;
type Several = (sample: MetricSample) => Readonly<Record<string, number>>;

const one = (kind: MetricDefinition['kind']) => (name: string, help: string, value: One): MetricDefinition =>
  ({ name, help, kind, label: undefined, read: (sample) => [[value(sample)]] });

const several = (kind: MetricDefinition['kind']) => (name: string, label: string, help: string, values: Several): MetricDefinition =>
  ({ name, help, kind, label, read: (sample) => Object.entries(values(sample)).map(([key, value]) => [value, key] as const) });

const gauge = one('gauge');
const gauges = several('gauge');
const counter = one('counter');
const counters = several('counter');

export const cacheMetrics: readonly MetricDefinition[] = [
  gauges('slots', 'state', 'Slots of the cache.', ({ counts }) => ({
    idle: counts.idleSlots, active: counts.activeSlots, retiring: counts.retiringSlots, quarantined: counts.quarantinedSlots,
  })),
  gauge('used_tokens', 'Valid tokens of running sequences.', ({ counts }) => counts.usedTokens),
  gauges('rows', 'use', 'Rows, by what they are: a row may be mapped and cached.', ({ counts }) => ({
    mapped: counts.mappedRows, idle: counts.idleRows, cached: counts.cachedRows, pooled: counts.pooledRows,
  })),
  gauge('reclaimable_pages', 'Pages that a growing sequence could be given.', ({ counts }) => counts.reclaimablePages),
  gauge('admissible_pages', 'Pages that new prompts without a cached prefix could be promised, together.', ({ counts }) => counts.admissiblePages),
  gauge('admissible_tokens', 'Tokens of the longest prompt without a cached prefix that would be admitted.', ({ counts }) => counts.admissibleTokens),
  gauges('pool_pages', 'state', 'Pages of the page pool; caches that share one all tell of it.', ({ pool }) => ({
    free: pool.freePages, mapped: pool.mappedPages, quarantined: pool.quarantinedPages,
  })),
  gauge('pool_promised_pages', 'Pages of the pool that are set aside for prompts.', ({ pool }) => pool.promisedPages),
  gauge('pool_budget_bytes', 'Bytes that the pages of the pool may have together.', ({ pool, pageBytes }) => pool.budgetPages * pageBytes),
  gauge('pool_created_bytes', 'Bytes that they have.', ({ pool, pageBytes }) => pool.createdPages * pageBytes),
  gauge('recent_hit_ratio', 'Share of the prompt tokens of the last requests that was cached.', ({ prefixes }) => prefixes.recentHitRate),

  counter('sequences_acquired_total', 'Sequences that got a slot.', ({ metrics }) => metrics.acquired),
  counter('sequences_released_total', 'Sequences that gave it back.', ({ metrics }) => metrics.released),
  counters('mapped_pages_total', 'by', 'Pages mapped: while a step waited, by the mapper, or for a shared prefix.', ({ metrics }) => ({
    foreground: metrics.foregroundMaps, background: metrics.backgroundMaps, alias: metrics.aliasMaps,
  })),
  counter('unmapped_pages_total', 'Pages unmapped.', ({ metrics }) => metrics.unmaps),
  counter('scrubbed_pages_total', 'Pages zeroed between tenants.', ({ metrics }) => metrics.scrubbedPages),
  counter('copied_bytes_total', 'Bytes of K and V copied within the cache.', ({ metrics }) => metrics.copiedBytes),
  counter('detached_rows_total', 'Shared rows copied because somebody wrote to them.', ({ metrics }) => metrics.detachedRows),
  counter('starved_wishes_total', 'Wishes of the mapper dropped for want of pages.', ({ metrics }) => metrics.starved),
  counter('late_errors_total', 'Failures that no call could report.', ({ metrics }) => metrics.lateErrors),
  counter('prefix_requests_total', 'Requests that looked for a cached prefix.', ({ prefixes }) => prefixes.requests),
  counter('prefix_prompt_tokens_total', 'Tokens of their prompts.', ({ prefixes }) => prefixes.promptTokens),
  counters('prefix_cached_tokens_total', 'by', 'Of these, tokens that were cached, by how the sequence got them.', ({ prefixes }) => ({
    adopted: prefixes.adoptedTokens, aliased: prefixes.aliasedTokens, copied: prefixes.copiedTokens,
  })),
  counters('prefix_dropped_rows_total', 'reason', 'Rows that the prefix cache let go of.', ({ prefixes }) => prefixes.droppedRows),
];
