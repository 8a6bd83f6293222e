// virtual-kv/prometheus: a cache's counts as Prometheus metrics, through the optional package prom-client. Each scrape reads the
// values from the caches; nothing is counted in between. Caches of one registry and prefix share one set of metrics, and differ by
// their labels.

import { createRequire } from 'node:module';

import { createError } from './base/errors.js';
import { callable, instanceOf, readOptions, withDefault, withoutRevoked, type Field } from './base/options.js';
import { KvCache, type CacheCounts, type CacheMetrics, type PoolCounts, type PrefixMetrics } from './index.js';

/** A `Registry` of prom-client. */
export interface MetricsRegister {
  /** As prom-client's `Registry.registerMetric`. */
  registerMetric(metric: never): void;
  /** As prom-client's `Registry.removeSingleMetric`. */
  removeSingleMetric(name: string): void;
}

/** Options of `registerMetrics`. */
export interface MetricsOptions {
  /** The registry of the metrics. Default: prom-client's own `register`. */
  readonly register?: MetricsRegister | undefined;
  /** The start of every metric's name. Default `virtual_kv_`. */
  readonly prefix?: string | undefined;
  /** Labels of this cache in every metric. All caches of one registry and prefix need the same label names. Default: none. */
  readonly labels?: Readonly<Record<string, string>> | undefined;
}

/** Removes the cache from the metrics; idempotent. The next scrape removes a closed cache by itself. */
export type UnregisterMetrics = () => void;

/** The part of prom-client that is used. */
interface Metric {
  reset(): void;
  set(labels: Readonly<Record<string, string>>, value: number): void;
  inc(labels: Readonly<Record<string, string>>, value: number): void;
}

type MetricClass = new (options: {
  readonly name: string;
  readonly help: string;
  readonly labelNames: readonly string[];
  readonly registers: readonly MetricsRegister[];
  readonly collect: (this: Metric) => void;
}) => Metric;

interface PromClient {
  readonly Gauge: MetricClass;
  readonly Counter: MetricClass;
  readonly register: MetricsRegister;
}

interface Member {
  readonly cache: KvCache;
  readonly labels: Readonly<Record<string, string>>;
}

/** The counts of a cache at one moment. */
interface MetricSample {
  readonly counts: CacheCounts;
  readonly metrics: CacheMetrics;
  readonly prefixes: PrefixMetrics;
  readonly pool: PoolCounts;
  readonly pageBytes: number;
}

