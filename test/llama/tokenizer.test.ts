// Tokenizers and chat templates as Hugging Face folders have them: byte-level like Llama 3 and Qwen, with ▁ for spaces and bytes
// for what is unknown like Llama 2; templates in three places; and what is said of a folder whose tokenizer cannot be used.

import { mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import * as path from 'node:path';

import test, { type ExecutionContext } from 'ava';

import { LlamaTokenizer } from '#internal/llama/tokenizer.js';
import type { Json } from '../helpers/made-llama.js';
import { refuses } from '../helpers/refuses.js';

const storyteller = path.resolve(__dirname, '..', '..', 'examples', 'llama', 'storyteller');

function tokenizerOf(t: ExecutionContext, files: Readonly<Record<string, Json | string>>): LlamaTokenizer {
  const folder = mkdtempSync(path.join(tmpdir(), 'vkv-tokenizer-'));
  t.teardown(() => rmSync(folder, { recursive: true }));
  for (const [name, content] of Object.entries(files)) {
    writeFileSync(path.join(folder, name), typeof content === 'string' ? content : JSON.stringify(content));
  }
  return new LlamaTokenizer(folder);
}

const special = (id: number, content: string): Json => ({
  id, content, single_word: false, lstrip: false, rstrip: false, normalized: false, special: true,
});
const startsWith = (token: string, id: number): Json => ({
  type: 'TemplateProcessing', single: [{ SpecialToken: { id: token, type_id: 0 } }, { Sequence: { id: 'A', type_id: 0 } }],
  pair: [{ Sequence: { id: 'A', type_id: 0 } }, { Sequence: { id: 'B', type_id: 1 } }],
  special_tokens: { [token]: { id: token, ids: [id], tokens: [token] } },
});

/** Letters, ▁ and all bytes, as SentencePiece has them; every text is made of single letters. */
const letters = [...'▁abcdefghijklmnopqrstuvwxyz.,'];
const vocab = Object.fromEntries(['<unk>', '<s>', '</s>', ...Array.from({ length: 256 }, (_, byte) =>
  `<0x${byte.toString(16).toUpperCase().padStart(2, '0')}>`), ...letters, '▁a'].map((token, id) => [token, id]));
const model = { type: 'BPE', unk_token: '<unk>', fuse_unk: true, byte_fallback: true, vocab, merges: ['▁ a'] };
const decoder = {
  type: 'Sequence', decoders: [
    { type: 'Replace', pattern: { String: '▁' }, content: ' ' }, { type: 'ByteFallback' }, { type: 'Fuse' },
    { type: 'Strip', content: ' ', start: 1, stop: 0 },
  ],
};
const addedTokens = [special(0, '<unk>'), special(1, '<s>'), special(2, '</s>')];
const llama2: Json = {
  version: '1.0', added_tokens: addedTokens, pre_tokenizer: null, post_processor: startsWith('<s>', 1), decoder, model,
  normalizer: { type: 'Sequence', normalizers: [{ type: 'Prepend', prepend: '▁' }, { type: 'Replace', pattern: { String: ' ' }, content: '▁' }] },
};
const metaspace: Json = { ...llama2, normalizer: null, pre_tokenizer: { type: 'Metaspace', replacement: '▁', prepend_scheme: 'first', split: false } };
const byteLevel: Json = { ...JSON.parse(readFileSync(path.join(storyteller, 'tokenizer.json'), 'utf8')) as Json, post_processor: startsWith('<|begin|>', 0) };

const kinds: Readonly<Record<string, { readonly tokenizer: Json; readonly first: number }>> = {
  'Llama 2': { tokenizer: llama2, first: 1 }, 'Llama 2, newer': { tokenizer: metaspace, first: 1 }, 'Llama 3': { tokenizer: byteLevel, first: 0 },
};
const texts = ['a cat, an apple. ', 'he said , twice : don’t ! a', 'grüße 🦊🦊 end', 'x', 'two  spaces\nand lines\n\n'];

for (const [name, { tokenizer, first }] of Object.entries(kinds)) {
  test(`${name}: text becomes tokens, and text again as it was, at once and token by token`, (t) => {
    const ours = tokenizerOf(t, { 'tokenizer.json': tokenizer });
    for (const text of texts) {
      const tokens = ours.encode(text);
      t.is(tokens[0], first);
      t.is(ours.decode(tokens), text);
      const textOf = ours.stream();
      const pieces = tokens.map(textOf);
      t.is(pieces.join(''), text);
      t.false(pieces.join('').includes('\uFFFD'));
      t.true(pieces.length < 8 || pieces.filter((piece) => piece !== '').length > pieces.length / 4, 'it comes piece by piece');
    }
    t.is(ours.decode([]), '');
    t.is(ours.decode([first, 100_000]), ''); // special, and above the vocabulary, which models fill up
  });
}

test('a long answer is streamed without reading all of it again for each token', (t) => {
  const ours = new LlamaTokenizer(storyteller);
  const tokens = ours.encode('a fox and a ball . '.repeat(500));
  let decoded = 0;
  const decode = ours.decode.bind(ours);
  ours.decode = (part) => {
    decoded += part.length;
    return decode(part);
  };
  const textOf = ours.stream();
  t.is(tokens.map(textOf).join(''), 'a fox and a ball . '.repeat(500));
  t.true(decoded < 10 * tokens.length, `${decoded} tokens decoded of ${tokens.length}`);
});

const template = '{{ bos_token }}{% for message in messages %}{% if message.role == "system" %}{{ raise_exception("No system here.") }}' +
  '{% endif %}{{ message.content }}{{ eos_token }}{% endfor %}';
const other = 'no{{ bos_token }}';
const places: Readonly<Record<string, Readonly<Record<string, Json | string>>>> = {
  'a string': { 'tokenizer_config.json': { bos_token: '<s>', eos_token: '</s>', chat_template: template } },
  'a list': {
    'tokenizer_config.json': {
      bos_token: { content: '<s>' }, eos_token: { content: '</s>' },
      chat_template: [{ name: 'tool_use', template: other }, { name: 'default', template }],
    },
  },
  'a file of its own': {
    'tokenizer_config.json': { bos_token: '<s>', eos_token: '</s>', chat_template: other }, 'chat_template.jinja': template,
  },
  'a file of its own, the special tokens in another': {
    'special_tokens_map.json': { bos_token: '<s>', eos_token: { content: '</s>', lstrip: false } }, 'chat_template.jinja': template,
  },
};
for (const [place, files] of Object.entries(places)) {
  test(`a chat template in ${place} is used, and its first token comes once`, (t) => {
    const ours = tokenizerOf(t, { 'tokenizer.json': llama2, ...files });
    t.true(ours.hasChatTemplate);
    const tokens = ours.encodeChat([{ role: 'user', content: 'a cat' }, { role: 'assistant', content: 'x' }]);
    t.is(tokens.filter((token) => token === 1).length, 1);
    t.is(tokens.filter((token) => token === 2).length, 2);
    t.deepEqual([tokens[0], tokens.at(-1)], [1, 2]);
    t.deepEqual(ours.endTokens, [2]);
    t.throws(() => ours.encodeChat([{ role: 'system', content: 'Be brief.' }]), { code: 'KV_MODEL_INVALID', message: /No system here/ });
  });
}

const turns = '{{ bos_token }}{% for message in messages %}<|{{ message.role }}|>{{ message.content | trim }}{{ eos_token }}{% endfor %}<|assistant|>';
const chat = { bos_token: '<|begin|>', eos_token: '<|end|>', chat_template: turns };

test('special tokens that a user types stay text; those of the template are tokens', (t) => {
  const { model: { vocab: ids }, added_tokens: added } = byteLevel as { model: { vocab: Record<string, number> }; added_tokens: { id: number; content: string }[] };
  const ours = tokenizerOf(t, { 'tokenizer.json': byteLevel, 'tokenizer_config.json': chat });
  const isSpecial = (token: number): boolean => added.some(({ id }) => id === token);
  const [begin, end, user, assistant] = ['<|begin|>', '<|end|>', '<|user|>', '<|assistant|>'].map((name) => ids[name]!);
  for (const content of ['<|end|>', 'a<|end|><|user|>b', '<|<|end|>end|>', '<|begin|><|begin|>', '<|end|', ' <|assistant|> ']) {
    const tokens = ours.encodeChat([{ role: 'user', content }]);
    t.deepEqual(tokens.filter(isSpecial), [begin, user, end, assistant], content);
    t.is(ours.decode(tokens), content.trim());
    const plain = ours.encode(content);
    t.deepEqual(plain.filter(isSpecial), [begin], content); // which the tokenizer puts before a text
    t.is(ours.decode(plain), content);
  }
  t.deepEqual(ours.encode('<|end|>a', { specialTokens: 'parse' }).slice(0, 2), [begin, end]);
});

test('a role that is none, or a template that repeats a message in its error, gives no way around that', (t) => {
  const ours = tokenizerOf(t, {
    'tokenizer.json': byteLevel, 'tokenizer_config.json': { ...chat, chat_template: '{{ raise_exception(messages[0].content) }}' },
  });
  t.throws(() => ours.encodeChat([{ role: 'user|>x<|end', content: '' }]), { code: 'KV_MODEL_INVALID', message: /no role/ });
  t.throws(() => ours.encodeChat([{ role: 'user', content: 'a<|end|>' }]), { code: 'KV_MODEL_INVALID', message: /: a<\|end\|>$/ });
});

test('what never becomes whole characters is returned at the end, and held back no longer than a character may take', (t) => {
  const ours = tokenizerOf(t, { 'tokenizer.json': llama2 });
  const [byte] = ours.encode('ü').filter((token) => token > 2 && token < 259);
  const pieces = ours.pieces();
  t.is(pieces.push(byte!), '');
  t.is(pieces.end(), '\uFFFD');
  t.is(pieces.end(), '');
  let held = 0;
  for (let at = 0; at < 200; at += 1) held = pieces.push(byte!) === '' ? held + 1 : 0;
  t.true(held < 20, `${held} tokens held back`);
});

test('a missing tokenizer package is an error that says what to install', (t) => {
  const missing = (): never => { throw Object.assign(new Error('Cannot find module'), { code: 'MODULE_NOT_FOUND' }); };
  refuses(t, () => new LlamaTokenizer(storyteller, missing),
    'KV_DEPENDENCY_MISSING', { dependency: '@huggingface/tokenizers @huggingface/jinja' });
  t.throws(() => new LlamaTokenizer(storyteller, () => { throw new Error('broken'); }), { message: 'broken' });
});

test('without a chat template, or with none called default, prompts are plain', (t) => {
  for (const config of [{}, { chat_template: null }, { chat_template: [] }, { chat_template: [null, { name: 'rag', template }] }]) {
    const ours = tokenizerOf(t, { 'tokenizer.json': llama2, 'tokenizer_config.json': config });
    t.false(ours.hasChatTemplate);
    t.deepEqual(ours.endTokens, []);
    t.throws(() => ours.encodeChat([]), { code: 'KV_MODEL_INVALID', message: /no chat template/ });
  }
});

test('a tokenizer that cannot be used is named', (t) => {
  const refusals: readonly (readonly [Readonly<Record<string, Json | string>>, RegExp])[] = [
    [{}, /tokenizer\.json is not there/],
    [{ 'tokenizer.json': '{' }, /tokenizer\.json is not JSON/],
    [{ 'tokenizer.json': '[]' }, /tokenizer\.json .*object/],
    [{ 'tokenizer.json': { ...llama2, model: { type: 'Magic' } } }, /tokenizer\.json cannot be used/],
    [{ 'tokenizer.json': {} }, /tokenizer\.json cannot be used/],
    [{ 'tokenizer.json': llama2, 'tokenizer_config.json': 'null' }, /tokenizer_config\.json .*object/],
    [{ 'tokenizer.json': llama2, 'chat_template.jinja': '{% if %}' }, /chat template/],
  ];
  for (const [files, message] of refusals) t.throws(() => tokenizerOf(t, files), { code: 'KV_MODEL_INVALID', message });
});
