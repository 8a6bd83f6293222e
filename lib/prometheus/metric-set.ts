// MetricSet: the metrics of all members (caches, schedulers) of one registry and prefix. Each scrape reads the values
// from the members; nothing is counted in between. Members differ by their labels.

import type { TimeHistogram } from '../index.js';
import { invalid, type Metric, type MetricsRegister, type PromClient } from './metrics-options.js';

/**
 * A metric: its name, its meaning, and how it is read. Names follow Prometheus' rules: base units, `_total` for sums.
 */
export interface MetricDefinition<S> {
  /** The name without the prefix. */
  readonly name: string;
  readonly help: string;
  readonly kind: 'gauge' | 'counter' | 'histogram';
  /** Names of the labels that tell the values apart; none: there is one value. */
  readonly labels: readonly string[];
  /** The values, each with its labels' values; of a histogram those in `times`. */
  readonly read: (sample: S) => readonly (readonly [value: number, ...labels: string[]])[];
  readonly times?: (sample: S) => readonly (readonly [times: TimeHistogram, ...labels: string[]])[];
}

type Labels = Readonly<Record<string, string>>;

/** What has metrics, with the labels that tell it from others. */
export interface MetricMember<T> {
  readonly source: T;
  readonly labels: Labels;
}

export interface MetricSetOptions<T, S> {
  /** The function that its users call, for messages. */
  readonly owner: string;
  readonly definitions: readonly MetricDefinition<S>[];
  readonly isClosed: (source: T) => boolean;
  readonly sample: (source: T) => S;
  readonly client: PromClient;
  readonly registry: MetricsRegister;
  readonly prefix: string;
  readonly labelNames: readonly string[];
  readonly onEmpty: () => void;
}

/** Of one registry and prefix. */
export class MetricSet<T, S> {
  readonly #options: MetricSetOptions<T, S>;
  readonly #members = new Set<MetricMember<T>>();
  /** The samples of this scrape, shared by its metrics, which are read one after the other. */
  #samples: Map<MetricMember<T>, S> | undefined;

  constructor(options: MetricSetOptions<T, S>) {
    this.#options = options;
    const { definitions, registry, prefix } = options;
    for (const [at, definition] of definitions.entries()) {
      try {
        this.#register(definition);
      } catch (error) { // the register has a metric of this name
        for (const { name } of definitions.slice(0, at)) registry.removeSingleMetric(prefix + name);
        throw error;
      }
    }
  }

  #register(definition: MetricDefinition<S>): void {
    const { client, registry, prefix, labelNames } = this.#options;
    const { name, help, kind } = definition;
    const names = [...labelNames, ...definition.labels];
    if (kind === 'histogram') {
      const metric = {
        name: prefix + name, help, type: kind, labelNames: names, get: () => this.#histogram(definition),
        reset: () => {},
      };
      registry.registerMetric(metric as never);
      return;
    }
    const report = (metric: Metric): void => { this.#report(definition, metric); };
    new (kind === 'counter' ? client.Counter : client.Gauge)({
      name: prefix + name, help, registers: [registry], labelNames: names, collect() { report(this); },
    });
  }

  /**
   * Returns what removes it again. Throws KV_INVALID_OPTION where the labels are those of another, or have other names.
   */
  add(member: MetricMember<T>): () => void {
    const { owner, labelNames, isClosed } = this.#options;
    const names = Object.keys(member.labels);
    if (names.length !== labelNames.length || !names.every((name) => labelNames.includes(name))) {
      const expected = labelNames.length === 0 ? 'left out, as for the one before'
        : `an object with the names ${labelNames.join(', ')}`;
      throw invalid(owner, 'labels', expected, member.labels);
    }
    for (const other of this.#members) {
      if (!names.every((name) => other.labels[name] === member.labels[name])) continue;
      if (isClosed(other.source)) this.#members.delete(other); // it would go with the next scrape
      else throw invalid(owner, 'labels', 'other than those of each that is registered', member.labels);
    }
    this.#members.add(member);
    return () => { this.#remove(member); };
  }

  #remove(member: MetricMember<T>): void {
    if (!this.#members.delete(member) || this.#members.size > 0) return;
    const { definitions, registry, prefix, onEmpty } = this.#options;
    for (const { name } of definitions) registry.removeSingleMetric(prefix + name);
    onEmpty();
  }

  #report({ kind, labels, read }: MetricDefinition<S>, metric: Metric): void {
    metric.reset();
    for (const [{ labels: own }, sample] of this.#sample()) {
      for (const [value, ...values] of read(sample)) {
        const all = labelled(own, labels, values);
        if (kind === 'counter') metric.inc(all, value);
        else metric.set(all, value);
      }
    }
  }

