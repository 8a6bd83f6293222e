// What `prefillTokensPerStep` does on host: prompts that come while sequences decode, with the reference engine and a model of SmolLM2
// 360M's shape in float16. More prompt tokens in a step compute prompts faster, if anything; each running answer waits for the whole step.

import { KvCache, OnlineScheduler } from 'virtual-kv';

import { LlamaEngine } from '#internal/llama/engine.js';
import type { LlamaModel } from '#internal/llama/model.js';
import { format, percentiles, type BenchResult } from './measure.js';
import { openZeroModel } from './zero-model.js';

const choices = [64, 128, 256, 512, 1_024, 2_048, 4_096];
const [decoding, prompts, promptTokens] = [4, 8, 512];

interface Measured {
  readonly promptTokensPerS: number;
  /** Of the answers that run meanwhile: from one token to the next. */
  readonly p50Ms: number;
  readonly p99Ms: number;
  readonly firstTokenMs: number;
}

async function measure(model: LlamaModel, prefillTokensPerStep: number): Promise<Measured> {
  using cache = new KvCache({
    model: model.shape(), slots: decoding + prompts, maxTokens: 2_048, memoryBudgetBytes: 2 ** 32, driver: 'host', prefixCache: 'off',
  });
  using engine = new LlamaEngine({ model, cache });
  await using scheduler = new OnlineScheduler({ cache, engine, prefillTokensPerStep });
  const answers = Array.from({ length: decoding }, () => scheduler.submit({ tokens: new Int32Array(16).fill(7), maxNewTokens: 1_900 }));
  const gapsMs: number[] = [];
  let startMs = Number.NaN; // the prompts have not come
  const [watched] = answers;
  const follow = async (): Promise<void> => {
    let lastMs = performance.now();
    for await (const _ of watched!) {
      const nowMs = performance.now();
      if (lastMs >= startMs) gapsMs.push(nowMs - lastMs);
      lastMs = nowMs;
    }
  };
  const followed = follow().catch(() => {}); // it is cancelled in the end
  while (scheduler.totals.generatedTokens < 4 * decoding) await new Promise((resolve) => setTimeout(resolve, 10));
  startMs = performance.now();
  const results = await Promise.all(Array.from({ length: prompts }, () => scheduler.submit({ tokens: new Int32Array(promptTokens).fill(7), maxNewTokens: 1 }).result));
  const tookMs = performance.now() - startMs;
  for (const answer of answers) answer.cancel();
  await followed;
  const { p50, p99 } = percentiles(gapsMs);
  return { promptTokensPerS: 1e3 * prompts * promptTokens / tookMs, p50Ms: p50, p99Ms: p99, firstTokenMs: percentiles(results.map(({ firstTokenMs }) => firstTokenMs)).p50 };
}

export async function prefillStep(): Promise<BenchResult[]> {
  const model = openZeroModel();
  await measure(model, 128); // touches memory, starts threads
  const results: BenchResult[] = [];
  for (const tokens of choices) {
    const { promptTokensPerS, p50Ms, p99Ms, firstTokenMs } = await measure(model, tokens);
    results.push({
      name: `prefillTokensPerStep ${format(tokens)} on host: ${prompts} prompts of ${promptTokens} tokens beside ${decoding} answers, the shape of SmolLM2 360M in float16`,
      value: `${format(promptTokensPerS, 0)} prompt tokens/s; the first token after ${format(firstTokenMs / 1e3)} s`,
      against: `between tokens of a running answer ${format(p50Ms, 0)} ms, p99 ${format(p99Ms, 0)}; no goal`, isGoalMet: undefined,
      numbers: { promptTokensPerS, p50Ms, p99Ms, firstTokenMs },
    });
  }
  return results;
}