/** A metric: its name, its meaning, and how it is read. Names follow Prometheus' rules: base units, `_total` for sums. */
interface MetricDefinition {
  /** The name without the prefix. */
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

const cacheMetrics: readonly MetricDefinition[] = [
  gauges('slots', 'state', 'Slots of the cache.', ({ counts }) => ({
    idle: counts.idleSlots, active: counts.activeSlots, retiring: counts.retiringSlots, quarantined: counts.quarantinedSlots,
  })),
  gauge('used_tokens', 'Valid tokens of running sequences.', ({ counts }) => counts.usedTokens),
  gauges('rows', 'use', 'Rows, by use: a row may be both mapped and cached.', ({ counts }) => ({
    mapped: counts.mappedRows, idle: counts.idleRows, cached: counts.cachedRows, pooled: counts.pooledRows,
  })),
  gauge('reclaimable_pages', 'Pages that a growing sequence could get.', ({ counts }) => counts.reclaimablePages),
  gauge('admissible_pages', 'Pages that could be set aside for new prompts without a cached prefix.', ({ counts }) => counts.admissiblePages),
  gauge('admissible_tokens', 'Tokens of the longest prompt without a cached prefix that would be admitted.', ({ counts }) => counts.admissibleTokens),
  gauges('pool_pages', 'state', 'Pages of the page pool; every cache of a shared pool reports the whole pool.', ({ pool }) => ({
    free: pool.freePages, mapped: pool.mappedPages, quarantined: pool.quarantinedPages,
  })),
  gauge('pool_promised_pages', 'Pages of the pool that are set aside for prompts.', ({ pool }) => pool.promisedPages),
  gauge('pool_budget_bytes', 'Most bytes of the pages of the pool together.', ({ pool, pageBytes }) => pool.budgetPages * pageBytes),
  gauge('pool_created_bytes', 'Bytes of the created pages of the pool.', ({ pool, pageBytes }) => pool.createdPages * pageBytes),
  gauge('recent_hit_ratio', 'Share of the prompt tokens of the last requests that was cached.', ({ prefixes }) => prefixes.recentHitRate),

  counter('sequences_acquired_total', 'Sequences that got a slot.', ({ metrics }) => metrics.acquired),
  counter('sequences_released_total', 'Sequences that gave their slot back.', ({ metrics }) => metrics.released),
  counters('mapped_pages_total', 'by', 'Pages mapped: while a step waited, by the mapper, or for a shared prefix.', ({ metrics }) => ({
    foreground: metrics.foregroundMaps, background: metrics.backgroundMaps, alias: metrics.aliasMaps,
  })),
  counter('unmapped_pages_total', 'Pages unmapped.', ({ metrics }) => metrics.unmaps),
  counter('scrubbed_pages_total', 'Pages zeroed between tenants.', ({ metrics }) => metrics.scrubbedPages),
  counter('copied_bytes_total', 'Bytes of K and V copied within the cache.', ({ metrics }) => metrics.copiedBytes),
  counter('detached_rows_total', 'Shared rows copied before a sequence wrote to them.', ({ metrics }) => metrics.detachedRows),
  counter('dropped_requests_total', 'Mapping requests that the mapper dropped for want of pages.', ({ metrics }) => metrics.droppedRequests),
  counter('late_errors_total', 'Failures in the background, which no call could throw.', ({ metrics }) => metrics.lateErrors),
  counter('prefix_requests_total', 'Requests that looked for a cached prefix.', ({ prefixes }) => prefixes.requests),
  counter('prefix_prompt_tokens_total', 'Tokens of their prompts.', ({ prefixes }) => prefixes.promptTokens),
  counters('prefix_cached_tokens_total', 'by', 'Of these, cached tokens, by how the sequence got them.', ({ prefixes }) => ({
    adopted: prefixes.adoptedTokens, aliased: prefixes.aliasedTokens, copied: prefixes.copiedTokens,
  })),
  counters('prefix_dropped_rows_total', 'reason', 'Rows that the prefix cache dropped.', ({ prefixes }) => prefixes.droppedRows),
];

const sets = new WeakMap<MetricsRegister, Map<string, MetricSet>>();

const text: Field<string> = (value, place) => {
  if (typeof value === 'string' && /^[a-zA-Z_:][a-zA-Z0-9_:]*$/.test(value)) return value;
  throw invalid(place.owner, place.option, 'the beginning of a metric name: letters, digits, _ and :', value);
};

const register: Field<MetricsRegister | undefined> = (value, place) => {
  const { registerMetric, removeSingleMetric } = (value ?? {}) as Partial<MetricsRegister>;
  const isRegister = typeof registerMetric === 'function' && typeof removeSingleMetric === 'function';
  if (value === undefined || isRegister) return value as MetricsRegister | undefined;
  throw invalid(place.owner, place.option, 'a Registry of prom-client', value);
};

const labels: Field<Readonly<Record<string, string>>> = (value, place) => {
  const given: Readonly<Record<string, unknown>> | undefined = typeof value === 'object' && value !== null
    ? withoutRevoked(value, place, () => ({ ...value })) : undefined;
  if (given !== undefined && Object.values(given).every((label) => typeof label === 'string')) {
    const taken = Object.keys(given).find((name) => cacheMetrics.some((metric) => metric.label === name));
    if (taken === undefined) return given as Readonly<Record<string, string>>;
    throw invalid(place.owner, `${place.option}.${taken}`, 'another name: the metrics use this one', given[taken]);
  }
  throw invalid(place.owner, place.option, 'an object of strings', value);
};

/**
 * Registers the metrics of a cache. Throws KV_CLOSED, KV_DEPENDENCY_MISSING when prom-client is not installed, KV_INVALID_OPTION when
 * another cache of that registry and prefix has the same labels, or other label names.
 * @param load Loads prom-client; for tests.
 */
export function registerMetrics(
  cache: KvCache, options: MetricsOptions = {}, load: (name: string) => unknown = createRequire(__filename),
): UnregisterMetrics {
  instanceOf(KvCache)(cache, { owner: 'registerMetrics', option: 'cache' });
  if (cache.isClosed) throw createError('KV_CLOSED', { operation: 'register its metrics', owner: 'KvCache' });
  const read = readOptions('registerMetrics', options, {
    register, prefix: withDefault(text, 'virtual_kv_'), labels: withDefault(labels, {}),
  });
  callable()(load, { owner: 'registerMetrics', option: 'load' });
  const client = loadClient(load);
  const registry = read.register ?? client.register;
  const ofRegister = sets.get(registry) ?? new Map<string, MetricSet>();
  sets.set(registry, ofRegister);
  const known = ofRegister.get(read.prefix);
  const set = known ?? new MetricSet({
    client, registry, prefix: read.prefix, labelNames: Object.keys(read.labels), onEmpty: () => ofRegister.delete(read.prefix),
  });
  const leave = set.add({ cache, labels: read.labels });
  ofRegister.set(read.prefix, set);
  return leave;
}

interface SetOptions {
  readonly client: PromClient;
  readonly registry: MetricsRegister;
  readonly prefix: string;
  readonly labelNames: readonly string[];
  readonly onEmpty: () => void;
}

class MetricSet {
  readonly #options: SetOptions;
  readonly #members = new Set<Member>();
  /** The samples of this scrape, shared by its metrics, which are read one after the other. */
  #samples: Map<Member, MetricSample> | undefined;

