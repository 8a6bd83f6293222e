// Histories and parameters as clients of other servers send them, and what of them reaches the chat template.

import test from 'ava';

import { agentTokenizer, byteTokenizer, endOfReply, scriptFrom, type AgentConversation } from './script-engine.js';
import { withServer, type ServingWorld } from './serving-world.js';

const agent = { tokenizer: agentTokenizer, stopTokens: [endOfReply], cacheTokens: 2_048 };
const user = { role: 'user', content: 'Hi' };

interface Seen {
  readonly status: number;
  readonly ignored: string | null;
  readonly body: { readonly choices: readonly { readonly message: Record<string, unknown>; readonly text: string; readonly finish_reason: string; readonly logprobs: unknown }[]; readonly usage: Record<string, number>; readonly error: { readonly param: string; readonly code: string; readonly message: string } };
}

async function ask(world: ServingWorld, body: object, path = '/v1/chat/completions'): Promise<Seen> {
  const response = await world.post(path, body);
  return { status: response.status, ignored: response.headers.get('x-ignored-parameters'), body: await response.json() as Seen['body'] };
}

/** The conversation that the template was given. */
async function told(world: ServingWorld, body: object): Promise<AgentConversation> {
  let conversation: AgentConversation | undefined;
  world.engine.reply = (given) => {
    conversation = given;
    return 'ok';
  };
  const { status, body: answer } = await ask(world, body);
  if (status !== 200) throw new Error(answer.error.message);
  return conversation!;
}

const call = { id: 'call_1', type: 'function', function: { name: 'f', arguments: '{"a":1}' } };

test('a history keeps what templates read, and loses what carries nothing', (t) => withServer(t, agent, async (world) => {
  const { messages } = await told(world, { messages: [
    { role: 'developer', content: 'Be brief.', name: 'boss' },
    { role: 'user', content: [{ type: 'text', text: 'a', cache_control: { type: 'ephemeral' } }, { type: 'text', text: 'b' }], annotations: [] },
    { role: 'assistant', content: null, tool_calls: [call], refusal: null, annotations: [], audio: null, function_call: null },
    { role: 'tool', tool_call_id: 'call_1', content: [{ type: 'text', text: '7' }] },
    { role: 'assistant', content: [{ type: 'refusal', refusal: 'no' }], reasoning_content: 'why', tool_calls: [] },
    user,
  ] });
  t.deepEqual(messages, [
    { role: 'system', content: 'Be brief.', name: 'boss' }, { role: 'user', content: 'ab' },
    { role: 'assistant', content: '', tool_calls: [{ id: 'call_1', type: 'function', function: { name: 'f', arguments: { a: 1 } } }] },
    { role: 'tool', content: '7', tool_call_id: 'call_1' },
    { role: 'assistant', content: 'no', reasoning_content: 'why' }, user,
  ]);
}));

test('arguments that are no JSON are told as they are, and too deep ones are refused', (t) => withServer(t, agent, async (world) => {
  const withArguments = (text: string): object => ({ messages: [user, { role: 'assistant', tool_calls: [{ ...call, function: { name: 'f', arguments: text } }] }, user], max_tokens: 1 });
  for (const text of ['f(1)', '', '7']) {
    const { messages } = await told(world, withArguments(text));
    t.is((messages[1]!['tool_calls'] as { function: { arguments: unknown } }[])[0]!.function.arguments, text);
  }
  const deep = await ask(world, withArguments('['.repeat(8_000) + ']'.repeat(8_000)));
  t.is(deep.status, 400);
}));

test('the template is told the tools, the choice, and what `chat_template_kwargs` says', (t) => withServer(t, agent, async (world) => {
  const tool = (name: string): object => ({ type: 'function', function: { name, parameters: { type: 'object' }, strict: true } });
  const tools = [tool('f'), tool('g')];
  const valuesOf = async (more: object): Promise<AgentConversation['values']> => (await told(world, { messages: [user], ...more })).values;
  t.deepEqual(await valuesOf({}), {});
  t.deepEqual(await valuesOf({ tools }), { tools, tool_choice: 'auto' });
  t.deepEqual(await valuesOf({ tools, tool_choice: 'none' }), {});
  const choice = { type: 'function', function: { name: 'g' } };
  t.deepEqual(await valuesOf({ tools, tool_choice: choice }), { tools: [tool('g')], tool_choice: choice });
  t.deepEqual(await valuesOf({ chat_template_kwargs: { enable_thinking: false, tools: 'none' }, tools }), { enable_thinking: false, tools, tool_choice: 'auto' });
  t.deepEqual(await valuesOf({ reasoning_effort: 'none' }), { reasoning_effort: 'none', enable_thinking: false });
  t.deepEqual(await valuesOf({ reasoning_effort: 'none', chat_template_kwargs: { enable_thinking: true } }), { reasoning_effort: 'none', enable_thinking: true });
  for (const [more, param] of [
    [{ tools: [{ type: 'web_search' }] }, 'tools[0].type'], [{ tools: [{}] }, 'tools[0]'],
    [{ tools: [{ type: 'function', function: {} }] }, 'tools[0].function.name'],
    [{ tools, tool_choice: 'any' }, 'tool_choice'],
    [{ tools, tool_choice: { function: { name: 'h' } } }, 'tool_choice.function.name'],
    [{ functions: [tool('f')] }, 'functions'],
  ] as const) t.is((await ask(world, { messages: [user], ...more })).body.error.param, param);
}));

