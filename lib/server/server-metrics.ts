// ServerMetrics: what `/metrics` shows: the cache, the scheduler, and the server's own responses and connections, in a registry of its
// own. prom-client is optional: without it there is nothing to show.

import { createRequire } from 'node:module';

import { isKvError } from '../base/errors.js';
import type { KvCache, OnlineScheduler } from '../index.js';
import { registerMetrics, registerServingMetrics } from '../prometheus/index.js';

type PromClient = typeof import('prom-client');

export interface ServerMetricsOptions {
  readonly cache: KvCache;
  readonly scheduler: OnlineScheduler;
  /** Connections that are open. */
  readonly connections: () => number;
}

export class ServerMetrics {
  readonly #register: InstanceType<PromClient['Registry']>;
  readonly #responses: InstanceType<PromClient['Counter']>;

  /** Undefined where prom-client is not installed. */
  static open(options: ServerMetricsOptions, load: (name: string) => unknown = createRequire(__filename)): ServerMetrics | undefined {
    try {
      return new ServerMetrics(options, load);
    } catch (error) {
      if (isKvError(error, 'KV_DEPENDENCY_MISSING')) return undefined;
      throw error;
    }
  }

  private constructor({ cache, scheduler, connections }: ServerMetricsOptions, load: (name: string) => unknown) {
    const register: { current?: InstanceType<PromClient['Registry']> } = {};
    const lazily = (name: string): unknown => {
      const client = load(name) as PromClient;
      register.current ??= new client.Registry();
      return { Gauge: client.Gauge, Counter: client.Counter, register: register.current };
    };
    registerMetrics(cache, {}, lazily);
    this.#register = register.current!;
    registerServingMetrics(scheduler, {}, lazily);
    const { Counter, Gauge } = load('prom-client') as PromClient;
    this.#responses = new Counter({
      name: 'virtual_kv_server_responses_total', help: 'HTTP responses, by status.', labelNames: ['status'], registers: [this.#register],
    });
    new Gauge({
      name: 'virtual_kv_server_connections', help: 'Connections that are open.', registers: [this.#register],
      collect() { this.set(connections()); },
    });
  }

  countResponse(status: number): void {
    this.#responses.inc({ status: String(status) });
  }

  /** The text of a scrape, and its content type. */
  async scrape(): Promise<{ readonly text: string; readonly type: string }> {
    return { text: await this.#register.metrics(), type: this.#register.contentType };
  }
}
