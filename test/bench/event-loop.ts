// The event loop while the reference engine computes, with a model of SmolLM2-360M's shape in float16: a prompt of 1,024 tokens, and 16
// sequences that decode, each with passes that are awaited and with passes that block. What a timer of 1 ms says: how late it comes.
// Throughput is given as a ratio within one run, in turns. The weights are zeros, as in llama.ts.

import { closeSync, ftruncateSync, mkdtempSync, openSync, rmSync, writeFileSync, writeSync } from 'node:fs';
import { tmpdir } from 'node:os';
import * as path from 'node:path';

import { KvCache, OnlineScheduler } from 'virtual-kv';

import { LlamaEngine } from '#internal/llama/engine.js';
import { LlamaModel } from '#internal/llama/model.js';
import { LoopDelays } from './loop-delays.js';
import { format, median, type BenchResult } from './measure.js';

const [layers, hidden, intermediate, queryHeads, kvHeads, vocabularyTokens] = [32, 960, 2_560, 15, 5, 49_152];
const promptTokens = 1_024;
const sequences = 16;
const newTokens = 24;
const rounds = 3;
const [goalP99Ms, goalLongestMs] = [5, 20];

function writeFolder(): string {
  const kvWidth = hidden * kvHeads / queryHeads;
  const tensors: [string, number[]][] = [['model.embed_tokens.weight', [vocabularyTokens, hidden]], ['model.norm.weight', [hidden]]];
  for (let layer = 0; layer < layers; layer += 1) {
    const at = `model.layers.${layer}`;
    tensors.push(
      [`${at}.input_layernorm.weight`, [hidden]], [`${at}.post_attention_layernorm.weight`, [hidden]],
      [`${at}.self_attn.q_proj.weight`, [hidden, hidden]], [`${at}.self_attn.k_proj.weight`, [kvWidth, hidden]],
      [`${at}.self_attn.v_proj.weight`, [kvWidth, hidden]], [`${at}.self_attn.o_proj.weight`, [hidden, hidden]],
      [`${at}.mlp.gate_proj.weight`, [intermediate, hidden]], [`${at}.mlp.up_proj.weight`, [intermediate, hidden]],
      [`${at}.mlp.down_proj.weight`, [hidden, intermediate]],
    );
  }
  const folder = mkdtempSync(path.join(tmpdir(), 'vkv-bench-loop-'));
  writeFileSync(path.join(folder, 'config.json'), JSON.stringify({
    model_type: 'llama', hidden_size: hidden, intermediate_size: intermediate, num_hidden_layers: layers, num_attention_heads: queryHeads,
    num_key_value_heads: kvHeads, vocab_size: vocabularyTokens, max_position_embeddings: 8_192, tie_word_embeddings: true, rope_theta: 1e5,
    rms_norm_eps: 1e-5,
  }));
  let at = 0;
  const header = Buffer.from(JSON.stringify(Object.fromEntries(tensors.map(([name, shape]) => {
    const begin = at;
    at += shape.reduce((product, extent) => product * extent, 2);
    return [name, { dtype: 'F16', shape, data_offsets: [begin, at] }];
  }))));
  const length = Buffer.alloc(8);
  length.writeBigUInt64LE(BigInt(header.length));
  const file = openSync(path.join(folder, 'model.safetensors'), 'w');
  writeSync(file, Buffer.concat([length, header]));
  ftruncateSync(file, 8 + header.length + at);
  closeSync(file);
  return folder;
}

interface Measured {
  readonly p99Ms: number;
  readonly longestMs: number;
  readonly longestCpuMs: number;
  readonly tokensPerS: number;
}

async function serve(model: LlamaModel, passes: 'awaited' | 'blocking', count: number, prompt: number, answer: number): Promise<Measured> {
  using cache = new KvCache({
    model: model.shape(), slots: sequences, maxTokens: 2_048, memoryBudgetBytes: 2 ** 31, driver: 'host', prefixCache: 'off',
  });
  using engine = new LlamaEngine({ model, cache, passes });
  const scheduler = new OnlineScheduler({ cache, engine });
  const request = { tokens: new Int32Array(prompt).fill(7), maxNewTokens: answer };
  await scheduler.submit({ ...request, maxNewTokens: 2 }).result; // touches memory, starts threads
  const startMs = performance.now();
  const delays = new LoopDelays();
  await Promise.all(Array.from({ length: count }, () => scheduler.submit(request).result));
  const delayed = delays.end();
  const tokens = count * (answer === 1 ? prompt : answer);
  const tokensPerS = tokens / (performance.now() - startMs) * 1e3;
  await scheduler.close();
  return { ...delayed, tokensPerS };
}

export async function eventLoop(): Promise<BenchResult[]> {
  const folder = writeFolder();
  const model = new LlamaModel(folder);
  rmSync(folder, { recursive: true });
  const results: BenchResult[] = [];
  for (const [name, load] of [
    [`${sequences} sequences that decode`, [sequences, 16, newTokens]], [`a prompt of ${promptTokens} tokens`, [1, promptTokens, 1]],
  ] as [string, [number, number, number]][]) {
    const measured: { readonly awaited: Measured; readonly blocking: Measured }[] = [];
    for (let round = 0; round < rounds; round += 1) {
      measured.push({ awaited: await serve(model, 'awaited', ...load), blocking: await serve(model, 'blocking', ...load) });
    }
    const of = (passes: 'awaited' | 'blocking', what: keyof Measured): number => median(measured.map((one) => one[passes][what]));
    const [p99Ms, longestMs] = [of('awaited', 'p99Ms'), of('awaited', 'longestMs')];
    const ratio = median(measured.map(({ awaited, blocking }) => awaited.tokensPerS / blocking.tokensPerS));
    results.push({
      name: `event loop while the reference engine serves ${name}, the shape of SmolLM2 360M in float16`,
      value: `a timer of 1 ms: p99 ${format(p99Ms)} ms, longest ${format(longestMs)} ms, ${format(of('awaited', 'longestCpuMs'))} ms of it computing; ${format(of('awaited', 'tokensPerS'))} tokens/s`,
      against: `with passes that block ${format(of('blocking', 'p99Ms'))} and ${format(of('blocking', 'longestMs'))} ms, ` +
        `${format(ratio)} × their tokens/s; goal p99 < ${goalP99Ms} ms, longest < ${goalLongestMs} ms, ≥ 1 ×`,
      isGoalMet: p99Ms < goalP99Ms && longestMs < goalLongestMs && ratio >= 0.97,
      numbers: { p99Ms, longestMs, blockingP99Ms: of('blocking', 'p99Ms'), blockingLongestMs: of('blocking', 'longestMs'), longestCpuMs: of('awaited', 'longestCpuMs'), ratio },
    });
  }
  return results;
}
