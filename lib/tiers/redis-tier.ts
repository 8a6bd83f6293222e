// redisTier: blocks in a Redis or Valkey, one node or a cluster, where other processes find them. One key per block, so
// that a cluster spreads them over its nodes and an eviction takes whole blocks. Every value says what block it is
// (redis/redis-value.ts) and is compared with what was asked for: another block, a truncated one or another store's
// value is a miss. A store that fails or is slow is a miss too, within the time limits. It keeps no index: what is
// stored, other processes change.

import { randomBytes } from 'node:crypto';

import { createError, isKvError, type CodedError, type RemoteRefusal } from '../base/errors.js';
import { processClock, type LoadClock } from './load-clock.js';
import { PutQueue } from './redis/put-queue.js';
import type { RedisConnection } from './redis/redis-connection.js';
import { laneNames, RedisLane, type LaneName, type LaneResult } from './redis/redis-lane.js';
import { readRedisOptions, type RedisTierOptions, type RedisTierSettings } from './redis/redis-options.js';
import { decodeValue, encodeValue, maxHeaderBytes, type RedisValue, type ValueProblem } from './redis/redis-value.js';
import {
  type BlockRecord, type Tier, type TierContext, type TierGet, tierInUse, type TierPut, type TierRemoval,
  type TierStatistics,
} from './tier.js';

export type { RedisClient } from './redis/redis-client.js';
export type { RedisBreakerOptions, RedisTierOptions } from './redis/redis-options.js';

/**
 * A tier in a Redis or Valkey. Throws KV_UNKNOWN_OPTION, KV_INVALID_OPTION, and KV_DEPENDENCY_MISSING where `url` or
 * `nodes` is given and neither iovalkey nor ioredis is installed. Nothing is connected before its cache opens it.
 */
export function redisTier(options: RedisTierOptions): Tier & Required<Pick<Tier, 'find'>> {
  return timedRedisTier(options, processClock);
}

/** The same, by a clock of a test's own. */
export function timedRedisTier(options: RedisTierOptions, clock: LoadClock): Tier & Required<Pick<Tier, 'find'>> {
  return new RedisTier(readRedisOptions(options), clock);
}

/** Keys asked for in one round trip. */
const keysPerLookup = 512;

type Flight = LaneResult<RedisValue | ValueProblem | undefined>;

