// RedisConnection: one client of a tier, with the commands that the tier needs. It owns the client; it has no time limits and remembers
// only why it is not connected. Commands reject with what the client says, without the command's arguments: they are whole blocks.

import { createError, type RemoteRefusal } from '../../base/errors.js';
import type { CommandClient, RedisStore } from './redis-client.js';

export interface ConnectionEvents {
  /** Commands are answered from here on. */
  readonly ready: () => void;
  /** It is lost, or could not be made; it goes on trying. */
  readonly lost: (error: unknown) => void;
}

/** How long a closed connection may take to end. */
const closingMs = 500;

export class RedisConnection {
  readonly #client: CommandClient;
  readonly #tier: string;
  readonly #address: string;
  #clientError: unknown;
  /** Commands that were sent and not answered. */
  #pending = 0;

  constructor(store: RedisStore, tier: string, connectTimeoutMs: number, { ready, lost }: ConnectionEvents) {
    this.#tier = tier;
    this.#address = store.address;
    const client = this.#client = store.makeClient(connectTimeoutMs);
    client.on('error', (error) => {
      this.#clientError = (error as { lastNodeError?: unknown }).lastNodeError ?? error;
    });
    if (client.isCluster) {
      client.on('node error', (error) => {
        this.#clientError = error;
      });
    }
    client.on('ready', () => {
      this.#clientError = undefined;
      ready();
    });
    client.on('close', () => lost(this.explain(this.#clientError)));
    client.connect().catch(() => {}); // `close` follows, and it tries again
  }

  get pending(): number {
    return this.#pending;
  }

  get isReady(): boolean {
    return this.#client.status === 'ready';
  }

  /** The error of this package for what the client said. */
  explain(error: unknown): Error {
    // The arguments of the command are the block: they must not be kept, nor be logged.
    if (typeof error === 'object' && error !== null) Reflect.deleteProperty(error, 'command');
    const message = error instanceof Error ? messageOf(error) : 'the connection was closed';
    const reason = refusalOf(message, error);
    return reason === undefined
      ? createError('KV_TIER_UNREACHABLE', { tier: this.#tier, address: this.#address, problem: message.replace(/\.$/, '') }, { cause: error })
      : createError('KV_TIER_REFUSED', { tier: this.#tier, address: this.#address, reason, reply: message }, { cause: error });
  }

  /** A value; null where there is none; an empty one where the key has a value of another type. */
  get(key: string): Promise<Buffer | null> {
    return this.#send(this.#client.getBuffer(key)).catch((error: unknown) => {
      if (error instanceof Error && error.message.startsWith('WRONGTYPE')) return Buffer.alloc(0);
      throw error;
    });
  }

  async set(key: string, value: Buffer, ttlSeconds: number): Promise<void> {
    await this.#send(this.#client.set(key, value, 'EX', ttlSeconds));
  }

  /** How many of `keys`, from the first on, have a value: one round trip. */
  async countLeading(keys: readonly string[]): Promise<number> {
    const counts = this.#client.isCluster ? await this.#existsEach(keys) : await this.#existsTogether(keys);
    const missing = counts.findIndex((count) => count !== 1);
    return missing < 0 ? keys.length : missing;
  }

  /** Lets a key live for so long again; false where there is none. */
  async renew(key: string, ttlSeconds: number): Promise<boolean> {
    return await this.#send(this.#client.expire(key, ttlSeconds)) === 1;
  }

  async unlink(keys: readonly string[]): Promise<void> {
    await this.#send(Promise.all(keys.map((key) => this.#client.unlink(key)))); // each alone: in a cluster they lie apart
  }

  ping(): Promise<unknown> {
    return this.#send(this.#client.ping());
  }

  /** Rejects where one node of a cluster was taken for a store of its own: all commands for other nodes' keys would fail. */
  async checkMode(): Promise<void> {
    if (this.#client.isCluster) return;
    const info = await this.#send(this.#client.info('cluster')).catch(() => ''); // not allowed, say
    if (/cluster_enabled:1/.test(info)) throw new Error('MOVED: cluster_enabled is 1');
  }

  /** Drops what was sent and not answered, and connects again. */
  reset(): void {
    if (this.isReady) this.#client.disconnect(true);
  }

  /** Resolves when no socket is left. */
  close(): Promise<void> {
    const { status } = this.#client;
    return new Promise((resolve) => {
      const timer = setTimeout(resolve, closingMs);
      const end = (): void => {
        clearTimeout(timer);
        resolve();
      };
      this.#client.once('end', end);
      this.#client.disconnect();
      if (status === 'reconnecting' || status === 'end') end(); // it has no socket now
    });
  }

  async #existsTogether(keys: readonly string[]): Promise<unknown[]> {
    const pipeline = this.#client.pipeline();
    for (const key of keys) pipeline.exists(key);
    const replies = await this.#send(pipeline.exec()) ?? [];
    return replies.map(([error, count]) => {
      if (error !== null) throw error;
      return count;
    });
  }

  /** Each to its own node, which may have changed: only single commands are sent on to where a slot has moved. */
  #existsEach(keys: readonly string[]): Promise<unknown[]> {
    return this.#send(Promise.all(keys.map((key) => this.#client.exists(key))));
  }

  async #send<T>(reply: Promise<T>): Promise<T> {
    this.#pending += 1;
    try {
      return await reply;
    } finally {
      this.#pending -= 1;
    }
  }
}

/** Errors of several addresses have no message of their own. */
function messageOf(error: Error): string {
  const first = (error as AggregateError).errors as unknown;
  return error.message || (Array.isArray(first) && first[0] instanceof Error ? first[0].message : error.name);
}

const refusals: readonly (readonly [RegExp, RemoteRefusal])[] = [
  [/\b(WRONGPASS|NOAUTH)\b|invalid password|AUTH.*without any password|[Cc]lient sent AUTH/, 'credentials'],
  [/\bNOPERM\b/, 'permission'],
  [/Protocol error|RESP type|reply type|\bSSL\b|EPROTO|wrong version number|packet length too long/, 'protocol'],
  [/^(MOVED|ASK)\b/, 'is-cluster'],
  [/cluster support disabled/, 'no-cluster'],
  [/^OOM\b/, 'full'],
];

/** Why the store refused; undefined where it was not reached. */
function refusalOf(message: string, error: unknown): RemoteRefusal | undefined {
  return refusals.find(([pattern]) => pattern.test(message))?.[1] ?? (error instanceof Error && error.name === 'ReplyError' ? 'other' : undefined);
}
