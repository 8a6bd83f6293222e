// Options of redisTier: which store, how long a request may take, and what happens when the store fails. Read once,
// before anything is connected.

import { createError } from '../../base/errors.js';
import {
  arrayOf, boolean, integer, nested, oneOf, optional, readOptions, string, withDefault, type Field,
} from '../../base/options.js';
import { clusterAt, isRedisClient, storeAt, storeOfClient, type RedisClient, type RedisStore } from './redis-client.js';

/** When a tier stops asking a store that fails. */
export interface RedisBreakerOptions {
  /**
   * Failures in a row after which requests of that kind (lookups, reads, writes) are refused at once. 1 … 1,000.
   * Default 5.
   */
  readonly failures?: number | undefined;
  /**
   * Milliseconds until the store is asked whether it answers; doubled each time that it does not. 1 … 60,000. Default
   * 250.
   */
  readonly coolDownMs?: number | undefined;
  /** The most that doubling makes of it. 1 … 3,600,000. Default 10,000. */
  readonly maxCoolDownMs?: number | undefined;
}

/** Options of `redisTier`: exactly one of `client`, `url` and `nodes`, and how it is used. */
export interface RedisTierOptions {
  /**
   * A client of iovalkey or ioredis, `Redis` or `Cluster`: it gives address, credentials, TLS, Sentinels and
   * `keyPrefix`. The tier makes connections of its own by its `duplicate`, and neither uses nor closes it.
   */
  readonly client?: RedisClient | undefined;
  /** One node: `redis://user:password@host:6379/0`, `rediss://…` for TLS, `valkey://…`, or the path of a socket. */
  readonly url?: string | undefined;
  /** Some nodes of a cluster, as `url` each; user, password and TLS of the first count for all. */
  readonly nodes?: readonly string[] | undefined;
  /** The tier's name in statistics, results and metrics. Default 'redis'. */
  readonly name?: string | undefined;
  /**
   * Whether a cache must not start without the store. Default false: it starts, and blocks are misses until the store
   * is there.
   */
  readonly required?: boolean | undefined;
  /** Seconds after which the store drops a block that is neither stored nor read. 1 … 31,536,000. Default 86,400. */
  readonly ttlSeconds?: number | undefined;
  /** Milliseconds that `find` may take before it counts as finding nothing. 1 … 60,000. Default 50. */
  readonly findTimeoutMs?: number | undefined;
  /** Milliseconds that a block may take to come. 1 … 600,000. Default 5,000. */
  readonly getTimeoutMs?: number | undefined;
  /** Milliseconds that a block may take to be written, without its time in the queue. 1 … 600,000. Default 5,000. */
  readonly putTimeoutMs?: number | undefined;
  /** Milliseconds that connecting may take, and opening the cache with it. 1 … 60,000. Default 2,000. */
  readonly connectTimeoutMs?: number | undefined;
  /** Bytes of blocks that may wait to be written; beyond, the oldest are dropped. Default 268,435,456, 256 MiB. */
  readonly queueBytes?: number | undefined;
  /** Blocks that are written at a time. 1 … 64. Default 4. */
  readonly concurrentWrites?: number | undefined;
  /** Connections that blocks are read over, beside one for lookups and one for writes. 1 … 16. Default 1. */
  readonly readConnections?: number | undefined;
  /**
   * What happens to a value that is not the block of its key: 'delete' it, or 'keep' it for inspection until the block
   * is stored again.
   */
  readonly damaged?: 'delete' | 'keep' | undefined;
  /** When to stop asking a store that fails. */
  readonly breaker?: RedisBreakerOptions | undefined;
}

const breakerSpec = {
  failures: withDefault(integer({ min: 1, max: 1_000 }), 5),
  coolDownMs: withDefault(integer({ min: 1, max: 60_000 }), 250),
  maxCoolDownMs: withDefault(integer({ min: 1, max: 3_600_000 }), 10_000),
};

const client: Field<RedisClient> = (value, place) => {
  if (isRedisClient(value)) return value;
  throw createError('KV_INVALID_OPTION', {
    reason: 'type', ...place, expected: 'a `Redis` or `Cluster` of iovalkey or ioredis', received: value,
    hint: 'For another client, give `url` or `nodes`.',
  });
};

const spec = {
  client: optional(client), url: optional(string), nodes: optional(arrayOf(string)),
  name: withDefault(string, 'redis'), required: withDefault(boolean, false),
  ttlSeconds: withDefault(integer({ min: 1, max: 31_536_000 }), 86_400),
  findTimeoutMs: withDefault(integer({ min: 1, max: 60_000 }), 50),
  getTimeoutMs: withDefault(integer({ min: 1, max: 600_000 }), 5_000),
  putTimeoutMs: withDefault(integer({ min: 1, max: 600_000 }), 5_000),
  connectTimeoutMs: withDefault(integer({ min: 1, max: 60_000 }), 2_000),
  queueBytes: withDefault(integer(), 2 ** 28),
  concurrentWrites: withDefault(integer({ min: 1, max: 64 }), 4),
  readConnections: withDefault(integer({ min: 1, max: 16 }), 1),
  damaged: withDefault(oneOf(['delete', 'keep']), 'delete'),
  breaker: nested(breakerSpec),
};

/** The options, checked and filled in, and the store they name. */
export type RedisTierSettings = ReturnType<typeof readOptions<typeof spec>> & { readonly store: RedisStore };

/**
 * Throws KV_UNKNOWN_OPTION, KV_INVALID_OPTION, and KV_DEPENDENCY_MISSING where an address is given and no client's
 * package is installed.
 */
export function readRedisOptions(options: unknown): RedisTierSettings {
  const owner = 'redisTier';
  const settings = readOptions(owner, options, spec);
  const { client: given, url, nodes } = settings;
  const sources = [given, url, nodes].filter((source) => source !== undefined);
  if (sources.length !== 1 || nodes?.length === 0) {
    const received = nodes?.length === 0 ? nodes : sources.length === 0 ? undefined : `${sources.length} of them`;
    throw createError('KV_INVALID_OPTION', {
      reason: 'range', owner, option: nodes?.length === 0 ? 'nodes' : 'client', received,
      expected: nodes?.length === 0 ? 'at least one address'
        : 'the only one of `client`, `url` and `nodes`, and one of them must be given',
    });
  }
  const store = given !== undefined ? storeOfClient(given)
    : url !== undefined ? storeAt(url, { owner, option: 'url' }) : clusterAt(nodes!, { owner, option: 'nodes' });
  return { ...settings, store };
}
