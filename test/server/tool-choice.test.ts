// `tool_choice` that asks for a call: the answer is one, in the model's own form, whatever the model would have said.
// The engine would say other bytes there: those of its reply that count are what it is free to choose.

import test from 'ava';

import type { ChatMessage } from 'virtual-kv/llama';

import { agentTokenizer, endOfReply } from './script-engine.js';
import { withServer, type ServingWorld } from './serving-world.js';

type Values = Readonly<Record<string, unknown>>;

const agent = { tokenizer: agentTokenizer, stopTokens: [endOfReply], cacheTokens: 2_048, answers: 'logits' } as const;
/** A template that asks for calls in tags. */
const tagged = {
  ...agentTokenizer,
  encodeChat: (messages: readonly ChatMessage[], values: Values) =>
    agentTokenizer.encodeChat(messages, 'tools' in values ? { ...values, form: '<tool_call>' } : values),
};
/** One that begins what the model thinks. */
const thinking = {
  ...tagged,
  encodeChat: (messages: readonly ChatMessage[], values: Values) =>
    [...tagged.encodeChat(messages, values), ...Buffer.from('<think>\n')],
};

const tools = ['weather', 'time', 'timer "2"'].map((name) => ({ type: 'function', function: { name } }));
const named = (name: string): object => ({ tool_choice: { type: 'function', function: { name } } });
const messages = [{ role: 'user', content: 'Hi' }];

interface Message {
  readonly content?: string | null;
  readonly reasoning_content?: string;
  readonly tool_calls?: readonly { readonly function: { readonly name: string; readonly arguments: string } }[];
}

interface Seen {
  readonly calls: readonly (readonly [name: string, given: string])[];
  readonly content: string;
  readonly finish: string;
}

async function ask(world: ServingWorld, body: object): Promise<Seen> {
  const response = await world.post('/v1/chat/completions', { messages, tools, temperature: 0, ...body });
  const text = await response.text();
  if (response.status !== 200) throw new Error(text);
  type Choice = { readonly message: Message; readonly delta: Message; readonly finish_reason: string };
  const bodies = 'stream' in body ? [...text.matchAll(/^data: (\{.*)$/gm)].map(([, json]) => json!) : [text];
  const choices = bodies.flatMap((json) => (JSON.parse(json) as { readonly choices: readonly Choice[] }).choices);
  const said = choices.map((choice) => choice.message ?? choice.delta);
  return {
    calls: said.flatMap((each) => each.tool_calls ?? []).map(({ function: called }) => [called.name, called.arguments] as const),
    content: said.map(({ content }) => content ?? '').join(''), finish: choices.at(-1)!.finish_reason,
  };
}

/** Bytes that the model would have said where it is not free, then these. */
const behind = (opening: string, text: string): string => '?'.repeat(opening.length) + text;

for (const [form, tokenizer, opening, end] of [
  ['as JSON', agentTokenizer, '{"name": "weather", "parameters":', ''],
  ['in tags', tagged, '<tool_call>\n{"name": "weather", "arguments":', '\n</tool_call>'],
  ['behind a thought that the prompt began', thinking,
    '<think>\n</think>\n\n<tool_call>\n{"name": "weather", "arguments":', '\n</tool_call>'],
] as const) {
  test(`a named function is called ${form}, with the arguments that the model writes`, (t) =>
    withServer(t, { ...agent, tokenizer }, async (world) => {
      world.engine.reply = () => behind(opening, ` {"city": "Rom"}}${end}`);
      for (const more of [{}, { stream: true }]) {
        const seen = await ask(world, { ...named('weather'), ...more });
        t.deepEqual(seen, { calls: [['weather', '{"city": "Rom"}']], content: '', finish: 'tool_calls' });
      }
    }));
}

test('a required call is of the tool that the model would rather call', (t) => withServer(t, agent, async (world) => {
  const before = '{"name": "'.length;
  for (const [name, choice] of [['weather', 'w'], ['time', 'time"'], ['timer "2"', 'timer']] as const) {
    const opening = `{"name": ${JSON.stringify(name)}, "parameters":`;
    world.engine.reply = () => ('?'.repeat(before) + choice).padEnd(opening.length, '?') + ' {}}';
    t.deepEqual((await ask(world, { tool_choice: 'required' })).calls, [[name, '{}']]);
    t.deepEqual((await ask(world, { tool_choice: 'required', n: 2 })).calls, [[name, '{}'], [name, '{}']]);
  }
}));

test('calls in several answers are drawn each for itself', (t) => withServer(t, agent, async (world) => {
  const opening = '{"name": "time", "parameters":';
  world.engine.reply = () => behind(opening, ' '.repeat(99));
  const noMarks = { logit_bias: { 2: -100, 3: -100 } }; // which would end the prompt, or the reply
  const { calls } = await ask(world, { ...named('time'), ...noMarks, n: 3, temperature: 2, seed: 7, max_tokens: opening.length + 20 });
  t.is(new Set(calls.map(([, given]) => given)).size, 3);
}));

test('a call that is cut is what there is of it, and ends with `length`', (t) => withServer(t, agent, async (world) => {
  const opening = '{"name": "time", "parameters":';
  world.engine.reply = () => behind(opening, ' {"zone": "CET"}}');
  const seen = await ask(world, { ...named('time'), max_tokens: opening.length + 8 });
  t.deepEqual(seen, { calls: [['time', '{"zone"']], content: '', finish: 'length' });
}));

test('nothing is forced where no call is asked for', (t) => withServer(t, agent, async (world) => {
  world.engine.reply = () => 'No.';
  for (const choice of ['auto', 'none']) {
    t.deepEqual(await ask(world, { tool_choice: choice }), { calls: [], content: 'No.', finish: 'stop' });
  }
}));

test('a call that no model could make is refused', async (t) => {
  await withServer(t, agent, async (world) => {
    const response = await world.post('/v1/chat/completions', { messages, tool_choice: 'required' });
    t.is(response.status, 400);
    t.like(await response.json(), { error: { param: 'tool_choice' } });
  });
  const deaf = { ...agentTokenizer, encodeChat: (given: readonly ChatMessage[]) => agentTokenizer.encodeChat(given, {}) };
  await withServer(t, { ...agent, tokenizer: deaf }, async (world) => {
    const response = await world.post('/v1/chat/completions', { messages, tools, tool_choice: 'required' });
    t.is(response.status, 400);
    t.like(await response.json(), { error: { param: 'tool_choice', code: 'KV_NOT_SUPPORTED' } });
  });
});
