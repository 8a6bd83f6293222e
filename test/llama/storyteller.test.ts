// The small model that comes with the repository, end to end: its tokenizer and chat template, a story that is one, and the same
// tokens from every scheduler, with and without the prefix cache.

import * as path from 'node:path';

import test from 'ava';

import {
  KvCache, NaiveScheduler, OfflineScheduler, OnlineScheduler, randomSampler, type GenerationRequest, type KvCacheOptions,
} from 'virtual-kv';
import { MockDevice } from 'virtual-kv/testing';

import { LlamaEngine } from '#internal/llama/engine.js';
import { LlamaModel } from '#internal/llama/model.js';
import { LlamaTokenizer } from '#internal/llama/tokenizer.js';
import type { ChatMessage } from '#internal/llama/tokenizer-arguments.js';
import { slow } from '../runner/slow.js';

const folder = path.resolve(__dirname, '..', '..', 'examples', 'llama', 'storyteller');
const tokenizer = new LlamaTokenizer(folder);
const model = new LlamaModel(folder);
const schedulers = [NaiveScheduler, OfflineScheduler, OnlineScheduler] as const;
const user = (content: string): ChatMessage => ({ role: 'user', content });

async function answersTo(
  requests: readonly GenerationRequest[], scheduler: (typeof schedulers)[number], options: Partial<KvCacheOptions> = {},
): Promise<{ readonly texts: string[]; readonly cachedTokens: number }> {
  using cache = new KvCache({
    model: model.shape('float32'), slots: 4, maxTokens: 512, memoryBudgetBytes: 2 ** 26, driver: 'host', pageBytes: 65_536, ...options,
  });
  using engine = new LlamaEngine({ model, cache });
  const schedule = new scheduler({ cache, engine, prefillTokensPerStep: 100 });
  if (schedule instanceof OnlineScheduler) {
    const results = await Promise.all(requests.map((each) => schedule.submit(each).result));
    return { texts: results.map(({ tokens }) => tokenizer.decode([...tokens])), cachedTokens: schedule.totals.cachedTokens };
  }
  const texts: string[] = [];
  for await (const outcome of schedule.run(requests)) {
    if (outcome.status === 'rejected') throw outcome.reason;
    texts[outcome.index] = tokenizer.decode([...outcome.value.tokens]);
  }
  return { texts, cachedTokens: schedule.totals.cachedTokens };
}

function request(messages: readonly ChatMessage[], more: Partial<GenerationRequest> = {}): GenerationRequest {
  return { tokens: tokenizer.encodeChat(messages), maxNewTokens: 160, stopTokens: model.config.endTokens, ...more };
}

test('text becomes tokens and text again, special tokens aside', (t) => {
  t.is(tokenizer.decode(tokenizer.encode('Héllo, wörld 42, don’t!')), 'Héllo, wörld 42, don’t!');
  const tokens = tokenizer.encodeChat([user('Hello.'), { role: 'assistant', content: 'Yes?' }, user('Go on.')]);
  t.deepEqual([tokens[0], tokens[1], tokens.at(-1)], [0, 2, 3]); // begin, user, assistant
  t.is(tokens.filter((token) => token === 1).length, 3); // the end of each message
  t.is(tokenizer.decode(tokens), 'Hello.Yes?Go on.');
});

test('a streamed answer comes in whole characters', (t) => {
  const textOf = tokenizer.stream();
  const pieces = tokenizer.encode('a ö é 🦊.').map(textOf);
  t.is(pieces.join(''), 'a ö é 🦊.');
  t.true(pieces.every((piece) => !piece.includes('\uFFFD')));
});

test('the small model tells a story and answers questions about it', async (t) => {
  const asked = [user('Tell me a story about a fox named Mia and a red ball.')];
  const { texts: [story] } = await answersTo([request(asked)], NaiveScheduler);
  t.regex(story!, /named Mia/);
  t.true(story!.split('. ').length >= 6, story);
  const told = [...asked, { role: 'assistant', content: story! } as const];
  const { texts: answers } = await answersTo(
    ['Who helped Mia?', 'What did they eat?'].map((question) => request([...told, user(question)])), NaiveScheduler);
  const [, helper] = /^(\w+ the \w+) helped Mia\.$/.exec(answers[0]!) ?? [];
  const [, food] = /^They ate (\w+)\.$/.exec(answers[1]!) ?? [];
  t.true(helper !== undefined && story!.includes(`${helper} came along`), answers[0]);
  t.true(food !== undefined && story!.includes(` ${food} together`), answers[1]);
});

test('on a device the small model gives the same tokens, and engines of one device share its weights', async (t) => {
  const asked = [request([user('Tell me a story about a fox named Mia and a red ball.')], { maxNewTokens: 50 })];
  const { texts: expected } = await answersTo(asked, NaiveScheduler);
  const device = new MockDevice({ memoryBytes: 2 ** 28, granularityBytes: 65_536 });
  const first = model.acquirePlace(device.driver, 'awaited');
  t.is(model.acquirePlace(device.driver, 'awaited'), first);
  model.releasePlace(device.driver, first);
  const { livePages } = device.driver.memory();
  const { texts } = await answersTo(asked, OfflineScheduler, { driver: device.driver });
  t.deepEqual(texts, expected);
  t.is(device.driver.memory().livePages, livePages);
  model.releasePlace(device.driver, first);
  t.is(device.driver.memory().livePages, 0);
  device.assertNoLeaks();
  device.close();
});

slow('runs a trained model')('every scheduler gives the same tokens, with and without the prefix cache', async (t) => {
  const begin = 'Once upon a time there was a goat named Otto. Otto lived by a lake and had a silver bell. One windy morning the bell was gone.';
  const requests = ['What did Otto lose?', 'Who was Otto?', 'How was the weather?', 'What did Otto lose?', 'Tell me a story about a crow and a drum.']
    .flatMap((question, index) => [
      request([user(`${begin} ${question}`)], { maxNewTokens: 40 }),
      request([user(`${begin} ${question}`)], { maxNewTokens: 40, sampler: randomSampler({ temperature: 0.8, topK: 20, topP: 0.9, seed: index }) }),
    ]);
  const expected = await answersTo(requests, NaiveScheduler, { prefixCache: 'off' });
  t.is(expected.cachedTokens, 0);
  for (const options of [{}, { layout: 'sliced' }, { layout: 'fused' }, { prefixCache: 'off' }] as const) {
    for (const scheduler of schedulers) {
      const { texts, cachedTokens } = await answersTo(requests, scheduler, options);
      t.deepEqual(texts, expected.texts, `${scheduler.name} ${JSON.stringify(options)}`);
      t.is(cachedTokens > 0, !('prefixCache' in options));
    }
  }
});
