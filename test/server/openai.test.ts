// The server as OpenAI's own client sees it. The engine's answers are known (script-engine.ts): what follows depends on the length of
// the prompt alone.

import test from 'ava';
import OpenAI from 'openai';

import { turn } from '../cache/tiers/device-index.js';
import { SteppedClock } from '../serving/stepped-clock.js';
import { scriptFrom } from './script-engine.js';
import { withServer } from './serving-world.js';

const user = (content: string): { role: 'user'; content: string } => ({ role: 'user', content });
const promptTokens = (content: string): number => Buffer.byteLength(`user:${content}\n`);

test('the client finds the model, and no other', (t) => withServer(t, {}, async (world) => {
  const client = world.client();
  const models = await client.models.list();
  t.deepEqual(models.data.map(({ id }) => id), ['script']);
  t.is((await client.models.retrieve('script')).object, 'model');
  t.like(await t.throwsAsync(client.models.retrieve('other')), { status: 404 });
  t.like(await t.throwsAsync(client.chat.completions.create({ model: 'other', messages: [user('a')] })), { status: 404 });
}));

test('a conversation is answered, with its usage and an id', (t) => withServer(t, {}, async (world) => {
  const { data, response } = await world.client().chat.completions.create({
    model: 'script', messages: [{ role: 'system', content: 'Be brief.' }, user('Hello.')], max_completion_tokens: 30,
  }, { headers: { 'x-request-id': 'mine-1' } }).withResponse();
  const tokens = Buffer.byteLength('system:Be brief.\nuser:Hello.\n');
  t.is(response.headers.get('x-request-id'), 'mine-1');
  t.like(data, { object: 'chat.completion', model: 'script', usage: { prompt_tokens: tokens, completion_tokens: 30, total_tokens: tokens + 30 } });
  t.is(data.choices[0]!.message.content, scriptFrom(tokens, 30));
  t.is(data.choices[0]!.finish_reason, 'length');
  t.true(data.id.startsWith('chatcmpl-'));
}));

test('a stream has the same text, ends with why, and has the usage in its last chunk if that is asked for', (t) => withServer(t, {}, async (world) => {
  const stream = await world.client().chat.completions.create({
    model: 'script', messages: [user('Hi')], max_tokens: 60, stream: true, stream_options: { include_usage: true },
  });
  let text = '';
  const chunks: OpenAI.ChatCompletionChunk[] = [];
  for await (const chunk of stream) {
    chunks.push(chunk);
    text += chunk.choices[0]?.delta.content ?? '';
  }
  t.is(text, scriptFrom(promptTokens('Hi'), 60));
  t.false(chunks.slice(0, -2).some(({ choices }) => choices[0]!.delta.content?.includes('\uFFFD')));
  t.is(chunks[0]!.choices[0]!.delta.role, 'assistant');
  t.is(chunks.at(-2)!.choices[0]!.finish_reason, 'length');
  t.deepEqual(chunks.at(-1)!.choices, []);
  t.like(chunks.at(-1)!.usage, { prompt_tokens: promptTokens('Hi'), completion_tokens: 60 });
  t.is(new Set(chunks.map(({ id }) => id)).size, 1);
}));

test('a prompt that was there before is cached, for its own user and salt only', (t) => withServer(t, {}, async (world) => {
  const content = 'a long beginning that requests have in common '.repeat(8);
  const cached = async (more: object): Promise<number> => {
    const { usage } = await world.client().chat.completions.create({ model: 'script', messages: [user(content)], max_tokens: 2, ...more });
    return usage!.prompt_tokens_details!.cached_tokens!;
  };
  t.is(await cached({}), 0);
  t.true(await cached({}) >= promptTokens(content) - 1);
  t.is(await cached({ user: 'ann' }), 0);
  t.true(await cached({ user: 'ann' }) > 0);
  t.is(await cached({ user: 'ann', cache_salt: 'pepper' }), 0);
  for (const hint of ['back-soon', 'done', undefined]) t.true(await cached({ prompt_cache_key: 'talk-1', session_hint: hint }) > 0, hint);
}));

