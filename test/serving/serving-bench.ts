// ServingBench: a small cache with an engine of known answers on it, and random requests with common prefixes.

import type { ExecutionContext, TestFn } from 'ava';

import type { GenerationOutcome, GenerationRequest, GenerationResult, KvCache, ModelShape } from 'virtual-kv';

import type { Random } from '#internal/base/random.js';
import { cacheTest, type BenchOptions, type CacheBench } from '../helpers/cache.js';
import { expectedTokens, PatternEngine, turn, vocabularyTokens } from './pattern-engine.js';

/** 1,280 bytes per token and tensor: a page of 64 KiB holds 51.2 tokens, so rows end inside tokens. */
export const smallModel: ModelShape = { layers: 1, kvHeads: 4, headDim: 160, dtype: 'float16' };

export interface ServingBenchOptions extends BenchOptions {
  /** Whether the engine answers by promises. */
  readonly isAsync?: boolean;
}

export interface ServingBench {
  readonly t: ExecutionContext;
  readonly cache: KvCache;
  readonly engine: PatternEngine;
  readonly bench: CacheBench;
}

/**
 * Declares a test with a cache and an engine on the mock; the driver makes no difference to schedulers. At the end nothing may be mapped,
 * earmarked or wrong. `declare` stands for `test`: `slow('why')`.
 */
export function servingTests(
  title: string, options: ServingBenchOptions, body: (serving: ServingBench) => Promise<void>, declare?: TestFn,
): void {
  const { isAsync = false, ...cacheOptions } = options;
  cacheTest(title, { model: smallModel, maxTokens: 400, ...cacheOptions }, async (t, bench) => {
    const { cache } = bench;
    const engine = new PatternEngine({ cache, pause: isAsync ? turn : undefined });
    await body({ t, cache, engine, bench });
    assertQuiet(t, cache, engine);
  }, declare);
}

/** Asserts that no slot is in use, nothing is set aside, no byte was wrong, and all counts add up. */
export function assertQuiet(t: ExecutionContext, cache: KvCache, engine: PatternEngine): void {
  const { activeSlots, retiringSlots, quarantinedSlots } = cache.counts();
  t.deepEqual({ activeSlots, retiringSlots, quarantinedSlots }, { activeSlots: 0, retiringSlots: 0, quarantinedSlots: 0 });
  t.is(cache.pool.counts().earmarkedPages, 0);
  t.is(engine.wrongTokens, 0);
  cache.verify();
}

/** Asserts that the answer is the one that the engine must give without any cache. */
export function assertAnswer(t: ExecutionContext, { tokens, maxNewTokens }: GenerationRequest, result: GenerationResult): void {
  t.deepEqual([...result.tokens], expectedTokens(tokens, maxNewTokens));
}

/** All outcomes of a run, by the index of their request. */
export async function collect(outcomes: AsyncIterable<GenerationOutcome>): Promise<GenerationOutcome[]> {
  const byIndex: GenerationOutcome[] = [];
  for await (const outcome of outcomes) byIndex[outcome.index] = outcome;
  return byIndex;
}

/** The result of an outcome; throws the error of a rejected one. */
export function resultOf(outcome: GenerationOutcome | undefined): GenerationResult {
  if (outcome?.status !== 'fulfilled') throw outcome?.reason ?? new Error('it has not ended');
  return outcome.value;
}

/** A prompt of this many tokens, which differs from its first token on from prompts with other keys. */
export function promptOf(tokens: number, key = 0): Int32Array {
  return Int32Array.from({ length: tokens }, (_, at) => (at * 7 + key * 13 + (at === 0 ? key : 0)) % vocabularyTokens);
}

/** Requests that often have a common prefix, or all their tokens, with one of the last 20. */
export function randomRequests(
  random: Random, count: number, longestPrompt: number, longestAnswer: number,
): GenerationRequest[] {
  const prompts: Int32Array[] = [];
  return Array.from({ length: count }, () => {
    const hasLike = prompts.length > 0 && random.chance(0.8);
    const like = hasLike ? prompts.at(-1 - random.integer(Math.min(20, prompts.length)))! : new Int32Array(0);
    const isSame = random.chance(0.2) && like.length > 0;
    const length = isSame ? like.length : 1 + random.integer(longestPrompt);
    const shared = isSame ? length : random.integer(Math.min(length, like.length) + 1);
    const tokens = Int32Array.from({ length }, (_, at) => (at < shared ? like[at]! : random.integer(vocabularyTokens)));
    prompts.push(tokens);
    return { tokens, maxNewTokens: 1 + random.integer(longestAnswer), urgency: random.chance(0.2) ? random.integer(3) : 0 };
  });
}