class RedisTier implements Tier {
  readonly isLasting = true;
  readonly takesOnlyWholeBlocks = true;
  readonly capacityBytes = undefined;
  readonly #settings: RedisTierSettings;
  readonly #clock: LoadClock;
  readonly #queue: PutQueue;
  /** Reads under way by key and length, each for all that ask for it. */
  readonly #flights = new Map<string, Promise<Flight>>();
  #lanes: Readonly<Record<LaneName, RedisLane>> | undefined;
  #namespace = '';
  #headerBytes = 0;
  #isClosed = false;
  #closing: Promise<void> | undefined;
  readonly #counts = {
    blocks: 0, bytes: 0, hits: 0, misses: 0, corrupt: 0, timeouts: 0, failures: 0, readBytes: 0, sharedReads: 0,
    putsAlreadyThere: 0,
    putsRefused: 0,
  };

  constructor(settings: RedisTierSettings, clock: LoadClock) {
    this.#settings = settings;
    this.#clock = clock;
    this.#queue = new PutQueue({ maxBytes: settings.queueBytes, maxWriting: settings.concurrentWrites });
  }

  get name(): string {
    return this.#settings.name;
  }

  async open(context: TierContext): Promise<void> {
    if (this.#isClosed) throw createError('KV_CLOSED', { operation: 'open a tier twice', owner: 'RedisTier' });
    if (this.#lanes !== undefined) throw tierInUse('redisTier');
    this.#namespace = context.namespace;
    this.#headerBytes = maxHeaderBytes(context.blockTokens);
    this.#lanes = {
      lookups: this.#lane('lookups', 1), reads: this.#lane('reads', this.#settings.readConnections),
      writes: this.#lane('writes', 1),
    };
    const failures = await Promise.all(Object.values(this.#lanes).map((lane) => lane.connected()));
    const failure = failures.find((one) => one !== undefined);
    const error = failure ?? await this.#modeError() ?? await this.#trialError();
    if (error === undefined || !this.#settings.required || this.#isClosed) return;
    await this.close();
    throw error as Error;
  }

  put(record: BlockRecord, payload: Uint8Array): Promise<TierPut> {
    if (this.#isClosed) return Promise.resolve({ isStored: false, reason: 'failed', error: this.#closedError() });
    const { key, level = 0, position } = record;
    return this.#queue.put({ key, bytes: payload.byteLength, level, position }, () => this.#write(record, payload));
  }

  async get(key: string, payload: Uint8Array, signal?: AbortSignal): Promise<TierGet> {
    const flight = await untilAborted(this.#read(key, payload.byteLength), signal);
    if (flight === undefined) {
      const error = createError('KV_ABORTED', { operation: 'reading a block' }, { cause: signal?.reason });
      return { isFound: false, reason: 'timeout', error };
    }
    if (!flight.isAnswered) {
      return { isFound: false, reason: flight.reason === 'timeout' ? 'timeout' : 'failed', error: flight.error };
    }
    const { value } = flight;
    if (value === undefined) return { isFound: false, reason: 'absent' };
    if ('problem' in value) {
      return {
        isFound: false, reason: 'corrupt',
        error: createError('KV_TIER_DAMAGED', { tier: this.name, key: this.#keyOf(key), problem: value.problem }),
      };
    }
    payload.set(value.payload);
    return { isFound: true, sums: value.record.sums, record: value.record };
  }

  async find(keys: readonly string[], signal?: AbortSignal): Promise<number | undefined> {
    // What cannot be read is not worth finding.
    if (this.#lanes?.reads.breaker.wouldPass !== true || this.#isClosed) return undefined;
    const end = this.#clock.now() + this.#settings.findTimeoutMs;
    for (let from = 0; from < keys.length; from += keysPerLookup) {
      const asked = keys.slice(from, from + keysPerLookup).map((key) => this.#keyOf(key));
      const limitMs = Math.max(1, end - this.#clock.now());
      const result =
        await untilAborted(this.#request('lookups', (connection) => connection.countLeading(asked), limitMs), signal);
      if (result?.isAnswered !== true) return from === 0 ? undefined : from;
      if (result.value < asked.length) return from + result.value;
    }
    return keys.length;
  }

  async remove(keys: readonly string[]): Promise<TierRemoval> {
    if (this.#lanes === undefined) return { isRemoved: true };
    // What waits to be written is not written any more; what is being written would come after the removal.
    await Promise.all(keys.map((key) => this.#queue.withdraw(key) ?? Promise.resolve()));
    for (let from = 0; from < keys.length; from += keysPerLookup) {
      const named = keys.slice(from, from + keysPerLookup).map((key) => this.#keyOf(key));
      const result =
        await this.#request('lookups', (connection) => connection.unlink(named), this.#settings.getTimeoutMs);
      if (!result.isAnswered) return { isRemoved: false, error: result.error };
    }
    return { isRemoved: true };
  }

  statistics(): TierStatistics {
    const lanes = this.#lanes;
    const breakers = lanes === undefined ? [] : Object.values(lanes).map(({ breaker }) => breaker);
    const open = breakers.find(({ state }) => state === 'open') ?? breakers.find(({ state }) => state === 'half-open');
    return {
      ...this.#counts, putsDropped: this.#queue.dropped, queuedBlocks: this.#queue.length,
      queuedBytes: this.#queue.waitingBytes,
      breaker: open?.state ?? 'closed', problem: open?.lastError instanceof Error ? open.lastError.message : '',
      lookups: lanes?.lookups.breaker.state ?? 'closed', reads: lanes?.reads.breaker.state ?? 'closed',
      writes: lanes?.writes.breaker.state ?? 'closed',
      breakerOpens: breakers.reduce((sum, { opens }) => sum + opens, 0),
      breakerRefusals: breakers.reduce((sum, { refusals }) => sum + refusals, 0),
    };
  }

  close(): Promise<void> {
    this.#isClosed = true;
    this.#closing ??= this.#end();
    return this.#closing;
  }

  async #end(): Promise<void> {
    this.#queue.refuseAll({ isStored: false, reason: 'failed', error: this.#closedError() });
    if (this.#lanes !== undefined) await Promise.all(Object.values(this.#lanes).map((lane) => lane.close()));
  }

  #lane(name: LaneName, connections: number): RedisLane {
    const { store, connectTimeoutMs, findTimeoutMs, breaker } = this.#settings;
    const { maxCoolDownMs, coolDownMs } = breaker;
    return new RedisLane({
      tier: this.name, name, store, connections, connectTimeoutMs, probeTimeoutMs: Math.max(findTimeoutMs, coolDownMs),
      breaker: { ...breaker, maxCoolDownMs: Math.max(maxCoolDownMs, coolDownMs) },
      clock: this.#clock, trial: (connection) => this.#try(name, connection),
    });
  }

  /** All that a lane does, without an effect: on a key that no block has, in a cluster any of its slots. */
  async #try(name: LaneName, connection: RedisConnection): Promise<void> {
    const key = this.#keyOf(randomBytes(32).toString('hex'));
    if (name === 'lookups') await connection.countLeading([key]);
    else if (name === 'reads') await connection.get(key, 0);
    else {
      await connection.renew(key, this.#settings.ttlSeconds);
      await connection.set(key, Buffer.alloc(0), this.#settings.ttlSeconds, 'XX');
      await connection.unlink([key]); // over the lane of lookups, which does without the right where nothing is damaged
    }
  }

  /** The error of a store that is of the other kind: one node of a cluster, say. */
  async #modeError(): Promise<unknown> {
    const result =
      await this.#request('lookups', (connection) => connection.checkMode(), this.#settings.connectTimeoutMs);
    if (result.isAnswered) return undefined;
    for (const { breaker } of Object.values(this.#lanes!)) breaker.open(result.error);
    return result.error;
  }

  /** The error of a store that does not allow what a lane does. A full one opens, and a cluster that lacks a node. */
  async #trialError(): Promise<unknown> {
    const { connectTimeoutMs, store } = this.#settings;
    const errors = await Promise.all(laneNames.map(async (name) => {
      const result = await this.#request(name, (connection) => this.#try(name, connection), connectTimeoutMs);
      if (result.isAnswered) return undefined;
      const reason = reasonOf(result.error);
      if (reason === 'full' || (store.isCluster && reason !== 'permission')) return undefined;
      this.#lanes![name].breaker.open(result.error);
      return result.error;
    }));
    return errors.find((error) => error !== undefined);
  }

  async #request<T>(
    name: LaneName, send: (connection: RedisConnection) => Promise<T>, limitMs: number,
  ): Promise<LaneResult<T>> {
    if (this.#lanes === undefined) return { isAnswered: false, reason: 'failed', error: this.#closedError() };
    const result = await this.#lanes[name].request(send, limitMs);
    if (!result.isAnswered && result.reason !== 'refused') {
      this.#counts[result.reason === 'timeout' ? 'timeouts' : 'failures'] += 1;
    }
    return result;
  }

  async #write(record: BlockRecord, payload: Uint8Array): Promise<TierPut> {
    const { ttlSeconds, putTimeoutMs, damaged } = this.#settings;
    const key = this.#keyOf(record.key);
    let isAwaited = true;
    const result = await this.#request('writes', async (connection) => {
      // Another process may have stored it. Where damaged values are kept, it could be one of those.
      if (damaged === 'delete' && await connection.renew(key, ttlSeconds)) return 'there';
      if (!isAwaited) return 'there'; // too late: the payload is its caller's again
      await connection.set(key, encodeValue(this.#namespace, record, payload), ttlSeconds);
      return 'stored';
    }, putTimeoutMs);
    isAwaited = false;
    if (!result.isAnswered) {
      this.#counts.putsRefused += 1;
      return { isStored: false, reason: reasonOf(result.error) === 'full' ? 'full' : 'failed', error: result.error };
    }
    if (result.value === 'there') this.#counts.putsAlreadyThere += 1;
    else {
      this.#counts.blocks += 1;
      this.#counts.bytes += payload.byteLength;
    }
    return { isStored: true };
  }

  #read(key: string, bytes: number): Promise<Flight> {
    const name = `${key}:${bytes}`;
    const same = this.#flights.get(name);
    if (same !== undefined) {
      this.#counts.sharedReads += 1;
      return same;
    }
    const flight = this.#fetch(key, bytes).finally(() => {
      this.#flights.delete(name);
    });
    this.#flights.set(name, flight);
    return flight;
  }

  async #fetch(key: string, bytes: number): Promise<Flight> {
    const name = this.#keyOf(key);
    const { getTimeoutMs } = this.#settings;
    const maxBytes = this.#headerBytes + bytes;
    const result = await this.#request('reads', (connection) => connection.get(name, maxBytes), getTimeoutMs);
    if (!result.isAnswered) return result;
    if (result.value === null) {
      this.#counts.misses += 1;
      return { isAnswered: true, value: undefined };
    }
    const value = decodeValue(result.value, this.#namespace, key, bytes, maxBytes);
    if ('problem' in value) {
      this.#counts.corrupt += 1;
      // Not awaited: a miss is a miss. What a later version wrote is its own.
      if (this.#settings.damaged === 'delete' && !value.isNewer) {
        void this.#request('lookups', (connection) => connection.unlink([name]), getTimeoutMs);
      }
    } else {
      this.#counts.hits += 1;
      this.#counts.readBytes += bytes;
      // It lives on, as it is used. Not awaited, and over the lane that may write: a store that only reads is read.
      const { ttlSeconds, putTimeoutMs } = this.#settings;
      void this.#request('writes', (connection) => connection.renew(name, ttlSeconds), putTimeoutMs);
    }
    return { isAnswered: true, value };
  }

  /** Without a hash tag, which would put a whole model into one slot of a cluster. */
  #keyOf(key: string): string {
    return `kvt:1:${this.#namespace.slice(0, 16)}:${key}`;
  }

  #closedError(): CodedError<'KV_CLOSED'> {
    return createError('KV_CLOSED', { operation: 'use its store', owner: 'RedisTier' });
  }
}

/** What `promise`, which never rejects, resolves with, or undefined as soon as the caller gives up. */
function untilAborted<T>(promise: Promise<T>, signal: AbortSignal | undefined): Promise<T | undefined> {
  if (signal === undefined) return promise;
  if (signal.aborted) return Promise.resolve(undefined);
  return new Promise((resolve) => {
    const abort = (): void => resolve(undefined);
    signal.addEventListener('abort', abort, { once: true });
    void promise.then((value) => {
      signal.removeEventListener('abort', abort);
      resolve(value);
    });
  });
}

/** Why a store refused. */
function reasonOf(error: unknown): RemoteRefusal | undefined {
  return isKvError(error, 'KV_TIER_REFUSED') ? error.details.reason : undefined;
}