  constructor(options: SetOptions) {
    this.#options = options;
    const { client, registry, prefix, labelNames } = options;
    for (const definition of cacheMetrics) {
      const { name, help, kind, label } = definition;
      const report = (metric: Metric): void => { this.#report(definition, metric); };
      new (kind === 'counter' ? client.Counter : client.Gauge)({
        name: prefix + name, help, registers: [registry], labelNames: label === undefined ? labelNames : [...labelNames, label],
        collect() { report(this); },
      });
    }
  }

  add(member: Member): UnregisterMetrics {
    const { labelNames } = this.#options;
    const names = Object.keys(member.labels);
    if (names.length !== labelNames.length || !names.every((name) => labelNames.includes(name))) {
      const expected = labelNames.length === 0 ? 'left out, as for the cache before' : `an object with the names ${labelNames.join(', ')}`;
      throw invalid('registerMetrics', 'labels', expected, member.labels);
    }
    for (const other of this.#members) {
      if (!names.every((name) => other.labels[name] === member.labels[name])) continue;
      throw invalid('registerMetrics', 'labels', 'other than those of each cache that is registered', member.labels);
    }
    this.#members.add(member);
    return () => { this.#remove(member); };
  }

  #remove(member: Member): void {
    if (!this.#members.delete(member) || this.#members.size > 0) return;
    const { registry, prefix, onEmpty } = this.#options;
    for (const { name } of cacheMetrics) registry.removeSingleMetric(prefix + name);
    onEmpty();
  }

  #report({ kind, label, read }: MetricDefinition, metric: Metric): void {
    metric.reset();
    for (const [{ labels: own }, sample] of this.#sample()) {
      for (const [value, name] of read(sample)) {
        const all = label === undefined ? own : { ...own, [label]: name! };
        if (kind === 'counter') metric.inc(all, value);
        else metric.set(all, value);
      }
    }
  }

  #sample(): Map<Member, MetricSample> {
    for (const member of this.#members) if (member.cache.isClosed) this.#remove(member);
    if (this.#samples !== undefined) return this.#samples;
    queueMicrotask(() => { this.#samples = undefined; });
    const samples = new Map<Member, MetricSample>();
    for (const member of this.#members) {
      const { cache } = member;
      samples.set(member, {
        counts: cache.counts(), metrics: cache.metrics, prefixes: cache.prefixes.metrics, pool: cache.pool.counts(),
        pageBytes: cache.pool.pageBytes,
      });
    }
    this.#samples = samples;
    return samples;
  }
}

function loadClient(load: (name: string) => unknown): PromClient {
  try {
    const client = load('prom-client') as Partial<PromClient> | null | undefined;
    if (typeof client?.Gauge === 'function' && typeof client.Counter === 'function') return client as PromClient;
    throw Object.assign(new Error('The loaded module has no Gauge or no Counter.'), { code: 'MODULE_NOT_FOUND' });
  } catch (cause) {
    if ((cause as NodeJS.ErrnoException | undefined)?.code !== 'MODULE_NOT_FOUND') throw cause;
    throw createError('KV_DEPENDENCY_MISSING', { dependency: 'prom-client', purpose: 'registering metrics' }, { cause });
  }
}

function invalid(owner: string, option: string, expected: string, received: unknown): Error {
  const reason = typeof received === 'object' || typeof received === 'string' ? 'range' : 'type';
  return createError('KV_INVALID_OPTION', { reason, owner, option, expected, received });
}
