// WatchedWorld: a server whose state is worth looking at: slots of several rows, prompts with common starts, requests that run, wait and have
// ended, held in the middle of their answers, so that two looks at it show the same.

import { KvCache, OnlineScheduler, type TokenStream } from 'virtual-kv';
import { ModelServer, sessionPolicy, type ModelServerOptions } from 'virtual-kv/server';

import type { CachePicture } from '#internal/kv-cache/cache-picture.js';
import type { RequestsPicture } from '#internal/serving/request-picture.js';

import { byteTokenizer, ScriptEngine } from './script-engine.js';

/** What no look at the server may show. */
export const secrets = { text: 'the secret text of a prompt', tenant: 'tenant-of-the-secret', salt: 'salt-of-the-secret' } as const;

/** What of a cache or a scheduler is looked at; it is no part of their declarations. */
export const cacheOf = (cache: KvCache): CachePicture => (cache as unknown as { picture(): CachePicture }).picture();
export const requestsOf = (scheduler: OnlineScheduler): RequestsPicture => (scheduler as unknown as { picture(): RequestsPicture }).picture();

export interface WatchedOptions extends Partial<Omit<ModelServerOptions, 'scheduler'>> {
  readonly slots?: number;
  readonly sequenceTokens?: number;
  readonly budgetBytes?: number;
}

export class WatchedWorld {
  readonly cache: KvCache;
  readonly engine = new ScriptEngine();
  readonly scheduler: OnlineScheduler;
  readonly server: ModelServer;
  readonly streams: TokenStream[] = [];

  constructor({ slots = 12, sequenceTokens = 4_096, budgetBytes = 2 ** 25, ...options }: WatchedOptions = {}) {
    this.cache = new KvCache({
      model: { layers: 2, kvHeads: 8, headDim: 64, dtype: 'float16' }, slots, maxTokens: sequenceTokens, memoryBudgetBytes: budgetBytes, driver: 'host',
      pageBytes: 65_536, prefixCache: { policy: sessionPolicy() },
    });
    this.scheduler = new OnlineScheduler({ cache: this.cache, engine: this.engine, prefillTokensPerStep: 8_192 });
    this.server = new ModelServer({ scheduler: this.scheduler, tokenizer: byteTokenizer, modelName: 'storyteller', maxTokens: 4_096, ...options });
  }

  get url(): string {
    return this.server.url!;
  }

  /** A request with a prompt of two common parts and one of its own, by its number. */
  ask(number: number, tokens: number): TokenStream {
    const start = `System prompt ${number % 3}. ${'Answer well. '.repeat(40 + 25 * (number % 3))}`;
    const prompt = byteTokenizer.encode(`${start}${number === 0 ? secrets.text : ''}${`Question ${number}? `.repeat(2 + (number * 7) % 60)}`);
    const stream = this.scheduler.submit({ tokens: prompt, maxNewTokens: tokens, ...number === 0 ? { tenant: secrets.tenant, salt: secrets.salt } : {} });
    stream.result.catch(() => {});
    this.streams.push(stream);
    return stream;
  }

  /** Requests that have ended, others in the middle of their answers, and some that wait. */
  async fill(): Promise<void> {
    await Promise.all(Array.from({ length: 9 }, (_, number) => this.ask(number, 8 + 40 * (number % 4)).result));
    for (let number = 9; number < 23; number += 1) this.ask(number, 300 + (number * 37) % 400);
    await this.passes(60);
  }

  /** Lets the engine go on for so many passes and holds it again. */
  async passes(count: number): Promise<void> {
    const end = this.engine.passes + count;
    this.engine.letGo();
    while (this.engine.passes < end && this.scheduler.runningRequests + this.scheduler.waitingRequests > 0) await new Promise((resolve) => { setImmediate(resolve); });
    this.engine.hold();
    await new Promise((resolve) => { setImmediate(resolve); });
  }

  async close(): Promise<void> {
    for (const stream of this.streams) stream.cancel();
    this.engine.letGo();
    await this.server.close();
    this.cache.close();
  }
}