test('stop strings end an answer before them, across tokens and split characters, streamed or not', (t) => withServer(t, {}, async (world) => {
  const client = world.client();
  const whole = scriptFrom(promptTokens('Hi'), 200);
  for (const stop of ['🦊 g', 'üß', ['zzz', 'lazy d'], ['dög', 'ög']]) {
    const ends = [stop].flat().map((each) => whole.indexOf(each)).filter((at) => at >= 0);
    const expected = whole.slice(0, Math.min(...ends));
    const request = { model: 'script', messages: [user('Hi')], max_tokens: 200, stop: [...[stop].flat()] };
    const answer = await client.chat.completions.create(request);
    t.is(answer.choices[0]!.message.content, expected);
    t.is(answer.choices[0]!.finish_reason, 'stop');
    t.true(answer.usage!.completion_tokens < 60);
    const stream = await client.chat.completions.create({ ...request, stream: true });
    let [text, reason] = ['', ''];
    for await (const { choices: [choice] } of stream) [text, reason] = [text + (choice!.delta.content ?? ''), choice!.finish_reason ?? reason];
    t.deepEqual([text, reason], [expected, 'stop']);
  }
  t.is(world.scheduler.totals.failedRequests, 0, 'an answer that a stop string ended is no failure');
}));

test('n answers come together, and so do those of several prompts', (t) => withServer(t, { slots: 8 }, async (world) => {
  const client = world.client();
  const chat = await client.chat.completions.create({ model: 'script', messages: [user('Hi')], n: 3, max_tokens: 10 });
  t.deepEqual(chat.choices.map(({ index, message }) => [index, message.content]), [0, 1, 2].map((index) => [index, scriptFrom(promptTokens('Hi'), 10)]));
  t.like(chat.usage, { prompt_tokens: promptTokens('Hi'), completion_tokens: 30 });
  const text = await client.completions.create({ model: 'script', prompt: ['one', 'three'], n: 2, max_tokens: 9, stop: null });
  t.deepEqual(text.choices.map((choice) => choice.text), [3, 3, 5, 5].map((tokens) => scriptFrom(tokens, 9)));
  t.is(text.usage!.prompt_tokens, 8);
  const tokens = await client.completions.create({ model: 'script', prompt: [65, 66, 67, 68] });
  t.is(tokens.choices[0]!.text, scriptFrom(4, 16), '16 tokens where nothing is said');
  const stream = await client.chat.completions.create({ model: 'script', messages: [user('Hi')], n: 3, max_tokens: 40, stream: true });
  const texts = ['', '', ''];
  for await (const { choices: [choice] } of stream) texts[choice!.index] += choice!.delta.content ?? '';
  t.deepEqual(texts, texts.map(() => scriptFrom(promptTokens('Hi'), 40)));
}));

test('a client that leaves ends its request, streamed or not, running or waiting', (t) => withServer(t, { slots: 1 }, async (world) => {
  const client = world.client();
  const running = await client.chat.completions.create({ model: 'script', messages: [user('a')], stream: true });
  world.engine.hold();
  const leaves = new AbortController();
  const waiting = client.chat.completions.create({ model: 'script', messages: [user('b')] }, { signal: leaves.signal });
  while (world.scheduler.waitingRequests === 0) await new Promise(setImmediate);
  leaves.abort();
  await t.throwsAsync(waiting, { instanceOf: OpenAI.APIUserAbortError });
  while (world.scheduler.waitingRequests > 0) await new Promise(setImmediate);
  running.controller.abort();
  while (world.scheduler.totals.failedRequests < 2) await new Promise(setImmediate);
  world.engine.letGo();
  const after = await client.chat.completions.create({ model: 'script', messages: [user('c')], max_tokens: 3 });
  t.is(after.usage!.completion_tokens, 3);
}));

