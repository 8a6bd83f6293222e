// Bias and penalties through OpenAI's own client, against sums written out here over the logits of script-engine.ts.

import test from 'ava';
import OpenAI from 'openai';

import { script, scriptFrom } from './script-engine.js';
import { withServer } from './serving-world.js';

interface Changes {
  readonly presence_penalty?: number;
  readonly frequency_penalty?: number;
  readonly repetition_penalty?: number;
  readonly logit_bias?: Readonly<Record<string, number>>;
}

/** The likeliest tokens behind a prompt that nothing was cached of. */
function likeliest(prompt: string, tokens: number, changes: Changes): string {
  const { presence_penalty: presence = 0, frequency_penalty: frequency = 0, repetition_penalty: repetition = 1, logit_bias: bias = {} } = changes;
  const given = [...Buffer.from(prompt)];
  const answer: number[] = [];
  while (answer.length < tokens) {
    const position = given.length + answer.length - 1;
    const next = script[position % script.length];
    let best = 0;
    let largest = -Infinity;
    for (let token = 0; token < 256; token += 1) {
      let logit = (token === next ? 8 : ((token * 31 + position) % 97) / 20) + (bias[token] ?? 0);
      const times = answer.filter((each) => each === token).length;
      if (times > 0 || given.includes(token)) logit = logit > 0 ? logit / repetition : logit * repetition;
      if (times > 0) logit -= presence + frequency * times;
      if (logit > largest) [best, largest] = [token, logit];
    }
    answer.push(best);
  }
  return Buffer.from(answer).toString();
}

const prompt = 'Once the fox';
const cases: readonly Changes[] = [
  { logit_bias: { 122: 100 } }, { logit_bias: { 32: -100, 101: -6.5 } }, { frequency_penalty: 1.7 }, { frequency_penalty: -2, logit_bias: { 98: 5.5 } },
  { presence_penalty: 2, logit_bias: { 32: -3, 101: -3, 104: -3 } }, { repetition_penalty: 3 }, { repetition_penalty: 0.25 },
  { repetition_penalty: 1.9, frequency_penalty: 0.9, presence_penalty: -0.3, logit_bias: { 116: 4, 0: 2 } },
];

test('bias and penalties choose what sums by hand choose, and none of them is without effect', (t) => withServer(t, { answers: 'logits' }, async (world) => {
  for (const [index, changes] of cases.entries()) {
    const request = { model: 'script', prompt, max_tokens: 60, temperature: 0, cache_salt: `case ${index}`, ...changes };
    const { choices } = await world.client().completions.create(request as OpenAI.CompletionCreateParamsNonStreaming);
    const expected = likeliest(prompt, 60, changes);
    t.is(choices[0]!.text, expected, JSON.stringify(changes));
    t.not(expected, scriptFrom(prompt.length, 60));
  }
}));

test('answers to one prompt count their own tokens', (t) => withServer(t, { answers: 'logits' }, async (world) => {
  const request = { model: 'script', prompt, max_tokens: 60, temperature: 0, frequency_penalty: 1.7, n: 3 };
  const { choices } = await world.client().completions.create(request);
  t.deepEqual(choices.map(({ text }) => text), Array<string>(3).fill(likeliest(prompt, 60, request)));
}));

test('bias counts where tokens are drawn, and `min_p` leaves the unlikely out', (t) => withServer(t, { answers: 'logits' }, async (world) => {
  const ask = async (more: object): Promise<string> =>
    (await world.client().completions.create({ model: 'script', prompt, max_tokens: 40, temperature: 2, seed: 5, ...more })).choices[0]!.text;
  const free = await ask({});
  t.not(free, scriptFrom(prompt.length, 40));
  t.is(await ask({ min_p: 0, presence_penalty: 0, frequency_penalty: 0, repetition_penalty: 1, logit_bias: {} }), free);
  t.is(await ask({ min_p: 1 }), scriptFrom(prompt.length, 40));
  t.is(await ask({ logit_bias: { 122: 100 } }), 'z'.repeat(40));
  const spaces = await ask({ logit_bias: { 32: -100 } });
  t.false(spaces.includes(' '));
}));

test('what cannot be a bias or a penalty is refused by name, before anything is submitted', (t) => withServer(t, { answers: 'logits' }, async (world) => {
  const cases: readonly (readonly [object, string])[] = [
    [{ presence_penalty: 2.1 }, 'presence_penalty'],
    [{ frequency_penalty: '1' }, 'frequency_penalty'],
    [{ repetition_penalty: 0 }, 'repetition_penalty'],
    [{ min_p: -0.1 }, 'min_p'],
    [{ logit_bias: [1] }, 'logit_bias'],
    [{ logit_bias: { a: 1 } }, 'logit_bias'],
    [{ logit_bias: { '07': 1 } }, 'logit_bias'],
    [{ logit_bias: { '2147483648': 1 } }, 'logit_bias'],
    [{ logit_bias: { 256: 1 } }, 'logit_bias'],
    [{ logit_bias: { 5: 101 } }, 'logit_bias.5'],
    [{ logit_bias: { 5: null } }, 'logit_bias.5'],
    [{ logit_bias: Object.fromEntries(Array.from({ length: 1_025 }, (_, token) => [token, 1])) }, 'logit_bias'],
  ];
  for (const [more, param] of cases) {
    const error = await t.throwsAsync(world.client().completions.create({ model: 'script', prompt, ...more }), { instanceOf: OpenAI.APIError });
    t.like(error, { status: 400, param, code: 'KV_INVALID_OPTION' }, JSON.stringify(more).slice(0, 60));
  }
  t.is(world.scheduler.times.wait.count, 0);
}));

test('answers to one prompt draw numbers of their own, also with a least number of tokens', (t) => withServer(t, { answers: 'logits' }, async (world) => {
  const request = { model: 'script', prompt, max_tokens: 24, temperature: 2, seed: 7, n: 3 };
  const textsOf = async (more: object): Promise<readonly string[]> =>
    (await world.client().completions.create({ ...request, ...more })).choices.map(({ text }) => text);
  const plain = await textsOf({});
  t.is(new Set(plain).size, 3);
  t.deepEqual(await textsOf({ min_tokens: 2 }), plain);
  const texts = await textsOf({ min_tokens: 2, echo: true, prompt: [prompt, prompt], n: 2 });
  t.deepEqual(texts, (await textsOf({ n: 4 })).map((text) => prompt + text));
}));
