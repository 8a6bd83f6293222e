// Samplers within schedulers: what a request's sampler chooses there, whatever else is served at the same time.

import test from 'ava';

import { greedy, KvCache, OfflineScheduler, randomSampler, type Engine, type GenerationRequest, type SampledText, type Sampler } from 'virtual-kv';
import { MockDevice } from 'virtual-kv/testing';

import { refusesAsync } from '../helpers/refuses.js';

const vocabularyTokens = 50;
const model = { layers: 1, kvHeads: 1, headDim: 32, dtype: 'float16' } as const;

/** An engine whose logits are the same behind every token. */
function engineOf(logits: Float32Array): Engine {
  const answer = (length: number) => ({ logits: Float32Array.from({ length: length * vocabularyTokens }, (_, at) => logits[at % vocabularyTokens]!) });
  return { vocabularyTokens, prefill: ({ length }) => answer(length), decode: ({ length }) => answer(length) };
}

async function answersTo(requests: readonly GenerationRequest[], logits = new Float32Array(vocabularyTokens), maxBatch = 4): Promise<number[][]> {
  const device = new MockDevice();
  try {
    const cache = new KvCache({ driver: device.openDriver(), model, slots: 4, maxTokens: 2048, memoryBudgetBytes: 64 * 2 ** 20, prefixCache: {} });
    const scheduler = new OfflineScheduler({ cache, engine: engineOf(logits), maxBatch });
    const answers: number[][] = [];
    for await (const outcome of scheduler.run(requests)) {
      if (outcome.status === 'rejected') throw outcome.reason;
      answers[outcome.index] = [...outcome.value.tokens];
    }
    cache.close();
    return answers;
  } finally {
    device.close();
  }
}

const request = (sampler: Sampler, maxNewTokens = 30): GenerationRequest => ({ tokens: [1, 2, 3], maxNewTokens, sampler });

test('a seeded sampler gives the same answer alone, in a batch, and called directly', async (t) => {
  const logits = Float32Array.from({ length: vocabularyTokens }, (_, token) => Math.sin(token));
  const sampler = randomSampler({ seed: 5, topP: 0.9, temperature: 1.5 });
  const direct = Array.from({ length: 30 }, (_, index) => sampler(logits, index));
  t.deepEqual(await answersTo([request(sampler)], logits), [direct]);
  const mixed = await answersTo([request(greedy), request(sampler), request(() => 7), request(sampler)], logits);
  t.deepEqual(mixed[1], direct);
  t.deepEqual(mixed[3], direct);
  t.deepEqual(mixed[2], new Array(30).fill(7));
});

test('requests without a seed are answered differently, also by one sampler', async (t) => {
  const sampler = randomSampler();
  const answers = await answersTo([request(sampler), request(sampler), request(randomSampler()), request(randomSampler())]);
  t.is(new Set(answers.map(String)).size, 4);
});

test('presence and frequency penalties count the answer, a repetition penalty the prompt too', async (t) => {
  const logits = Float32Array.from({ length: vocabularyTokens }, (_, token) => (token < 4 ? 10 - token / 10 : 0));
  const answer = async (options: Parameters<typeof randomSampler>[0]): Promise<number[]> =>
    (await answersTo([request(randomSampler({ topK: 1, ...options }), 6)], logits))[0]!;
  t.deepEqual(await answer({}), [0, 0, 0, 0, 0, 0]);
  t.deepEqual(await answer({ presencePenalty: 5 }), [0, 1, 2, 3, 0, 0]);
  t.deepEqual(await answer({ frequencyPenalty: 5 }), [0, 1, 2, 3, 0, 1]);
  t.deepEqual(await answer({ repetitionPenalty: 2 }), [0, 0, 0, 0, 0, 0]);
  t.deepEqual(await answer({ repetitionPenalty: 100, presencePenalty: 5 }), [0, 1, 2, 3, 4, 5]);
});

test('a bias of -Infinity bans a token', async (t) => {
  const answers = await answersTo([request(randomSampler({ logitBias: new Map(Array.from({ length: 49 }, (_, token) => [token, -Infinity])) }))]);
  t.deepEqual(answers[0], new Array(30).fill(49));
});

test("a bias for a token that the engine does not have is refused", async (t) => {
  await refusesAsync(t, answersTo([request(randomSampler({ logitBias: [[vocabularyTokens, 1]] }))]),
    'KV_INVALID_OPTION', { option: 'each token of requests[0].sampler.logitBias' });
});

test('a custom sampler is given the text so far', async (t) => {
  const texts: number[][] = [];
  const sampler: Sampler = (_logits, index, text?: SampledText) => {
    texts.push([...text!.tokens.subarray(0, text!.length)]);
    t.is(text!.promptTokens, 3);
    t.is(text!.length, 3 + index);
    return index;
  };
  await answersTo([request(sampler, 3)]);
  t.deepEqual(texts, [[1, 2, 3], [1, 2, 3, 0], [1, 2, 3, 0, 1]]);
});
