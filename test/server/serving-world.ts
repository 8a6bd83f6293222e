// ServingWorld: a server over a small cache and an engine with known answers, a client of OpenAI's package, and what must hold when all
// clients are gone: no slot is in use, nothing is earmarked, every request has ended.

import { connect, type Socket } from 'node:net';
import { once } from 'node:events';

import type { ExecutionContext } from 'ava';
import OpenAI from 'openai';

import { KvCache, OnlineScheduler, type OnlineSchedulerOptions, type Tier } from 'virtual-kv';
import { ModelServer, sessionPolicy, type ModelServerOptions } from 'virtual-kv/server';

import { byteTokenizer, ScriptEngine } from './script-engine.js';

export interface WorldOptions extends Partial<Omit<ModelServerOptions, 'scheduler'>> {
  readonly slots?: number;
  /** Of a sequence. Default 512. */
  readonly cacheTokens?: number;
  /** Of the cache. Default: as it chooses. */
  readonly pageBytes?: number;
  /** What the engine answers with. Default: tokens. */
  readonly answers?: 'tokens' | 'logits';
  readonly scheduler?: Partial<OnlineSchedulerOptions>;
  /** Below the cache's device. Default: none. */
  readonly tiers?: readonly Tier[];
}

export class ServingWorld {
  readonly cache: KvCache;
  readonly engine: ScriptEngine;
  readonly scheduler: OnlineScheduler;
  readonly server: ModelServer;
  /** Errors that the server told of. */
  readonly errors: unknown[] = [];

  constructor({ slots = 4, cacheTokens = 512, pageBytes, answers, scheduler = {}, tiers = [], ...options }: WorldOptions = {}) {
    this.cache = new KvCache({
      model: { layers: 1, kvHeads: 1, headDim: 64, dtype: 'float16' }, slots, maxTokens: cacheTokens, pageBytes,
      memoryBudgetBytes: 2 ** 24, driver: 'host',
      prefixCache: { policy: sessionPolicy(), tiers, modelId: 'script' },
    });
    this.engine = new ScriptEngine(answers);
    this.scheduler = new OnlineScheduler({ cache: this.cache, engine: this.engine, ...scheduler });
    this.server = new ModelServer({
      scheduler: this.scheduler, tokenizer: byteTokenizer, modelName: 'script', maxTokens: cacheTokens, ...options,
    }, (error) => { this.errors.push(error); });
  }

  get url(): string {
    return this.server.url!;
  }

  client(apiKey = 'none'): OpenAI {
    return new OpenAI({ baseURL: `${this.url}/v1`, apiKey, maxRetries: 0 });
  }

  post(path: string, body: unknown, init: RequestInit = {}): Promise<Response> {
    return fetch(this.url + path, { method: 'POST', headers: { 'content-type': 'application/json' }, body: JSON.stringify(body), ...init });
  }

  /** A connection of its own, for what no client would send. */
  async connect(): Promise<Socket> {
    const socket = connect({ port: Number(new URL(this.url).port), host: '127.0.0.1' });
    await once(socket, 'connect');
    return socket;
  }

  /** Waits until nothing runs or waits, and asserts that nothing is left of any request. */
  async assertQuiet(t: ExecutionContext): Promise<void> {
    await this.scheduler.idle();
    t.is(this.cache.counts().activeSlots, 0);
    t.is(this.cache.pool.counts().earmarkedPages, 0);
    this.cache.verify();
    const { completedRequests, failedRequests } = this.scheduler.totals;
    t.is(this.scheduler.times.wait.count >= completedRequests, true, `${completedRequests} completed, ${failedRequests} failed`);
    t.deepEqual(this.errors, []);
  }

  async close(): Promise<void> {
    this.engine.letGo();
    await this.server.close();
    this.cache.close();
  }
}

/** Runs `body` with a server that listens; afterwards nothing may be left of any request. */
export async function withServer(t: ExecutionContext, options: WorldOptions, body: (world: ServingWorld) => Promise<void>): Promise<void> {
  const world = new ServingWorld(options);
  try {
    await world.server.listen({ port: 0 });
    await body(world);
    world.engine.letGo();
    await world.assertQuiet(t);
  } finally {
    await world.close();
  }
}
