// The reference engine decoding one sequence in float32 beside a plain C program with OpenMP, as llama2.c is one, in turns. Both read the weights
// from memory once a token, and nothing of this size stays in a cache: bandwidth bounds them both. Then the memory of a process that does it with
// mapped weights.

import { fork } from 'node:child_process';
import { once } from 'node:events';
import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import * as path from 'node:path';

import { KvCache } from 'virtual-kv';

import { LlamaEngine } from '#internal/llama/engine.js';
import { BareLoop } from './bare-loop.js';
import type { Decoded } from './mapped-decode.js';
import { format, median, microseconds, type BenchResult } from './measure.js';
import { openZeroModel, smallSizes, writeZeroModel } from './zero-model.js';

const rounds = 7;
const roundTokens = 24;

export async function plainDecode(): Promise<BenchResult[]> {
  const folder = mkdtempSync(path.join(tmpdir(), 'vkv-bench-plain-'));
  try {
    const model = openZeroModel('F32');
    const { layers, hidden, intermediate, queryHeads, kvHeads, headDim, vocabularyTokens } = smallSizes;
    const given = [layers, hidden, intermediate, queryHeads, kvHeads, headDim, vocabularyTokens, (rounds + 1) * roundTokens, roundTokens].map(String);
    const loop = new BareLoop('decode-loop', folder, given, ['-Ofast', '-march=native', '-fopenmp']);
    using cache = new KvCache({ model: model.shape(), slots: 1, maxTokens: 1_024, memoryBudgetBytes: 2 ** 28, driver: 'host' });
    using engine = new LlamaEngine({ model, cache, passes: 'blocking' });
    const sequence = cache.acquire();
    const batch = cache.createBatch();
    const decode = (): number => {
      let us = 0;
      for (let token = 0; token < roundTokens; token += 1) {
        batch.clear();
        batch.add(sequence, 1);
        cache.prepare(batch);
        const pass = {
          length: 1, slots: Int32Array.of(sequence.slot), positions: Int32Array.of(sequence.length), tokenCounts: Int32Array.of(1),
          tokens: new Int32Array(1), wantsLogits: Uint8Array.of(1),
        };
        us += microseconds(() => { void engine.decode(pass); }); // done when it returns: passes are blocking
        cache.commit(batch);
      }
      return us / roundTokens;
    };
    decode(); // warm, both
    await loop.run();
    const pairs: { readonly ours: number; readonly plain: number }[] = [];
    for (let round = 0; round < rounds; round += 1) {
      const ours = decode();
      const { clockNs } = await loop.run();
      pairs.push({ ours, plain: clockNs / 1e3 / roundTokens });
    }
    loop.close();
    sequence.release();
    const [ours, plain] = [median(pairs.map((pair) => pair.ours)), median(pairs.map((pair) => pair.plain))];
    const ratio = median(pairs.map((pair) => pair.plain / pair.ours));
    return [{
      name: 'reference engine on host, decoding, 1 sequence, the shape of SmolLM2 360M in float32',
      value: `${format(1e6 / ours)} tokens/s, ${format(model.weights.bytesPerToken / ours / 1e3)} GB/s of weights`,
      against: `${format(ratio, 2)} × a plain C program with OpenMP (${format(1e6 / plain)} tokens/s); goal ≥ 1 ×`,
      isGoalMet: ratio >= 1,
      numbers: { tokensPerS: 1e6 / ours, plainTokensPerS: 1e6 / plain, ratio },
    }, await memoryResult()];
  } finally {
    rmSync(folder, { recursive: true, force: true });
  }
}

/** What only a process has that decodes with mapped weights. */
async function memoryResult(): Promise<BenchResult> {
  const folder = writeZeroModel(smallSizes, 'F32');
  try {
    const child = fork(path.join(__dirname, 'mapped-decode.js'), [folder, '64']);
    const [{ bytesBefore, privateBytes }] = await once(child, 'message') as [Decoded];
    await once(child, 'exit');
    return {
      name: 'reference engine on host, decoding, 1 sequence, the shape of SmolLM2 360M in float32, mapped: memory that only its process has',
      value: `${format(privateBytes / 2 ** 20)} MiB`, against: `${format(bytesBefore / 2 ** 20)} MiB before it opens the model; goal ≤ 41 MiB`,
      isGoalMet: privateBytes <= 41 * 2 ** 20, numbers: { bytesBefore, privateBytes },
    };
  } finally {
    rmSync(folder, { recursive: true });
  }
}
