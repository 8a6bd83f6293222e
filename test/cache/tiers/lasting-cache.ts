// LastingCache: a cache over tiers that outlive it, for texts that are made from a number, so that every process knows their tokens and bytes.
// It needs no test runner: processes of their own use it.

import { Driver, KvCache, type KvCacheOptions, type ModelShape, type Tier } from 'virtual-kv';
import { MockDevice } from 'virtual-kv/testing';
import { deadlineMs } from '../../helpers/patient.js';

export const lastingModel: ModelShape = { layers: 2, kvHeads: 2, headDim: 128, dtype: 'float16' };
export const blockTokens = 16;
export const textTokens = 200;

export function textOf(text: number): Int32Array {
  return Int32Array.from({ length: textTokens }, (_, at) => (at * 7919 + text * 104_729) % 50_000);
}

/** Whatever differs from a small cache on the simulated device, of model `m`. */
export interface LastingOptions extends Partial<Omit<KvCacheOptions, 'driver' | 'pool'>> {
  readonly on?: 'mock' | 'host';
}

export class LastingCache {
  readonly cache: KvCache;
  readonly #driver: Driver;
  readonly #device: MockDevice | undefined;

  constructor(tiers: readonly Tier[], { on = 'mock', ...options }: LastingOptions = {}) {
    this.#device = on === 'mock' ? new MockDevice({ granularityBytes: 65_536 }) : undefined;
    this.#driver = this.#device?.driver ?? Driver.open('host');
    try {
      this.cache = new KvCache({
        model: lastingModel, slots: 4, maxTokens: 1024, pageBytes: 65_536, memoryBudgetBytes: 32 * 2 ** 20, ...options,
        prefixCache: { tiers, tierBlockTokens: blockTokens, modelId: 'm', ...options.prefixCache as object }, driver: this.#driver,
      });
    } catch (error) {
      this.#driver.close();
      throw error;
    }
  }

  ready(): Promise<void> {
    return this.cache.prefixes.tiers!.ready();
  }

  /** Computes a text as far as it is not on the device, for a request of a priority level. */
  compute(text: number, level = 0): { readonly found: number; readonly wrong: number } {
    const { cache } = this;
    const tokens = textOf(text);
    const sequence = cache.acquire({ tokens, priority: level });
    const found = sequence.cachedTokens;
    const batch = cache.createBatch();
    batch.add(sequence, tokens.length - found);
    cache.prepare(batch);
    cache.stamp(sequence, found, tokens.length - found, text);
    cache.commit(batch);
    const wrong = cache.verifyStamp(sequence, 0, tokens.length, text);
    sequence.release();
    return { found, wrong };
  }

  /** Brings a text from the tiers, then computes the rest. */
  async serve(text: number): Promise<{ readonly found: number; readonly wrong: number; readonly from: Readonly<Record<string, number>>; readonly end: string }> {
    const { promotedFrom: from, end } = await this.cache.prefixes.promote({ tokens: textOf(text), deadlineMs });
    return { ...this.compute(text), from, end };
  }

  async close(): Promise<void> {
    await this.cache.prefixes.tiers!.close();
    this.cache.verify();
    this.cache.close();
    this.#driver.close();
    this.#device?.assertNoLeaks();
    this.#device?.close();
  }
}

