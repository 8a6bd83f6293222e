// RedisClient: the part of an iovalkey or ioredis client that a tier uses, and how a tier gets clients of its own. They
// are separate from the application's: a block of 4 MiB would hold up the commands behind it, and the options that keep
// a tier within its time limits (nothing is queued while disconnected, nothing is sent twice) would be wrong for other
// commands.

import { createRequire } from 'node:module';

import { createError } from '../../base/errors.js';
import type { FieldPlace } from '../../base/options.js';
import type { GuardedClient } from './reply-guard.js';

/**
 * A client of iovalkey or ioredis, for one node (`Redis`) or a cluster (`Cluster`). A tier calls only its `duplicate`.
 */
export interface RedisClient {
  /** Whether it is a cluster's. */
  readonly isCluster: boolean;
  /** Makes another with the same address and options, but for those that are given. */
  duplicate(...parameters: never[]): unknown;
  /** The command, as both packages have it. */
  getBuffer(key: string): Promise<Buffer | null>;
}

/** What a tier calls on the clients that it made. Replies may be anything: the store may be another one. */
export interface CommandClient extends GuardedClient {
  readonly status: string;
  readonly options: ClientAddress & { readonly redisOptions?: object };
  readonly startupNodes?: readonly unknown[];
  connect(): Promise<void>;
  disconnect(reconnect?: boolean): void;
  once(event: string, listener: () => void): unknown;
  getrangeBuffer(key: string, first: number, last: number): Promise<unknown>;
  set(key: string, value: Buffer, mode: 'EX', seconds: number, where?: 'XX'): Promise<unknown>;
  exists(key: string): Promise<unknown>;
  expire(key: string, seconds: number): Promise<unknown>;
  unlink(key: string): Promise<unknown>;
  info(section: string): Promise<unknown>;
  pipeline(): { exists(key: string): unknown; exec(): Promise<[Error | null, unknown][] | null> };
}

interface ClientAddress {
  readonly host?: string | undefined;
  readonly port?: number | undefined;
  readonly path?: string | undefined;
}

/** One store, however it was named: makes clients of it. */
export interface RedisStore {
  readonly isCluster: boolean;
  /** For messages: hosts and ports, no credentials. */
  readonly address: string;
  /** A client that is not connected. */
  makeClient(connectTimeoutMs: number): CommandClient;
}

export interface ClientPackage {
  readonly Redis: new (options: object) => CommandClient;
  readonly Cluster: new (nodes: readonly object[], options: object) => CommandClient;
}

/** Whether it has the methods of an iovalkey or ioredis client. */
export function isRedisClient(value: unknown): value is RedisClient {
  const client = value as Partial<RedisClient> | null | undefined;
  return typeof client === 'object' && client !== null && typeof client.getBuffer === 'function'
    && typeof client.duplicate === 'function' &&
    typeof client.isCluster === 'boolean';
}

/** The store of a client that the application made. */
export function storeOfClient(client: RedisClient): RedisStore {
  const own = client as unknown as CommandClient;
  const { isCluster, startupNodes, options } = own;
  return {
    isCluster,
    address: isCluster ? (startupNodes ?? []).map(addressOfNode).join(', ') : addressOf(options),
    makeClient: (connectTimeoutMs) => (isCluster
      ? own.duplicate([], clusterOptions(connectTimeoutMs, options.redisOptions))
      : own.duplicate(nodeOptions(connectTimeoutMs))) as CommandClient,
  };
}

/** The store at one address. Throws KV_DEPENDENCY_MISSING, KV_INVALID_OPTION. */
export function storeAt(url: string, place: FieldPlace): RedisStore {
  const { Redis } = loadClientPackage();
  const node = parseAddress(url, place);
  return {
    isCluster: false, address: addressOf(node),
    makeClient: (timeoutMs) => new Redis({ ...node, ...nodeOptions(timeoutMs) }),
  };
}

/** The cluster that some nodes belong to. Throws KV_DEPENDENCY_MISSING, KV_INVALID_OPTION. */
export function clusterAt(urls: readonly string[], place: FieldPlace): RedisStore {
  const { Cluster } = loadClientPackage();
  const nodes = urls.map((url, index) => parseAddress(url, { ...place, option: `${place.option}[${index}]` }));
  const database = nodes.find(({ db = 0 }) => db !== 0)?.db;
  if (database !== undefined) {
    const expected = 'addresses without a database: a cluster has only 0';
    throw createError('KV_INVALID_OPTION', { reason: 'range', ...place, expected, received: `…/${database}` });
  }
  const { username, password, tls } = nodes[0]!;
  const common = { ...(username && { username }), ...(password && { password }), ...(tls && { tls }) };
  // as certificates are
  const byName = tls && { dnsLookup: (name: string, call: (error: null, address: string) => void) => call(null, name) };
  return {
    isCluster: true,
    address: nodes.map(addressOf).join(', '),
    makeClient: (timeoutMs) => new Cluster(
      nodes.map(({ host, port }) => ({ host, port })), { ...byName, ...clusterOptions(timeoutMs, common) },
    ),
  };
}

