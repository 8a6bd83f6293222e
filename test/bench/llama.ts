// The reference engine with a model of Qwen2.5 0.5B's shape, in bfloat16: decoding one sequence reads all weights once per token,
// so tokens/s times their bytes are given against memcpy's traffic; prefilling is given in tokens/s. The weights are zeros, in
// a file with nothing behind it: arithmetic takes as long with any numbers.

import { closeSync, mkdtempSync, openSync, rmSync, ftruncateSync, writeFileSync, writeSync } from 'node:fs';
import { tmpdir } from 'node:os';
import * as path from 'node:path';

import { KvCache } from 'virtual-kv';

import { LlamaEngine } from '#internal/llama/engine.js';
import { LlamaModel } from '#internal/llama/model.js';
import { CopyMeter } from './dense.js';
import { format, median, microseconds, type BenchResult } from './measure.js';

const [layers, hidden, intermediate, kvWidth, vocabularyTokens] = [24, 896, 4864, 128, 151_936];
const promptTokens = 512;
const decodeSteps = 25;

/** Every tensor's name and shape. */
function tensors(): [string, number[]][] {
  const layer = (at: string): [string, number[]][] => [
    [`${at}.input_layernorm.weight`, [hidden]], [`${at}.post_attention_layernorm.weight`, [hidden]],
    [`${at}.self_attn.q_proj.weight`, [hidden, hidden]], [`${at}.self_attn.q_proj.bias`, [hidden]],
    [`${at}.self_attn.k_proj.weight`, [kvWidth, hidden]], [`${at}.self_attn.k_proj.bias`, [kvWidth]],
    [`${at}.self_attn.v_proj.weight`, [kvWidth, hidden]], [`${at}.self_attn.v_proj.bias`, [kvWidth]],
    [`${at}.self_attn.o_proj.weight`, [hidden, hidden]], [`${at}.mlp.gate_proj.weight`, [intermediate, hidden]],
    [`${at}.mlp.up_proj.weight`, [intermediate, hidden]], [`${at}.mlp.down_proj.weight`, [hidden, intermediate]],
  ];
  return [
    ['model.embed_tokens.weight', [vocabularyTokens, hidden]], ['model.norm.weight', [hidden]],
    ...Array.from({ length: layers }, (_, index) => layer(`model.layers.${index}`)).flat(),
  ];
}

function writeFolder(): string {
  const folder = mkdtempSync(path.join(tmpdir(), 'vkv-bench-llama-'));
  writeFileSync(path.join(folder, 'config.json'), JSON.stringify({
    model_type: 'qwen2', hidden_size: hidden, intermediate_size: intermediate, num_hidden_layers: layers, num_attention_heads: 14,
    num_key_value_heads: 2, vocab_size: vocabularyTokens, max_position_embeddings: 32_768, tie_word_embeddings: true, rope_theta: 1e6,
  }));
  let at = 0;
  const header = Buffer.from(JSON.stringify(Object.fromEntries(tensors().map(([name, shape]) => {
    const begin = at;
    at += shape.reduce((product, extent) => product * extent, 2);
    return [name, { dtype: 'BF16', shape, data_offsets: [begin, at] }];
  }))));
  const length = Buffer.alloc(8);
  length.writeBigUInt64LE(BigInt(header.length));
  const file = openSync(path.join(folder, 'model.safetensors'), 'w');
  writeSync(file, Buffer.concat([length, header]));
  ftruncateSync(file, 8 + header.length + at);
  closeSync(file);
  return folder;
}

export function llama(): BenchResult[] {
  const folder = writeFolder();
  const model = new LlamaModel(folder);
  rmSync(folder, { recursive: true });
  using cache = new KvCache({ model: model.shape(), slots: 1, maxTokens: 4096, memoryBudgetBytes: 2 ** 28, driver: 'host' });
  using engine = new LlamaEngine({ model, cache, passes: 'blocking' });
  const sequence = cache.acquire();
  const batch = cache.createBatch();
  const tokens = new Int32Array(promptTokens);
  const step = (count: number): number => {
    batch.clear();
    batch.add(sequence, count);
    cache.prepare(batch);
    const pass = {
      length: 1, slots: Int32Array.of(sequence.slot), positions: Int32Array.of(sequence.length), tokenCounts: Int32Array.of(count),
      tokens, wantsLogits: Uint8Array.of(1),
    };
    const us = microseconds(() => {
      void (count === 1 ? engine.decode(pass) : engine.prefill(pass)); // done when it returns: passes are blocking
    });
    cache.commit(batch);
    return us;
  };
  step(8);
  const prefillUs = step(promptTokens);
  const meter = new CopyMeter();
  const pairs = Array.from({ length: decodeSteps }, () => ({ traffic: meter.rate(), us: step(1) }));
  meter.close();
  sequence.release();
  const [traffic, us] = [median(pairs.map((pair) => pair.traffic)), median(pairs.map((pair) => pair.us))];
  const rate = model.weights.bytesPerToken / us / 1e3;
  return [{
    name: 'reference engine on host, decoding, 1 sequence, the shape of Qwen2.5 0.5B in bfloat16',
    value: `${format(1e6 / us)} tokens/s, ${format(rate)} GB/s of weights`,
    against: `${format(100 * rate / traffic, 0)} % of the traffic of memcpy on all threads (${format(traffic)} GB/s); goal ≥ 70 %`,
    isGoalMet: rate >= 0.7 * traffic,
    numbers: { tokensPerS: 1e6 / us, weightsGBPerS: rate, copyTrafficGBPerS: traffic, ratio: rate / traffic },
  }, {
    name: `the same, prefilling ${promptTokens} tokens`,
    value: `${format(promptTokens / prefillUs * 1e6)} tokens/s`,
    against: `${format(promptTokens / prefillUs * us, 1)} × decoding; no goal`,
    isGoalMet: undefined,
    numbers: { tokensPerS: promptTokens / prefillUs * 1e6, timesDecoding: promptTokens / prefillUs * us },
  }];
}
