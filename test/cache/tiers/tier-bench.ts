// What tests of tiers share: a bench with tiers, and requests that stamp what they compute.

import type { ModelShape, Tier } from 'virtual-kv';

import { CacheBench, type BenchOptions } from '../../helpers/cache.js';

export const model: ModelShape = { layers: 2, kvHeads: 1, headDim: 128, dtype: 'float16' };
const MiB = 2 ** 20;

export function textOf(tokens: number, first = 0): Int32Array {
  return Int32Array.from({ length: tokens }, (_, at) => first + (at * 7919) % 50_000);
}

/** A bench with these tiers, in blocks of 16 tokens. */
export function benchOf(t: ConstructorParameters<typeof CacheBench>[0], tiers: readonly Tier[], options: BenchOptions = {}): CacheBench {
  return new CacheBench(t, {
    model, slots: 4, maxTokens: 2048, pageBytes: 65_536, memoryBudgetBytes: 64 * MiB, ...options,
    prefixCache: { tiers, tierBlockTokens: 16, modelId: 'test', ...options.prefixCache as object },
  });
}

/** Computes a prompt, stamped with `key`, and releases it; returns what was found. */
export function serve(bench: CacheBench, tokens: Int32Array, key: number): { found: number; wrong: number; demoted: number } {
  const sequence = bench.cache.acquire({ tokens });
  const found = sequence.cachedTokens;
  bench.prepare(sequence, tokens.length - found);
  bench.cache.stamp(sequence, found, tokens.length - found, key);
  bench.commit();
  const wrong = bench.cache.verifyStamp(sequence, 0, tokens.length, key);
  sequence.release();
  return { found, wrong, demoted: sequence.demotedTokens };
}

export async function close(bench: CacheBench): Promise<void> {
  await bench.cache.prefixes.tiers!.close();
  bench.close();
}
