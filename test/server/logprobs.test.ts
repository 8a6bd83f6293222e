// Log-probabilities through OpenAI's own client: those that the scheduler gives, with the tokens' texts, streamed and not.

import test from 'ava';
import type OpenAI from 'openai';

import { script, scriptFrom } from './script-engine.js';
import { withServer } from './serving-world.js';

const messages = [{ role: 'user' as const, content: 'Hi' }];
const promptTokens = Buffer.byteLength('user:Hi\n');

/** Of the token of the script at a place of a text, by plain sums over the logits of script-engine.ts. */
function expectedLogprob(position: number, chosen: number, of: number): number {
  const logits = Array.from({ length: 256 }, (_, token) => (token === chosen ? 8 : ((token * 31 + position) % 97) / 20));
  return logits[of]! - Math.log(logits.reduce((sum, logit) => sum + Math.exp(logit), 0));
}

test('a conversation is answered with log-probabilities, and those of the likeliest tokens', (t) => withServer(t, { answers: 'logits' }, async (world) => {
  const request = { model: 'script', messages, max_tokens: 30, temperature: 0, logprobs: true, top_logprobs: 3 };
  const { choices: [choice] } = await world.client().chat.completions.create(request);
  const content = choice!.logprobs!.content!;
  t.is(choice!.message.content, scriptFrom(promptTokens, 30));
  t.is(content.length, 30);
  content.forEach(({ token, bytes, logprob, top_logprobs: top }, at) => {
    const chosen = script[(promptTokens - 1 + at) % script.length]!;
    t.is(token, Buffer.of(chosen).toString());
    t.deepEqual(bytes, chosen < 128 ? [chosen] : null, 'bytes of a part of a character are not told');
    t.true(Math.abs(logprob - expectedLogprob(promptTokens + at - 1, chosen, chosen)) < 1e-5, `${at}: ${logprob}`);
    t.deepEqual(top.map((each) => each.logprob), top.map((each) => each.logprob).sort((a, b) => b - a));
    t.deepEqual([top.length, top[0]!.token, top[0]!.logprob], [3, token, logprob]);
  });

  const streamed: OpenAI.ChatCompletionTokenLogprob[] = [];
  let text = '';
  const stream = await world.client().chat.completions.create({ ...request, stream: true });
  for await (const { choices } of stream) {
    streamed.push(...choices[0]?.logprobs?.content ?? []);
    text += choices[0]?.delta.content ?? '';
  }
  t.is(text, choice!.message.content!);
  t.deepEqual(streamed.map(({ token }) => token), content.map(({ token }) => token));
  const plain = await world.client().chat.completions.create({ ...request, logprobs: false, top_logprobs: 0 });
  t.is(plain.choices[0]!.logprobs, null);
}));

test('a text goes on with log-probabilities as lists, streamed or not', (t) => withServer(t, { answers: 'logits' }, async (world) => {
  const request = { model: 'script', prompt: 'Once', max_tokens: 20, temperature: 0, logprobs: 2, n: 2 };
  const { choices } = await world.client().completions.create(request);
  t.is(choices.length, 2);
  for (const { text, logprobs } of choices) {
    const { tokens, token_logprobs: own, top_logprobs: top, text_offset: offsets } = logprobs!;
    t.is(text, scriptFrom(4, 20));
    t.deepEqual([tokens!.length, own!.length, top!.length, offsets!.length], [20, 20, 20, 20]);
    tokens!.forEach((token, at) => {
      t.is(top![at]![token], own![at]);
      t.is(offsets![at], tokens!.slice(0, at).join('').length);
    });
  }
  const texts = ['', ''];
  const offsets: number[][] = [[], []];
  for await (const { choices: [choice] } of await world.client().completions.create({ ...request, stream: true })) {
    texts[choice!.index] += choice!.text;
    offsets[choice!.index]!.push(...choice!.logprobs?.text_offset ?? []);
  }
  t.deepEqual(texts, choices.map(({ text }) => text));
  t.deepEqual(offsets, choices.map(({ logprobs }) => logprobs!.text_offset!));
  const refused = await t.throwsAsync(world.client().completions.create({ ...request, logprobs: 21 }));
  t.like(refused, { status: 400, param: 'logprobs' });
}));

test('a prompt is scored in parts side by side, or whole where the queue has no room for parts', async (t) => {
  const prompt = `${scriptFrom(1, 60)}odd${scriptFrom(64, 60)}`;
  const body = { prompt, max_tokens: 1, temperature: 0, echo: true, logprobs: 2 };
  const seen: { readonly logprobs: object; readonly passes: number }[] = [];
  for (const maxWaiting of [64, 1]) {
    await withServer(t, { answers: 'logits', slots: 8, scheduler: { maxWaiting } }, async (world) => {
      const answer = await (await world.post('/v1/completions', body)).json() as { choices: { logprobs: object }[] };
      seen.push({ logprobs: answer.choices[0]!.logprobs, passes: world.engine.passes });
    });
  }
  const [parts, whole] = seen;
  t.deepEqual(parts!.logprobs, whole!.logprobs);
  t.true((whole!.logprobs as { token_logprobs: number[] }).token_logprobs.filter((each) => each < -2).length > 0);
  const passes = `${parts!.passes} passes and ${whole!.passes}`;
  t.true(parts!.passes < whole!.passes / 2, passes); // there is memory for three parts at a time
});

test('log-probabilities that the engine cannot give are an error, not numbers', (t) => withServer(t, {}, async (world) => {
  const error = await t.throwsAsync(world.client().chat.completions.create({ model: 'script', messages, max_tokens: 3, logprobs: true }));
  t.like(error, { status: 500 });
  world.errors.length = 0;
}));