  /** As prom-client's own histograms answer: times in seconds, buckets that each hold those before. */
  #histogram({ name, help, labels: names, times }: MetricDefinition<S>): Promise<object> {
    const full = this.#options.prefix + name;
    const values: { readonly metricName: string; readonly labels: Labels; readonly value: number }[] = [];
    for (const [{ labels: own }, sample] of this.#sample()) {
      for (const [{ boundsMs, counts, sumMs, count }, ...labelValues] of times!(sample)) {
        const labels = labelled(own, names, labelValues);
        let below = 0;
        boundsMs.forEach((boundMs, bucket) => {
          below += counts[bucket]!;
          values.push({ metricName: `${full}_bucket`, labels: { ...labels, le: String(boundMs / 1e3) }, value: below });
        });
        values.push({ metricName: `${full}_bucket`, labels: { ...labels, le: '+Inf' }, value: count });
        values.push({ metricName: `${full}_sum`, labels, value: sumMs / 1e3 }, {
          metricName: `${full}_count`, labels, value: count,
        });
      }
    }
    return Promise.resolve({ name: full, help, type: 'histogram', values, aggregator: 'sum' });
  }

  #sample(): Map<MetricMember<T>, S> {
    const { isClosed, sample } = this.#options;
    for (const member of this.#members) if (isClosed(member.source)) this.#remove(member);
    if (this.#samples !== undefined) return this.#samples;
    queueMicrotask(() => { this.#samples = undefined; });
    const samples = new Map<MetricMember<T>, S>();
    for (const member of this.#members) samples.set(member, sample(member.source));
    this.#samples = samples;
    return samples;
  }
}

/** The member's labels, and those of one value. */
function labelled(own: Labels, names: readonly string[], values: readonly string[]): Labels {
  return names.length === 0
    ? own
    : { ...own, ...Object.fromEntries(names.map((name, index) => [name, values[index]!])) };
}

type One<S> = (sample: S) => number;
type Several<S> = (sample: S) => Readonly<Record<string, number>>;

/** Makers of definitions: with one value, or with one for each value of a label. */
export function metricsOf<S>() {
  const one = (kind: 'gauge' | 'counter') => (name: string, help: string, value: One<S>): MetricDefinition<S> =>
    ({ name, help, kind, labels: [], read: (sample) => [[value(sample)]] });
  const several = (
    kind: 'gauge' | 'counter',
  ) => (name: string, label: string, help: string, values: Several<S>): MetricDefinition<S> =>
    ({
      name, help, kind, labels: [label],
      read: (sample) => Object.entries(values(sample)).map(([key, value]) => [value, key] as const),
    });
  const histogram = (name: string, help: string, times: (sample: S) => TimeHistogram): MetricDefinition<S> =>
    ({ name, help, kind: 'histogram', labels: [], read: () => [], times: (sample) => [[times(sample)]] });
  const histograms = (
    name: string, label: string, help: string, times: (sample: S) => Readonly<Record<string, TimeHistogram>>,
  ): MetricDefinition<S> =>
    ({
      name, help, kind: 'histogram', labels: [label], read: () => [],
      times: (sample) => Object.entries(times(sample)).map(([key, value]) => [value, key] as const),
    });
  return {
    gauge: one('gauge'), gauges: several('gauge'), counter: one('counter'), counters: several('counter'), histogram,
    histograms,
  };
}