test('what a request is refused for is an error of the right kind, which names the parameter', (t) => withServer(t, { maxChoices: 4, parameters: 'strict' }, async (world) => {
  const client = world.client();
  const refusal = async (more: object): Promise<InstanceType<typeof OpenAI.APIError>> =>
    await t.throwsAsync(client.chat.completions.create({ model: 'script', messages: [user('a')], ...more } as never), { instanceOf: OpenAI.APIError }) as InstanceType<typeof OpenAI.APIError>;
  const cases: readonly (readonly [object, number, string | null, string])[] = [
    [{ temperature: 3 }, 400, 'temperature', 'KV_INVALID_OPTION'],
    [{ temprature: 1 }, 400, 'temprature', 'unknown_parameter'],
    [{ messages: [] }, 400, 'messages', 'KV_INVALID_OPTION'],
    [{ messages: 'Hi' }, 400, 'messages', 'KV_INVALID_OPTION'],
    [{ messages: [{ role: 'king', content: 'Hi' }] }, 400, 'messages[0].role', 'KV_INVALID_OPTION'],
    [{ messages: [{ role: 'user', content: [{ type: 'image_url', image_url: { url: 'x' } }] }] }, 400, 'messages[0].content[0].type', 'KV_NOT_SUPPORTED'],
    [{ top_logprobs: 3 }, 400, 'top_logprobs', 'KV_INVALID_OPTION'],
    [{ logprobs: true, top_logprobs: 21 }, 400, 'top_logprobs', 'KV_INVALID_OPTION'],
    [{ tools: [{ type: 'web_search' }] }, 400, 'tools[0].type', 'KV_NOT_SUPPORTED'],
    [{ response_format: { type: 'json_object' } }, 400, 'response_format', 'KV_NOT_SUPPORTED'],
    [{ stop: [''] }, 400, 'stop[0]', 'KV_INVALID_OPTION'],
    [{ n: 5 }, 400, 'n', 'KV_INVALID_OPTION'],
    [{ messages: [user('a'.repeat(600))] }, 400, null, 'context_length_exceeded'],
    [{ messages: [user('a'.repeat(9_000))] }, 413, null, 'KV_REQUEST_INVALID'],
    [{ deadline_ms: 0 }, 400, 'deadline_ms', 'KV_INVALID_OPTION'],
  ];
  for (const [more, status, param, code] of cases) t.like(await refusal(more), { status, param, code }, JSON.stringify(more).slice(0, 80));
  t.is(world.scheduler.times.wait.count, 0);
  const harmless = await client.chat.completions.create({
    model: 'script', messages: [{ role: 'user', content: [{ type: 'text', text: 'a' }] }], max_tokens: 1, tools: [], logprobs: false, presence_penalty: 0,
    response_format: { type: 'text' }, metadata: { a: 'b' }, service_tier: 'auto', logit_bias: null,
  });
  t.is(harmless.usage!.prompt_tokens, promptTokens('a'));
}));

test('a full queue turns clients away with the time after which they may come back; all of n or none', (t) =>
  withServer(t, { slots: 1, scheduler: { maxWaiting: 2 } }, async (world) => {
    world.engine.hold();
    const client = world.client();
    const ask = (more: object = {}): Promise<OpenAI.ChatCompletion> =>
      client.chat.completions.create({ model: 'script', messages: [user('a')], max_tokens: 1, ...more }) as Promise<OpenAI.ChatCompletion>;
    const first = ask();
    while (world.scheduler.runningRequests === 0) await new Promise(setImmediate);
    const second = ask();
    while (world.scheduler.waitingRequests === 0) await new Promise(setImmediate);
    const error = await t.throwsAsync(ask({ n: 2 }), { instanceOf: OpenAI.RateLimitError, code: 'rate_limit_exceeded' }) as InstanceType<typeof OpenAI.RateLimitError>;
    t.true(Number(error.headers.get('retry-after')) >= 1);
    t.is(world.scheduler.waitingRequests, 1);
    t.is((await fetch(`${world.url}/ready`)).status, 200);
    world.engine.letGo();
    t.is((await first).usage!.completion_tokens, 1);
    t.is((await second).usage!.completion_tokens, 1);
  }));

test('a deadline ends a request with 504, or a stream with an error', async (t) => {
  const clock = new SteppedClock();
  await withServer(t, { slots: 1, scheduler: clock.options }, async (world) => {
    world.engine.hold();
    const client = world.client();
    const request = { model: 'script', messages: [user('a')], deadline_ms: 60_000 };
    const pass = async (): Promise<void> => {
      while (world.scheduler.runningRequests + world.scheduler.waitingRequests === 0) await turn();
      clock.advance(60_000);
    };
    const [error] = await Promise.all([t.throwsAsync(client.chat.completions.create(request)), pass()]);
    t.like(error, { status: 504, code: 'KV_DEADLINE_EXCEEDED' });
    const stream = await client.chat.completions.create({ ...request, stream: true });
    await pass();
    await t.throwsAsync(async () => {
      for await (const chunk of stream) t.is(chunk.choices[0]!.finish_reason, null);
    }, { message: /was not done in/ });
  });
});

test('without a key that it knows a client gets nothing but health', (t) => withServer(t, { apiKeys: ['one', 'two'] }, async (world) => {
  for (const key of ['three', 'on', 'onee']) t.like(await t.throwsAsync(world.client(key).models.list()), { status: 401, code: 'invalid_api_key' });
  for (const key of ['one', 'two']) t.is((await world.client(key).models.list()).data.length, 1);
  t.is((await fetch(`${world.url}/v1/models`)).status, 401);
  t.is((await fetch(`${world.url}/metrics`)).status, 401);
  t.deepEqual(await (await fetch(`${world.url}/health`)).json(), { status: 'ok' });
  t.deepEqual(await (await fetch(`${world.url}/ready`)).json(), { status: 'ready' });
}));