test('unknown parameters are ignored and named; a strict server refuses them', async (t) => {
  const body = { messages: [{ ...user, thinking: 1 }, { role: 'user', content: [{ type: 'text', text: 'a', 'x y\r\n': 1 }] }], max_tokens: 1, verbosity: 'low', 'schlüssel': 2 };
  await withServer(t, {}, async (world) => {
    const { status, ignored } = await ask(world, body);
    t.is(status, 200);
    t.is(ignored, 'verbosity, schl_ssel, messages[].thinking, messages[].content[].x_y__');
    t.is((await ask(world, { messages: [user], max_tokens: 1 })).ignored, null);
    const many = Object.fromEntries(Array.from({ length: 100 }, (_, at) => [`name${at}`, 1]));
    t.true((await ask(world, { messages: [user], max_tokens: 1, ...many })).ignored!.endsWith('name31, ...'));
  });
  await withServer(t, { parameters: 'strict' }, async (world) => {
    for (const more of [{ verbosity: 'low' }, { messages: body.messages }]) t.is((await ask(world, { messages: [user], ...more })).body.error.code, 'unknown_parameter');
  });
});

test('what would change the form of an answer is refused by name, with what to use instead', (t) => withServer(t, {}, async (world) => {
  for (const [name, value] of Object.entries({
    response_format: { type: 'json_schema', json_schema: {} }, guided_json: {}, grammar: 'a', audio: {},
    modalities: ['audio'], function_call: { name: 'f' },
    continue_final_message: true, add_generation_prompt: false,
  })) {
    const { status, body: { error } } = await ask(world, { messages: [user], max_tokens: 1, [name]: value });
    t.is(status, 400, name);
    t.like(error, { param: name, code: 'KV_NOT_SUPPORTED' });
  }
  t.is((await ask(world, { prompt: 'a', suffix: 'b' }, '/v1/completions')).status, 400);
}));

test('a body of many objects within each other is the client\'s mistake', (t) => withServer(t, {}, async (world) => {
  for (const name of ['tools', 'response_format', 'metadata', 'chat_template_kwargs', 'anything']) {
    const body = `{"messages":[{"role":"user","content":"[{"}],"${name}":${'['.repeat(8_000)}${']'.repeat(8_000)}}`;
    const response = await fetch(`${world.url}/v1/chat/completions`, { method: 'POST', headers: { 'content-type': 'application/json' }, body });
    t.is(response.status, 400, name);
  }
  const brackets = await ask(world, { messages: [{ role: 'user', content: `${'['.repeat(99)}"\\` }], max_tokens: 1 });
  t.is(brackets.status, 200, 'those of a text are none');
}));

test('more tokens than are left are as many as are left; none are none', (t) => withServer(t, {}, async (world) => {
  const { body: { usage, choices } } = await ask(world, { messages: [user], max_tokens: 1e6 });
  t.is(usage['total_tokens'], 513, 'the last token is never fed back');
  t.is(choices[0]!.finish_reason, 'length');
  for (const stream of [false, true]) {
    const response = await world.post('/v1/chat/completions', { messages: [user], max_tokens: 0, stream, stream_options: { include_usage: true } });
    const text = await response.text();
    t.true(text.includes('"completion_tokens":0') && text.includes('"finish_reason":"length"'));
    t.false(/"content":"[^"]/.test(text));
  }
}));

