// virtual-kv/prometheus: a cache's counts as Prometheus metrics, through the optional package prom-client. Values are read from the
// cache when somebody scrapes, and cost nothing in between. One set of metrics per registry and prefix serves all caches that are
// registered there; their labels tell them apart.

import { createRequire } from 'node:module';

import { createError } from './base/errors.js';
import { callable, instanceOf, readOptions, withDefault, withoutRevoked, type Field } from './base/options.js';
import { KvCache } from './cache/kv-cache.js';
import { cacheMetrics, type MetricDefinition, type MetricSample } from './cache/metric-definitions.js';

/** A `Registry` of prom-client. */
export interface MetricsRegister {
  /** As prom-client's `Registry.registerMetric`. */
  registerMetric(metric: never): void;
  /** As prom-client's `Registry.removeSingleMetric`. */
  removeSingleMetric(name: string): void;
}

/** Options of `registerMetrics`. */
export interface MetricsOptions {
  /** Where the metrics go. Default: prom-client's own `register`. */
  readonly register?: MetricsRegister | undefined;
  /** In front of every name. Default `virtual_kv_`. */
  readonly prefix?: string | undefined;
  /** Labels of this cache in every metric. All caches of one register and prefix have the same label names. Default: none. */
  readonly labels?: Readonly<Record<string, string>> | undefined;
}

/** Takes the cache out of the metrics; idempotent. A closed cache goes by itself at the next scrape. */
export type UnregisterMetrics = () => void;

/** What is used of prom-client. */
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
 * Registers the metrics of a cache. Throws KV_DEPENDENCY_MISSING when prom-client is not installed, KV_INVALID_OPTION when
 * another cache has the same labels there, or other label names.
 * @param load How prom-client is found; for tests.
 */
export function registerMetrics(
  cache: KvCache, options: MetricsOptions = {}, load: (name: string) => unknown = createRequire(__filename),
): UnregisterMetrics {
  instanceOf(KvCache)(cache, { owner: 'registerMetrics', option: 'cache' });
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
  /** What the caches said in this scrape; it asks for one metric after the other. */
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
    throw Object.assign(new Error('What was loaded has no Gauge and no Counter.'), { code: 'MODULE_NOT_FOUND' });
  } catch (cause) {
    if ((cause as NodeJS.ErrnoException | undefined)?.code !== 'MODULE_NOT_FOUND') throw cause;
    throw createError('KV_DEPENDENCY_MISSING', { dependency: 'prom-client', purpose: 'registering metrics' }, { cause });
  }
}

function invalid(owner: string, option: string, expected: string, received: unknown): Error {
  const reason = typeof received === 'object' || typeof received === 'string' ? 'range' : 'type';
  return createError('KV_INVALID_OPTION', { reason, owner, option, expected, received });
}
