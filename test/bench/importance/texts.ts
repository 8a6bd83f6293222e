// Texts of the experiment, and a model of random weights whose sizes are those of larger ones.

import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import * as path from 'node:path';

import { Random } from '#internal/base/random.js';
import { LlamaModel } from '#internal/llama/model.js';
import { LlamaTokenizer } from '#internal/llama/tokenizer.js';
import { randomLlama, withAlikeHeads, writeLlama } from '../../helpers/made-llama.js';
import { Bench, logProbabilities, suffixTokens, type Text } from './bench-cache.js';

export const wide = { layers: 4, hidden: 256, intermediate: 704, queryHeads: 16, kvHeads: 16, headDim: 64, vocabularyTokens: 512 };

/** Stories that the model tells, one behind the other: a prefix of many examples, and the start of another. */
export async function storiesOf(folder: string, model: LlamaModel, prefix: number, count: number): Promise<Text[]> {
  const tokenizer = new LlamaTokenizer(folder);
  const random = new Random(prefix);
  const directory = mkdtempSync(path.join(tmpdir(), 'vkv-bench-stories-'));
  const bench = new Bench(model, directory, { probeHeads: 0 });
  const openings = ['Once upon a time', 'One day', 'Tom had a', 'Lily saw a', 'There was a little', 'Ben and Mia'];
  const texts: Text[] = [];
  for (let text = 0; text < count; text += 1) {
    const tokens: number[] = [];
    while (tokens.length < prefix + suffixTokens) {
      const story = [...tokenizer.encode(openings[random.integer(openings.length)]!)];
      const sequence = bench.cache.acquire({ tokens: story, caching: 'off' });
      while (story.length < 150) {
        const logits = await bench.compute(sequence, Int32Array.from(story), story.length - sequence.length);
        const odds = logProbabilities(logits).map((log) => Math.exp(log / 0.8));
        let at = random.next() * odds.reduce((sum, odd) => sum + odd, 0);
        const next = odds.findIndex((odd) => (at -= odd) < 0);
        if (next < 0 || model.config.endTokens.includes(next)) break;
        story.push(next);
      }
      sequence.release();
      tokens.push(...story);
    }
    texts.push({ tokens: Int32Array.from(tokens.slice(0, prefix + suffixTokens)), prefix });
  }
  await bench.close();
  rmSync(directory, { recursive: true, force: true });
  return texts;
}

export function randomTexts(vocabularyTokens: number, prefix: number, count: number): Text[] {
  const random = new Random(prefix);
  return Array.from({ length: count }, () => ({ prefix, tokens: Int32Array.from({ length: prefix + suffixTokens }, () => random.integer(vocabularyTokens)) }));
}

export async function withWide<T>(work: (model: LlamaModel) => Promise<T>): Promise<T> {
  const folder = writeLlama(withAlikeHeads(randomLlama(new Random(4), wide)));
  try {
    return await work(new LlamaModel(folder));
  } finally {
    rmSync(folder, { recursive: true, force: true });
  }
}