/** The peer that is installed: iovalkey, which takes less processor time for large values, or else ioredis. */
export function loadClientPackage(load: (name: string) => unknown = createRequire(__filename)): ClientPackage {
  for (const name of ['iovalkey', 'ioredis']) {
    try {
      return load(name) as ClientPackage;
    } catch (cause) {
      if ((cause as NodeJS.ErrnoException | undefined)?.code !== 'MODULE_NOT_FOUND') throw cause;
    }
  }
  throw createError('KV_DEPENDENCY_MISSING', { dependency: 'iovalkey', purpose: 'a Redis tier' });
}

const longestRetryMs = 2_000;

function nodeOptions(connectTimeoutMs: number): object {
  let isLeaving = false; // ends the connection once, however many replies say so
  return {
    connectTimeout: connectTimeoutMs, connectionName: 'virtual-kv', disconnectTimeout: 100, lazyConnect: true,
    monitor: false,
    enableAutoPipelining: false, enableReadyCheck: true, keepAlive: 10_000, noDelay: true,
    // A request that cannot be sent now is a miss now, and what was sent before a connection was lost is not sent
    // again.
    enableOfflineQueue: false, autoResendUnfulfilledCommands: false, maxRetriesPerRequest: 0,
    commandTimeout: undefined, socketTimeout: undefined, // the tier's own limits
    protocol: 2, replyMapping: 'legacy', stringNumbers: false, // what replies are guarded and checked as
    retryStrategy: (attempt: number) => {
      isLeaving = false;
      return Math.min(25 * 2 ** attempt, longestRetryMs);
    },
    reconnectOnError: (error: Error) => { // a master that became a replica: the address may be another's by now
      const isFirst = !isLeaving && error.message.startsWith('READONLY');
      isLeaving ||= isFirst;
      return isFirst;
    },
  };
}

function clusterOptions(connectTimeoutMs: number, redisOptions: object | undefined): object {
  // A node that became a replica says itself where its slots are.
  const { retryStrategy: _retry, reconnectOnError: _reconnect, ...node } =
    nodeOptions(connectTimeoutMs) as Record<'retryStrategy' | 'reconnectOnError', unknown>;
  return {
    lazyConnect: true, enableOfflineQueue: false, enableAutoPipelining: false, scaleReads: 'master',
    slotsRefreshTimeout: connectTimeoutMs,
    clusterRetryStrategy: (attempt: number) => Math.min(25 * 2 ** attempt, longestRetryMs),
    // Follow a slot that moves; do not wait for a node that is away.
    maxRedirections: 8, retryDelayOnMoved: 0, retryDelayOnFailover: 0, retryDelayOnClusterDown: 0,
    retryDelayOnTryAgain: 20,
    redisOptions: { ...redisOptions, ...node },
  };
}

interface NodeAddress extends ClientAddress {
  readonly username?: string;
  readonly password?: string;
  readonly db?: number;
  readonly tls?: object;
}

const protocols: Readonly<Partial<Record<string, boolean>>> =
  { 'redis:': false, 'valkey:': false, 'rediss:': true, 'valkeys:': true };
const expected = 'an address such as `redis://user:password@host:6379/0`, `rediss://host` or `/run/redis.sock`';

function parseAddress(url: string, place: FieldPlace): NodeAddress {
  if (url.startsWith('/')) return { path: url };
  const address = readAddress(/^\w+:\/\//.test(url) ? url : `redis://${url}`);
  if (address !== undefined) return address;
  // The address is not shown: it may have a password.
  throw createError('KV_INVALID_OPTION', {
    reason: 'range', ...place, expected, received: `${/^\w+:\/\//.exec(url)?.[0] ?? ''}…`,
  });
}

function readAddress(text: string): NodeAddress | undefined {
  try {
    const { protocol, hostname, port, username, password, pathname, search, hash } = new URL(text);
    const isTls = protocols[protocol];
    const database = /^\/?(\d*)$/.exec(pathname)?.[1];
    if (isTls === undefined || hostname === '' || database === undefined || search !== '' || hash !== '') {
      return undefined;
    }
    return {
      host: decodeURIComponent(hostname).replace(/^\[|\]$/g, ''), port: Number(port || 6379),
      ...(database !== '' && { db: Number(database) }),
      ...(username !== '' && { username: decodeURIComponent(username) }),
      ...(password !== '' && { password: decodeURIComponent(password) }),
      ...(isTls && { tls: {} }),
    };
  } catch { // no URL, or `%` before what is no code
    return undefined;
  }
}

function addressOf({ host = '127.0.0.1', port = 6379, path }: ClientAddress): string {
  return path ?? `${host.includes(':') ? `[${host}]` : host}:${port}`;
}

/** As clients take nodes of a cluster: a port, an address, or both apart. */
function addressOfNode(node: unknown): string {
  if (typeof node === 'object' && node !== null) return addressOf(node);
  return typeof node === 'number' ? addressOf({ port: node }) : String(node).replace(/^.*@|^\w+:\/\//, '');
}
