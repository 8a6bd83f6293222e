// A world for hostile calls: one of everything, made when it is asked for. Nothing moves by itself in it (no mapper, nothing mapped
// ahead), so that what a refused call has changed can be seen.

import { mkdtempSync } from 'node:fs';
import * as path from 'node:path';

import {
  Batch, DenseKernels, DeviceMemory, diskTier, Driver, EncoderCache, Kernels, KvCache, NaiveScheduler, OfflineScheduler, OnlineScheduler, onDemand, PagePool,
  type CacheTiers, type Engine, type Sequence,
} from 'virtual-kv';
import { MockDevice } from 'virtual-kv/testing';

export const pageBytes = 65_536;
export const model = { layers: 1, kvHeads: 2, headDim: 64, dtype: 'float32' } as const;
export const cacheOptions = { model, slots: 4, maxTokens: 512, growth: onDemand(), mapper: 'off' } as const;
export const vocabularyTokens = 7;

export class World {
  readonly on: 'host' | 'mock';
  readonly device = new MockDevice({ granularityBytes: pageBytes });
  readonly driver: Driver;
  readonly cache: KvCache;
  readonly sequence: Sequence;
  readonly batch: Batch;
  readonly closable: { close(): unknown }[] = [];
  #tiered: KvCache | undefined;

  constructor(on: 'host' | 'mock') {
    this.on = on;
    this.driver = on === 'host' ? Driver.open('host', { memoryBytes: 2 ** 28 }) : this.device.driver;
    this.cache = new KvCache({
      ...cacheOptions, driver: this.driver, pageBytes, memoryBudgetBytes: 64 * pageBytes,
      sideTensors: { hidden: { width: 2, dtype: 'float32', pageBytes } }, sideBudgetBytes: 64 * pageBytes,
    });
    this.sequence = this.cache.acquire({ tokens: [1, 2, 3] });
    this.batch = this.cache.createBatch();
    this.batch.add(this.sequence, 3);
    this.cache.prepare(this.batch);
    this.cache.writeSide(this.batch, { hidden: new Float32Array(6) });
    this.cache.commit(this.batch);
    this.cache.prepare(this.batch);
  }

  /** Of a cache with a tier on the disk, made once: in the folder where the process runs. */
  tiers(): CacheTiers {
    this.#tiered ??= this.#kept(new KvCache({
      ...cacheOptions, driver: this.driver, pageBytes, memoryBudgetBytes: 16 * pageBytes,
      prefixCache: { tiers: [diskTier({ directory: mkdtempSync(path.resolve('tier-')), bytes: 2 ** 24, durability: 'none' })], modelId: 'm' },
    }));
    return this.#tiered.prefixes.tiers!;
  }

  kernels(): Kernels {
    return this.#kept(new Kernels({ cache: this.cache, threads: 1 }));
  }

  dense(): DenseKernels {
    return this.#kept(new DenseKernels({ threads: 1 }));
  }

  memory(): DeviceMemory {
    return this.#kept(new DeviceMemory({ driver: this.driver, bytes: 4096 }));
  }

  encoder(): EncoderCache {
    return this.#kept(new EncoderCache({ budgetBytes: 64, kinds: { image: { width: 2, dtype: 'float32' } } }));
  }

  pool(): PagePool {
    return this.#kept(new PagePool({ driver: this.driver, pageBytes, memoryBudgetBytes: 4 * pageBytes }));
  }

  /** Computes nothing; every answer is token 1, but for those given, which come first. */
  engine(...answers: unknown[]): Engine {
    const logits = Float32Array.from({ length: 8 * vocabularyTokens }, (_, index) => (index % vocabularyTokens === 1 ? 1 : 0));
    const compute = () => (answers.length > 0 ? answers.shift() : { logits }) as { logits: Float32Array };
    return { vocabularyTokens, prefill: compute, decode: compute };
  }

  online(...answers: unknown[]): OnlineScheduler {
    return this.#kept(new OnlineScheduler({ cache: this.cache, engine: this.engine(...answers) }));
  }

  offline(): OfflineScheduler {
    return new OfflineScheduler({ cache: this.cache, engine: this.engine() });
  }

  naive(): NaiveScheduler {
    return new NaiveScheduler({ cache: this.cache, engine: this.engine() });
  }

  /** What a refused call must not change; undefined once the cache is closed. */
  state(): string | undefined {
    if (this.cache.isClosed) return undefined;
    const { sequence, cache, batch } = this;
    return JSON.stringify([
      cache.counts(), cache.sideCounts(), cache.pool.counts(),
      sequence.isReleased || [sequence.length, sequence.mappedRows, sequence.sideTokens('hidden')],
      batch.length, batch.isPrepared,
      cache.prefixes.namespace, cache.prefixes.lookup({ tokens: [1, 2, 3, 4] }),
    ]);
  }

  /** Throws KV_INTERNAL when something does not add up. */
  async close(): Promise<void> {
    if (!this.cache.isClosed) this.cache.verify();
    for (const one of this.closable.reverse()) await one.close();
    this.cache.close();
    this.driver.close();
    if (this.on === 'mock') this.device.assertNoLeaks();
    this.device.close();
  }

  #kept<T extends { close(): unknown }>(one: T): T {
    this.closable.push(one);
    return one;
  }
}
