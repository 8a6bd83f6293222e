// CopyBench: a cache with side tensors on a mock whose streams do nothing until a test says so, and an engine whose rows are on the device.

import type { ExecutionContext } from 'ava';

import { KvCache, type KvCacheOptions } from 'virtual-kv';
import { MockDevice, type MockCall } from 'virtual-kv/testing';

import { DeviceSource } from './device-source.js';
import { SideSpeaker } from './side-speaker.js';

export const KiB = 1024;
export const text = [1, 2, 3, 4, 5, 6, 7, 8, 9, 10];
export const longer = [...text, 99];

/** Pages of 4 tokens, of less than one, and one that holds a whole text. */
export const shapes = {
  whole: { width: 4096, dtype: 'float32', pageBytes: 64 * KiB }, odd: { width: 20_000, dtype: 'float32', pageBytes: 64 * KiB },
  narrow: { width: 16, dtype: 'float32', pageBytes: 64 * KiB },
} as const;

export class CopyBench {
  readonly device: MockDevice;
  readonly cache: KvCache;
  readonly source: DeviceSource;
  readonly speaker: SideSpeaker;
  readonly #t: ExecutionContext;

  constructor(t: ExecutionContext, options: Partial<KvCacheOptions> & { streams?: 'manual' | 'immediate' } = {}) {
    const { streams = 'manual', ...given } = options;
    this.#t = t;
    this.device = new MockDevice({ granularityBytes: 64 * KiB, streams });
    this.cache = new KvCache({
      model: { layers: 1, kvHeads: 16, headDim: 256, dtype: 'float32' }, slots: 3, maxTokens: 64, pageBytes: 64 * KiB, memoryBudgetBytes: 128 * 64 * KiB,
      driver: this.device.driver, mapper: 'off', sideTensors: shapes, sideBudgetBytes: 400 * 64 * KiB, handOverSlots: 2, ...given,
    });
    this.source = new DeviceSource(this.device.driver);
    this.speaker = new SideSpeaker(this.cache, this.source);
  }

  found(tokens: readonly number[] = longer): number {
    return this.cache.prefixes.lookup({ tokens }).cachedTokens;
  }

  calls(call: MockCall): number {
    return this.device.callCounts()[call];
  }

  /** Acquires the text again and compares all rows. */
  isRight(tokens: readonly number[] = longer): void {
    const sequence = this.cache.acquire({ tokens });
    const handOver = sequence.handOver();
    this.#t.is(this.speaker.wrongRows(handOver, tokens, sequence.cachedTokens), 0);
    handOver.close();
    sequence.release();
  }

  /** Verifies, closes, and asserts that nothing is left and no rule was broken. */
  close(): void {
    this.cache.verify();
    this.cache.close();
    this.source.free();
    this.device.driver.close();
    this.device.assertNoLeaks();
    this.device.close();
  }
}
