// An answer's text, however it is cut into pieces, is parted alike: thoughts, text, calls in each form; and what is no
// call stays text.

import test from 'ava';

import { ChatText, type ChatDelta } from '#internal/server/chat-text.js';

interface Parted {
  readonly content?: string;
  readonly reasoning?: string;
  /** Name and arguments. */
  readonly calls?: readonly (readonly [string, string])[];
}

const tools = ['weather', 'time'];
const big = '{"id": 12345678901234567890, "x": [1, {"y": "}"}]}';

/** Those of ChatText, with defaults. */
interface Options {
  readonly isThinking?: boolean;
  readonly tools?: readonly string[];
  readonly mostCalls?: number;
  readonly mustCall?: boolean;
}

const cases: Readonly<Record<string, readonly [text: string, parted: Parted, options?: Options]>> = {
  'plain text': [' A fox.\n\n', { content: ' A fox.\n\n' }],
  'text with a bracket and a part of a tag': ['{a} <tool and </think> <tool_cal', { content: '{a} <tool and </think> <tool_cal' }],
  'only spaces': ['  \n', { content: '  \n' }],
  nothing: ['', {}],
  'a thought and text': ['<think>\nHm, a < b.\n</think>\n\nYes.', { reasoning: 'Hm, a < b.', content: 'Yes.' }],
  'a thought that the prompt began': ['Hm.\n</think>\nYes.', { reasoning: 'Hm.', content: 'Yes.' }, { isThinking: true }],
  'a thought that is cut off': ['<think>Hm, </thi', { reasoning: 'Hm, </thi' }],
  'a thought and nothing': ['<think>Hm.</think>\n\n', { reasoning: 'Hm.' }],
  'an empty thought': ['<think>\n\n</think>\n\nYes.', { content: 'Yes.' }],
  'a tag of thoughts in the middle': ['No <think>x</think>', { content: 'No <think>x</think>' }],
  'a Hermes call': ['<tool_call>\n{"name": "weather", "arguments": {"city": "Köln"}}\n</tool_call>', { calls: [['weather', '{"city": "Köln"}']] }],
  'text, two calls and thoughts': [
    '<think>I ask.</think>\n\nLet me see.\n<tool_call>\n{"name": "weather", "arguments": {}}\n</tool_call>\n<tool_call>{"name": "time", "arguments": {"z": 1}}</tool_call>\n',
    { reasoning: 'I ask.', content: 'Let me see.', calls: [['weather', '{}'], ['time', '{"z": 1}']] },
  ],
  'one call where one is allowed': [
    '<tool_call>{"name": "weather", "arguments": {}}</tool_call><tool_call>{"name": "time", "arguments": {}}</tool_call>', { calls: [['weather', '{}']] }, { mostCalls: 1 },
  ],
  'a tag within an argument': [
    '<tool_call>{"name": "weather", "arguments": {"a": "</tool_call> \\" <think>"}}</tool_call>',
    { calls: [['weather', '{"a": "</tool_call> \\" <think>"}']] },
  ],
  'numbers of many digits': [`<tool_call>{"arguments": ${big}, "name": "time"}</tool_call>`, { calls: [['time', big]] }],
  'arguments as a string': ['<tool_call>{"name": "time", "arguments": "{\\"a\\":1}"}</tool_call>', { calls: [['time', '{"a":1}']] }],
  'no arguments': ['<tool_call>{"name": "time", "arguments": null}</tool_call><tool_call>{"name": "time"}</tool_call>', { calls: [['time', '{}'], ['time', '{}']] }],
  'a call whose end is missing': ['<tool_call>\n{"name": "time", "arguments": {}}', { calls: [['time', '{}']] }],
  'a call that is cut off': ['<tool_call>\n{"name": "time", "argu', { content: '<tool_call>\n{"name": "time", "argu' }],
  'a call that is no JSON': ['<tool_call>time()</tool_call> so', { content: '<tool_call>time()</tool_call> so' }],
  'a call without tools': ['<tool_call>{"name": "time"}</tool_call>', { content: '<tool_call>{"name": "time"}</tool_call>' }, { tools: [] }],
  "Llama's call": ['{"name": "weather", "parameters": {"city": "Rom"}}', { calls: [['weather', '{"city": "Rom"}']] }],
  "Llama's calls": ['\n{"name": "time", "parameters": {}}; {"type": "function", "name": "weather", "parameters": {"a": "{"}}', { calls: [['time', '{}'], ['weather', '{"a": "{"}']] }],
  "Mistral's calls": [' [{"name": "time", "arguments": {"a": []}}, {"name": "weather", "arguments": {}}]', { calls: [['time', '{"a": []}'], ['weather', '{}']] }],
  'JSON that is the answer': ['{"name": "Ida", "age": 7}', { content: '{"name": "Ida", "age": 7}' }],
  'JSON and text': ['{"name": "time"} is what I call', { content: '{"name": "time"} is what I call' }],
  'a list that is the answer': ['[1, 2]', { content: '[1, 2]' }],
  'a call that was begun, whose arguments are cut': [
    '{"name": "time", "parameters": {"zone": "C', { calls: [['time', '{"zone": "C']] }, { mustCall: true },
  ],
  'a call that was begun, and text behind it': [
    '{"name": "time", "parameters": {"a": "}"}} I call it.', { calls: [['time', '{"a": "}"}']] }, { mustCall: true },
  ],
  'a tagged call that was begun, whose arguments are no JSON': [
    '<tool_call>\n{"name": "time", "arguments": {zone: 1}}\n</tool_call>', { calls: [['time', '{zone: 1}']] },
    { mustCall: true },
  ],
  'a call that was begun, and another that is no JSON': [
    '<tool_call>{"name": "time", "arguments": {}}</tool_call><tool_call>{"name": "time", "arguments": x',
    { content: '<tool_call>{"name": "time", "arguments": x', calls: [['time', '{}']] }, { mustCall: true },
  ],
  'a call that was begun, and cut before its arguments': [
    '{"name": "time", "para', { content: '{"name": "time", "para' }, { mustCall: true },
  ],
  'JSON without tools': ['{"name": "time"}', { content: '{"name": "time"}' }, { tools: [] }],
};

