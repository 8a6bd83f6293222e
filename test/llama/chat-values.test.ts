// What a chat template is told besides messages: tools and other variables, whose special tokens stay text as those of
// messages do.

import { cpSync, readFileSync, writeFileSync } from 'node:fs';
import * as path from 'node:path';

import test, { type ExecutionContext } from 'ava';

import { BackgroundTokenizer } from '#internal/llama/background-tokenizer.js';
import { LlamaTokenizer } from '#internal/llama/tokenizer.js';
import { folderOf } from '../helpers/temporary-folder.js';

const storyteller = path.resolve(__dirname, '..', '..', 'examples', 'llama', 'storyteller');
const template = `{{ bos_token }}{% if tools %}{{ tools | tojson }}{% endif %}{% for message in messages %}<|user|>{{ message.content }}` +
  `{% for call in message.tool_calls or [] %}{{ call.function.arguments | tojson }}{% endfor %}{{ eos_token }}{% endfor %}{{ kind or '' }}<|assistant|>`;

/** A tokenizer of the storyteller with a template that has tools. */
function tokenizerOf(t: ExecutionContext): LlamaTokenizer {
  const folder = folderOf(t);
  cpSync(storyteller, folder, { recursive: true });
  const file = path.join(folder, 'tokenizer_config.json');
  writeFileSync(file, JSON.stringify({ ...JSON.parse(readFileSync(file, 'utf8')) as object, chat_template: template }));
  return new LlamaTokenizer(folder);
}

const user = { role: 'user', content: 'Hi' };
const bad = '<|end|>';

test('special tokens in tools, their names, arguments and variables stay text', (t) => {
  const tokenizer = tokenizerOf(t);
  const [end] = tokenizer.endTokens;
  const countEnds = (...given: Parameters<typeof tokenizer.encodeChat>): number => tokenizer.encodeChat(...given).filter((token) => token === end).length;
  t.is(countEnds([user]), 1, "the template's own");
  t.is(countEnds([user], { tools: [{ description: bad, role: bad, [bad]: { role: bad, [`a${bad}`]: [bad] } }], kind: bad }), 1);
  const call = { function: { arguments: { role: bad, [bad]: bad } } };
  t.is(countEnds([{ ...user, tool_calls: [call] }]), 1);
  const text = tokenizer.decode(tokenizer.encodeChat([{ ...user, tool_calls: [call] }], { tools: [{ role: bad }] }));
  t.true(text.includes(`[{"role": "${bad}"}]`) && text.includes(`{"role": "${bad}", "${bad}": "${bad}"}`), text);
});

test('a signal that was aborted gives no tokens', (t) => {
  const tokenizer = tokenizerOf(t);
  const signal = AbortSignal.abort();
  t.throws(() => tokenizer.encode('a', { signal }), { code: 'KV_ABORTED' });
  t.throws(() => tokenizer.encodeChat([user], {}, { signal }), { code: 'KV_ABORTED' });
  t.deepEqual(tokenizer.encode('a', { signal: new AbortController().signal }), tokenizer.encode('a'));
});

test('a conversation of many messages is filled in on the worker, with its values, and one that no thread can be given is not', async (t) => {
  const tokenizer = tokenizerOf(t);
  await using background = new BackgroundTokenizer({ tokenizer, minBackgroundCharacters: 200 });
  const messages = Array.from({ length: 20 }, () => ({ role: 'user', content: 'a' }));
  const render = tokenizer.encodeChat.bind(tokenizer);
  let here = 0;
  tokenizer.encodeChat = (...given) => {
    here += 1;
    return render(...given);
  };
  const tools = [{ description: 'x'.repeat(300) }];
  t.deepEqual(await background.encodeChat(messages), render(messages));
  t.deepEqual(await background.encodeChat([user], { tools, kind: 'k' }), render([user], { tools, kind: 'k' }));
  t.is(here, 0);
  await background.encodeChat([user]);
  t.is(here, 1, 'a short one is filled in at once');
  const values = { strange: () => 7 };
  t.deepEqual(await background.encodeChat(messages, values), render(messages, values));
  t.is(here, 2);
  await t.throwsAsync(background.encodeChat([...messages, { role: 'no role', content: '' }]), { code: 'KV_MODEL_INVALID', message: /"no role"/ });
});

test('bytes of tokens are those of their text, also of parts of characters', (t) => {
  const tokenizer = new LlamaTokenizer(storyteller);
  for (const text of ['a fox', 'grüße', '🦊', '\n\t ', '你好']) {
    const bytes = tokenizer.encode(text).flatMap((token) => [...tokenizer.bytesOf(token) ?? []]);
    t.is(Buffer.from(bytes).toString(), text);
  }
  t.is(tokenizer.bytesOf(tokenizer.endTokens[0]!), undefined);
  t.is(tokenizer.bytesOf(1e6), undefined);
});
