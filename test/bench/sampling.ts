// Choosing tokens from logits of a real vocabulary: one on one core, and those of a batch on all threads, as the schedulers do for a step. What is slow
// is told apart from what is usual: logits that are spread as a model's are, and flat ones or nearly so, of which no rule leaves any out early.

import { availableParallelism } from 'node:os';

import { greedy, randomSampler, type Sampler, type SamplerOptions } from 'virtual-kv';

import { BatchSampler } from '#internal/serving/batch-sampler.js';
import { Random } from '#internal/base/random.js';
import { rulesOf } from '#internal/serving/sampling.js';

import { format, median, microseconds, type BenchResult } from './measure.js';

const vocabularyTokens = 128_256;
const textTokens = 1_000;
/** A step of 16 sequences with Qwen's vocabulary. */
const [batchRows, batchVocabularyTokens] = [16, 152_000];
const goalMs = 0.5;
const everything: SamplerOptions = {
  temperature: 0.8, topK: 60_000, topP: 0.95, minP: 0.01, repetitionPenalty: 1.1, presencePenalty: 0.5, frequencyPenalty: 0.5, seed: 1,
};
const samplers: readonly (readonly [string, Sampler, number])[] = [
  ['greedy', greedy, 0.06],
  ['temperature', randomSampler({ temperature: 0.8, seed: 1 }), goalMs],
  ['top-p 0.9', randomSampler({ temperature: 0.8, topP: 0.9, seed: 1 }), goalMs],
  ['top-k 50', randomSampler({ topK: 50, seed: 1 }), goalMs],
  ['all rules and penalties', randomSampler(everything), goalMs],
];

/** The median ms of choosing a token for each row of logits. */
function choice(logits: Float32Array, sampler: Sampler, rows = 1, threads = 1): number {
  const batch = new BatchSampler({ vocabularyTokens: logits.length / rows, threads });
  const tokens = Int32Array.from({ length: textTokens }, (_, index) => 7 * index);
  const answering = { seed: 1, generatedTokens: 9, sampledText: { tokens, length: textTokens, promptTokens: textTokens / 2 } };
  const times = Array.from({ length: 60 }, () => microseconds(() => {
    batch.begin(rows, 0);
    for (let row = 0; row < rows; row += 1) batch.add(row, rulesOf(sampler)!, answering);
    batch.choose(logits);
  }));
  return median(times.slice(10)) / 1e3;
}

/** Steps of a batch. Plain sampling took 3.6 s for one. */
function steps(): BenchResult[] {
  const random = new Random(2);
  const threads = availableParallelism();
  const kinds = {
    'normally distributed logits': Float32Array.from({ length: batchRows * batchVocabularyTokens }, () => 4 * random.normal()),
    'flat logits': new Float32Array(batchRows * batchVocabularyTokens),
  };
  const scale = batchRows / threads * batchVocabularyTokens / vocabularyTokens;
  return Object.entries(kinds).flatMap(([kind, logits]) => samplers.map(([name, sampler, goal]) => {
    const ms = choice(logits, sampler, batchRows, threads);
    return {
      name: `${batchRows} tokens by ${name} from ${format(batchVocabularyTokens)} ${kind} each, ${threads} threads`, value: `${format(ms, 2)} ms`,
      against: `goal ≤ ${format(scale * goal)} ms: ${goal} ms for ${format(vocabularyTokens)} logits on one core, and no more for all rows and threads`, isGoalMet: ms <= scale * goal, numbers: { ms },
    };
  }));
}

export function sampling(): BenchResult[] {
  const random = new Random(1);
  const kinds = {
    'normally distributed logits': Float32Array.from({ length: vocabularyTokens }, () => 4 * random.normal()),
    'flat logits': new Float32Array(vocabularyTokens),
    'nearly flat logits': Float32Array.from({ length: vocabularyTokens }, () => 1e-3 * random.next()),
  };
  const single = Object.entries(kinds).flatMap(([kind, logits]) => samplers.map(([name, sampler, goal]) => {
    const ms = choice(logits, sampler);
    return {
      name: `a token by ${name} from ${format(vocabularyTokens)} ${kind}, one core`, value: `${format(ms, 3)} ms`, against: `goal ≤ ${goal} ms`,
      isGoalMet: ms <= goal, numbers: { ms },
    };
  }));
  return [...single, ...steps()];
}