function partedBy(text: string, size: number, options: Options): Parted {
  const { isThinking = false, tools: names = tools, mostCalls = Infinity, mustCall = false } = options;
  const chat = new ChatText({ isThinking, tools: new Set(names), mostCalls, mustCall });
  const deltas: ChatDelta[] = [];
  for (let at = 0; at < text.length; at += size) deltas.push(...chat.push(text.slice(at, at + size)));
  deltas.push(...chat.end());
  const textOf = (name: string): string => deltas.map((delta) => (delta as unknown as Record<string, string>)[name] ?? '').join('');
  const calls = deltas.flatMap((delta) => ('call' in delta ? [[delta.call.function.name, delta.call.function.arguments] as const] : []));
  const [content, reasoning] = [textOf('content'), textOf('reasoning_content')];
  return { ...content === '' ? {} : { content }, ...reasoning === '' ? {} : { reasoning }, ...calls.length === 0 ? {} : { calls } };
}

for (const [name, [text, parted, options = {}]] of Object.entries(cases)) {
  test(`${name}: parted alike however it is cut`, (t) => {
    for (const size of [1, 2, 3, 7, 1_000]) t.deepEqual(partedBy(text, size, options), parted, `pieces of ${size}`);
  });
}

test('text is not held back longer than it may be a tag', (t) => {
  const chat = new ChatText({ isThinking: false, tools: new Set(tools), mostCalls: Infinity, mustCall: false });
  t.deepEqual(chat.push('A <'), [{ content: 'A' }]);
  t.deepEqual(chat.push('b'), [{ content: ' <b' }]);
  t.deepEqual(chat.push(' and'), [{ content: ' and' }]);
});
