// MetricsOptions: the options of all metrics, and the part of prom-client that is used. prom-client is loaded when
// metrics are registered.

import { createError } from '../base/errors.js';
import { readOptions, withDefault, type Field } from '../base/options.js';

/** A `Registry` of prom-client. */
export interface MetricsRegister {
  /** As prom-client's `Registry.registerMetric`. */
  registerMetric(metric: never): void;
  /** As prom-client's `Registry.removeSingleMetric`. */
  removeSingleMetric(name: string): void;
}

/** Options of `registerMetrics` and `registerServingMetrics`. */
export interface MetricsOptions {
  /** The registry of the metrics. Default: prom-client's own `register`. */
  readonly register?: MetricsRegister | undefined;
  /** The start of every metric's name. Default `virtual_kv_`. */
  readonly prefix?: string | undefined;
  /**
   * Labels of this cache in every metric. All caches of one registry and prefix need the same label names. Default:
   * none.
   */
  readonly labels?: Readonly<Record<string, string>> | undefined;
}

/** The part of prom-client's metrics that is used. */
export interface Metric {
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

/** The part of prom-client that is used. */
export interface PromClient {
  readonly Gauge: MetricClass;
  readonly Counter: MetricClass;
  readonly register: MetricsRegister;
}

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

/** Labels whose names are none of `taken`. */
function labels(taken: readonly (string | undefined)[]): Field<Readonly<Record<string, string>>> {
  return (value, place) => {
    const given: Readonly<Record<string, unknown>> | undefined = typeof value === 'object' && value !== null
      ? { ...value } : undefined;
    if (given !== undefined && Object.values(given).every((label) => typeof label === 'string')) {
      const used = Object.keys(given).find((name) => taken.includes(name));
      if (used === undefined) return given as Readonly<Record<string, string>>;
      throw invalid(place.owner, `${place.option}.${used}`, 'another name: the metrics use this one', given[used]);
    }
    throw invalid(place.owner, place.option, 'an object of strings', value);
  };
}

/**
 * Checked options with defaults; `taken`: labels of the metrics themselves. Throws KV_UNKNOWN_OPTION and
 * KV_INVALID_OPTION.
 */
export function readMetricsOptions(owner: string, options: MetricsOptions, taken: readonly (string | undefined)[]) {
  return readOptions(owner, options, {
    register, prefix: withDefault(text, 'virtual_kv_'), labels: withDefault(labels(taken), {}),
  });
}

/** Throws KV_DEPENDENCY_MISSING. */
export function loadClient(load: (name: string) => unknown): PromClient {
  try {
    const client = load('prom-client') as Partial<PromClient> | null | undefined;
    if (typeof client?.Gauge === 'function' && typeof client.Counter === 'function') return client as PromClient;
    throw Object.assign(new Error('The loaded module has no Gauge or no Counter.'), { code: 'MODULE_NOT_FOUND' });
  } catch (cause) {
    if ((cause as NodeJS.ErrnoException | undefined)?.code !== 'MODULE_NOT_FOUND') throw cause;
    throw createError(
      'KV_DEPENDENCY_MISSING', { dependency: 'prom-client', purpose: 'registering metrics' }, { cause });
  }
}

/** KV_INVALID_OPTION of the options of metrics. */
export function invalid(owner: string, option: string, expected: string, received: unknown): Error {
  const reason = typeof received === 'object' || typeof received === 'string' ? 'range' : 'type';
  return createError('KV_INVALID_OPTION', { reason, owner, option, expected, received });
}
