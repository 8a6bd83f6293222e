// RedisConnection: one client of a tier, with the commands that the tier needs. It owns the client; it has no time
// limits and remembers only why it is not connected. It is connected once its user and database were taken. Commands
// reject with what the client says, without the command's arguments: they are whole blocks. Where the store answers
// what the command cannot, they reject, and it connects again, as other answers may have changed places, too.

import { createError, type RemoteRefusal } from '../../base/errors.js';
import { formatNumber } from '../../base/format.js';
import type { CommandClient, RedisStore } from './redis-client.js';
import { guardClient, ordinaryReplyBytes, type ReplyLimits } from './reply-guard.js';

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
  readonly #limits: ReplyLimits = { replyBytes: ordinaryReplyBytes };
  /** Why it is not connected, or may soon not be. */
  #clientError: unknown;
  /** Whether the store refused the user or the database: the client goes on all the same. */
  #isRefused = false;
  /** Commands that were sent and not answered. */
  #pending = 0;

  constructor(store: RedisStore, tier: string, connectTimeoutMs: number, { ready, lost }: ConnectionEvents) {
    this.#tier = tier;
    this.#address = store.address;
    const client = this.#client = guardClient(store.makeClient(connectTimeoutMs), this.#limits);
    client.on('error', (error) => {
      if (this.#isRefused) return; // it says why
      this.#clientError = (error as { lastNodeError?: unknown }).lastNodeError ?? error;
      this.#isRefused = !client.isCluster && isReply(error);
      if (this.#isRefused) client.disconnect(true);
    });
    if (client.isCluster) {
      client.on('node error', (error) => {
        this.#clientError = error;
      });
    }
    client.on('connect', () => {
      this.#clientError = undefined;
      this.#isRefused = false;
    });
    client.on('ready', ready);
    client.on('close', () => lost(this.explain(this.#clientError)));
    client.connect().catch(() => {}); // `close` follows, and it tries again
  }

  get pending(): number {
    return this.#pending;
  }

  get isReady(): boolean {
    return this.#client.status === 'ready' && !this.#isRefused;
  }

  /** The error of this package for what the client said. */
  explain(error: unknown): Error {
    // The arguments of the command are the block: they must not be kept, nor be logged.
    if (typeof error === 'object' && error !== null) Reflect.deleteProperty(error, 'command');
    const message = error instanceof Error ? messageOf(error) : 'the connection was closed';
    const reason = refusalOf(message, error);
    return reason === undefined
      ? createError(
        'KV_TIER_UNREACHABLE', { tier: this.#tier, address: this.#address, problem: message.replace(/\.$/, '') },
        { cause: error })
      : createError(
        'KV_TIER_REFUSED', { tier: this.#tier, address: this.#address, reason, reply: message }, { cause: error });
  }

  /**
   * A value of at most `maxBytes`, or its first `maxBytes` + 1; null where there is none; an empty one where the
   * key has a value of another type.
   */
  async get(key: string, maxBytes: number): Promise<Buffer | null> {
    this.#limits.replyBytes = Math.max(this.#limits.replyBytes, maxBytes + ordinaryReplyBytes);
    try {
      const value = await this.#range(key, maxBytes);
      if (value.length > 0) return value;
      if (await this.countLeading([key]) === 0) return null;
      return await this.#range(key, maxBytes); // it is empty, or was stored meanwhile
    } catch (error) {
      if (error instanceof Error && error.message.startsWith('WRONGTYPE')) return Buffer.alloc(0);
      throw error;
    }
  }

  /** Stores a value, or, with `where` XX, does so only where there is one. */
  async set(key: string, value: Buffer, ttlSeconds: number, where?: 'XX'): Promise<void> {
    const client = this.#client;
    if (where === undefined) await this.#send('SET', client.set(key, value, 'EX', ttlSeconds), isOk);
    else await this.#send('SET', client.set(key, value, 'EX', ttlSeconds, where), isOkOrNothing);
  }

  /** How many of `keys`, from the first on, have a value: one round trip. */
  async countLeading(keys: readonly string[]): Promise<number> {
    const replies = this.#client.isCluster ? this.#existsEach(keys) : this.#existsTogether(keys);
    const counts = await this.#send('EXISTS', replies, isCountOf(keys.length));
    const missing = counts.indexOf(0);
    return missing < 0 ? keys.length : missing;
  }

  /** Lets a key live for so long again; false where there is none. */
  async renew(key: string, ttlSeconds: number): Promise<boolean> {
    return await this.#send('EXPIRE', this.#client.expire(key, ttlSeconds), isCount) === 1;
  }

  async unlink(keys: readonly string[]): Promise<void> {
    // Each alone: in a cluster they lie apart.
    await this.#send('UNLINK', Promise.all(keys.map((key) => this.#client.unlink(key))), isCountOf(keys.length));
  }

  /**
   * Rejects where one node of a cluster was taken for a store of its own: all commands for other nodes' keys would
   * fail.
   */
  async checkMode(): Promise<void> {
    if (this.#client.isCluster) return;
    const info = await this.#send('INFO', this.#client.info('cluster'), isString).catch((error: unknown) => {
      if (isReply(error)) return ''; // not allowed, say
      throw error;
    });
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

  #range(key: string, maxBytes: number): Promise<Buffer> {
    return this.#send('GETRANGE', this.#client.getrangeBuffer(key, 0, maxBytes), isBuffer);
  }

  async #existsTogether(keys: readonly string[]): Promise<unknown[]> {
    const pipeline = this.#client.pipeline();
    for (const key of keys) pipeline.exists(key);
    const replies = await pipeline.exec() ?? [];
    return replies.map(([error, count]) => {
      if (error !== null) throw error;
      return count;
    });
  }

  /** Each to its own node, which may have changed: only single commands are sent on to where a slot has moved. */
  #existsEach(keys: readonly string[]): Promise<unknown[]> {
    return Promise.all(keys.map((key) => this.#client.exists(key)));
  }

  /** What is answered. Rejects where it `isRight` not, or with the reason where the connection was lost. */
  async #send<T>(command: string, reply: Promise<unknown>, isRight: (answer: unknown) => answer is T): Promise<T> {
    this.#pending += 1;
    try {
      const answer = await reply;
      if (!isRight(answer)) {
        this.#clientError = new Error(`Protocol error: the store answered ${command} by ${inWords(answer)}`);
        this.reset();
        throw this.#clientError;
      }
      if (this.#client.isCluster) this.#clientError = undefined; // that was of a node which is not needed now
      return answer;
    } catch (error) {
      throw isReply(error) ? error : this.#clientError ?? error;
    } finally {
      this.#pending -= 1;
    }
  }
}

type Check<T> = (answer: unknown) => answer is T;

const isString: Check<string> = (answer) => typeof answer === 'string';
const isBuffer: Check<Buffer> = (answer) => Buffer.isBuffer(answer);
const isCount: Check<0 | 1> = (answer) => answer === 0 || answer === 1;
const isOk: Check<'OK'> = (answer) => answer === 'OK';
const isOkOrNothing: Check<'OK' | null> = (answer) => answer === 'OK' || answer === null;

function isCountOf(keys: number): Check<(0 | 1)[]> {
  return (answer): answer is (0 | 1)[] => Array.isArray(answer) && answer.length === keys && answer.every(isCount);
}

/** Of an answer that is wrong. Not its bytes: they may be anything, and many. */
function inWords(answer: unknown): string {
  if (Array.isArray(answer)) {
    const wrong: unknown = answer.find((one) => !isCount(one));
    return wrong === undefined || Array.isArray(wrong) ? `an array of ${formatNumber(answer.length)}` : inWords(wrong);
  }
  if (typeof answer === 'string' || Buffer.isBuffer(answer)) return `a string of ${formatNumber(answer.length)} bytes`;
  return typeof answer === 'number' ? `the number ${answer}` : 'nothing';
}

/** Whether it is an error that the store answered, not one of the connection. */
function isReply(error: unknown): boolean {
  return error instanceof Error && error.name === 'ReplyError';
}

/** Errors of several addresses have no message of their own. */
function messageOf(error: Error): string {
  const first = (error as AggregateError).errors as unknown;
  return error.message || (Array.isArray(first) && first[0] instanceof Error ? first[0].message : error.name);
}

const refusals: readonly (readonly [RegExp, RemoteRefusal])[] = [
  [/\b(WRONGPASS|NOAUTH)\b|invalid password|AUTH.*without any password|[Cc]lient sent AUTH/, 'credentials'],
  [/\bNOPERM\b/, 'permission'],
  [/DB index is out of range|invalid DB index/, 'database'],
  [/Protocol error|RESP type|reply type|\bSSL\b|EPROTO|wrong version number|packet length too long/, 'protocol'],
  [/^(MOVED|ASK)\b/, 'is-cluster'],
  [/cluster support disabled/, 'no-cluster'],
  [/^OOM\b/, 'full'],
];

/** Why the store refused; undefined where it was not reached. */
function refusalOf(message: string, error: unknown): RemoteRefusal | undefined {
  return refusals.find(([pattern]) => pattern.test(message))?.[1] ?? (isReply(error) ? 'other' : undefined);
}