test('an answer ends at other tokens, not before so many, or at none', (t) => withServer(t, { answers: 'logits', stopTokens: [' '.charCodeAt(0)] }, async (world) => {
  const whole = scriptFrom(3, 40);
  const textOf = async (more: object): Promise<string> => (await ask(world, { prompt: 'abc', max_tokens: 40, temperature: 0, ...more }, '/v1/completions')).body.choices[0]!.text;
  t.is(await textOf({}), whole.slice(0, whole.indexOf(' ')));
  t.is(await textOf({ ignore_eos: true }), whole);
  t.is(await textOf({ ignore_eos: true, stop_token_ids: ['x'.charCodeAt(0)] }), whole.slice(0, whole.indexOf('x')));
  const late = await textOf({ min_tokens: 12 });
  t.true(late.length >= 12 && !late.slice(0, 12).includes(' '), late);
  t.is(late.slice(0, whole.indexOf(' ')), whole.slice(0, whole.indexOf(' ')));
}));

test('a prompt is echoed, with how likely its tokens were', (t) => withServer(t, { answers: 'logits' }, async (world) => {
  const ending = scriptFrom(1, 5);
  const prompt = `T${ending}X`;
  for (const given of [prompt, [...Buffer.from(prompt)]]) {
    const { body: { choices, usage } } = await ask(world, { prompt: given, echo: true, logprobs: 2, max_tokens: 0 }, '/v1/completions');
    t.is(choices[0]!.text, prompt);
    const { tokens, token_logprobs: likely, top_logprobs: top, text_offset: offsets } =
      choices[0]!.logprobs as { tokens: string[]; token_logprobs: (number | null)[]; top_logprobs: (Record<string, number> | null)[]; text_offset: number[] };
    t.deepEqual(tokens, [...prompt]);
    t.deepEqual(offsets, [...prompt].map((_, at) => at));
    t.is(likely[0], null);
    t.is(top[0], null);
    t.true(likely.slice(1, 6).every((value) => value! > -1.5), 'the script');
    t.true(likely[6]! < -2, 'not the script');
    t.true(top.slice(1).every((each) => Object.keys(each!).length >= 2));
    t.is(usage['prompt_tokens'], 7);
    t.is(usage['completion_tokens'], 0);
  }
  const { body: { choices } } = await ask(world, { prompt: ['abc', 'd'], echo: true, max_tokens: 4, n: 2, temperature: 0 }, '/v1/completions');
  t.deepEqual(choices.map(({ text }) => text), [...[1, 2].map(() => `abc${scriptFrom(3, 4)}`), ...[1, 2].map(() => `d${scriptFrom(1, 4)}`)]);
  const streamed = await (await world.post('/v1/completions', { prompt: 'abc', echo: true, logprobs: 0, max_tokens: 1, stream: true, temperature: 0 })).text();
  t.regex(streamed, /^data: .*"text":"abc".*"tokens":\["a","b","c"\],"token_logprobs":\[null,/);
}));

test('a stream has its headers at once, and comments while nothing comes', (t) => withServer(t, { commentMs: 5, answers: 'logits' }, async (world) => {
  world.engine.hold();
  for (const [path, body] of [
    ['/v1/completions', { prompt: 'abc' }], ['/v1/completions', { prompt: 'abc', echo: true, logprobs: 1 }],
    ['/v1/chat/completions', { messages: [user] }],
  ] as const) {
    const response = await world.post(path, { ...body, max_tokens: 3, stream: true });
    const reader = response.body!.getReader();
    let text = '';
    while (!text.includes(':\n\n')) text += Buffer.from((await reader.read()).value!).toString();
    world.engine.letGo();
    for (let next = await reader.read(); !next.done; next = await reader.read()) text += Buffer.from(next.value).toString();
    t.true(text.endsWith('data: [DONE]\n\n'));
    world.engine.hold();
  }
  world.engine.letGo();
}));

test('the bytes of log-probabilities put a text together again, where the tokenizer knows them', async (t) => {
  for (const [tokenizer, isKnown] of [[{ ...byteTokenizer, bytesOf: (token: number) => [token] }, true], [byteTokenizer, false]] as const) {
    await withServer(t, { answers: 'logits', tokenizer }, async (world) => {
      const { body: { choices: [choice] } } = await ask(world, { messages: [user], max_tokens: 40, temperature: 0, logprobs: true });
      const { content } = choice!.logprobs as { content: { bytes: number[] | null }[] };
      if (isKnown) t.is(Buffer.from(content.flatMap(({ bytes }) => bytes!)).toString(), choice!.message['content'] as string);
      else t.true(content.some(({ bytes }) => bytes === null), 'a part of a character');
    });
  }
});
