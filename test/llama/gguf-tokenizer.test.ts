// The tokenizer of a GGUF file: the tokenizer.json beside it, else what its header has, with the same tokens; what would give other tokens is
// refused by name, and a wrong list is KV_MODEL_INVALID.

import { copyFileSync, readFileSync } from 'node:fs';
import * as path from 'node:path';

import test from 'ava';

import { Random } from '#internal/base/random.js';
import { BackgroundTokenizer } from '#internal/llama/background-tokenizer.js';
import { ggufHeader, type GgufEntry } from '#internal/llama/gguf/gguf-header.js';
import { LlamaTokenizer } from '#internal/llama/tokenizer.js';
import { tokenizerEntries, writeRawGguf, type TokenizerJson } from '../helpers/made-gguf.js';
import { seedOf } from '../helpers/seed.js';
import { folderOf } from '../helpers/temporary-folder.js';
import { slow } from '../runner/slow.js';

const seed = seedOf('gguf tokenizer');
const storyteller = path.resolve(__dirname, '..', '..', 'examples', 'llama', 'storyteller');
const json = JSON.parse(readFileSync(path.join(storyteller, 'tokenizer.json'), 'utf8')) as TokenizerJson;
const config = JSON.parse(readFileSync(path.join(storyteller, 'tokenizer_config.json'), 'utf8')) as { readonly bos_token: string; readonly eos_token: string; readonly chat_template: string };
const entries = tokenizerEntries(json, 'gpt-2', { bos: config.bos_token, eos: config.eos_token, template: config.chat_template });

/** The entries with others in the place of those of the same key; undefined: without that key. */
function withEntries(changes: Readonly<Record<string, GgufEntry | undefined>>): GgufEntry[] {
  return [...entries.filter(([key]) => !(key in changes)), ...Object.values(changes).filter((entry) => entry !== undefined)];
}

slow('vocabularies of 300,000 texts')(`a header's tokenizer gives the tokens of the tokenizer.json that it was made from, here and on a worker thread (seed ${seed})`, async (t) => {
  const file = path.join(folderOf(t), 'model.gguf');
  writeRawGguf(file, entries, []);
  const [theirs, ours] = [new LlamaTokenizer(storyteller), new LlamaTokenizer(file)];
  await using background = new BackgroundTokenizer({ tokenizer: ours, minBackgroundCharacters: 20 });
  const random = new Random(seed);
  const pieces = ['Once upon', ' a fox', '<|end|>', '<|user|>', 'grüße 🦊', '\n\n', ' 12', "'s", '  ', '\uD83E'];
  for (let round = 0; round < 200; round += 1) {
    const text = Array.from({ length: random.integer(20) }, () => pieces[random.integer(pieces.length)]!).join('');
    const messages = [{ role: 'user', content: text }];
    for (const specialTokens of ['text', 'parse'] as const) t.deepEqual(ours.encode(text, { specialTokens }), theirs.encode(text, { specialTokens }));
    t.deepEqual(ours.encodeChat(messages), theirs.encodeChat(messages));
    t.deepEqual(await background.encodeChat(messages), theirs.encodeChat(messages));
    t.is(ours.decode(ours.encode(text)), theirs.decode(theirs.encode(text)));
  }
  t.deepEqual(ours.endTokens, theirs.endTokens);
});

test('the header says which tokens stand around a text', (t) => {
  const file = path.join(folderOf(t), 'model.gguf');
  const plain = new LlamaTokenizer(storyteller).encode('Once upon a time');
  const encoded = (changes: Readonly<Record<string, GgufEntry>>): number[] => {
    writeRawGguf(file, withEntries(changes), []);
    return new LlamaTokenizer(file).encode('Once upon a time');
  };
  const adds = (name: string): Record<string, GgufEntry> => ({ [name]: [`tokenizer.ggml.${name}`, 7, true] });
  t.deepEqual(encoded({}), plain);
  t.deepEqual(encoded(adds('add_bos_token')), [0, ...plain]);
  t.deepEqual(encoded({ ...adds('add_bos_token'), ...adds('add_eos_token') }), [0, ...plain, 1]);
});

test('a tokenizer.json beside the file is read in its place', (t) => {
  const folder = folderOf(t);
  const file = path.join(folder, 'model.gguf');
  writeRawGguf(file, withEntries({ 'tokenizer.ggml.model': ['tokenizer.ggml.model', 8, 'llama'] }), []);
  t.throws(() => new LlamaTokenizer(file), { code: 'KV_MODEL_INVALID', message: /"llama".*tokenizer\.json/ });
  copyFileSync(path.join(storyteller, 'tokenizer.json'), path.join(folder, 'tokenizer.json'));
  t.deepEqual(new LlamaTokenizer(file).encode('Once upon a time'), new LlamaTokenizer(storyteller).encode('Once upon a time'));
});

const refusals: readonly (readonly [Readonly<Record<string, GgufEntry | undefined>>, RegExp])[] = [
  [{ 'tokenizer.ggml.model': undefined }, /no tokenizer/],
  [{ 'tokenizer.ggml.pre': ['tokenizer.ggml.pre', 8, 'tekken'] }, /"tekken"/],
  [{ 'tokenizer.ggml.pre': ['tokenizer.ggml.pre', 8, 'toString'] }, /"toString"/],
  [{ 'tokenizer.ggml.pre': undefined }, /as undefined/],
  [{ 'tokenizer.ggml.tokens': undefined }, /no `tokenizer\.ggml\.tokens`/],
  [{ 'tokenizer.ggml.tokens': ['tokenizer.ggml.tokens', 8, 'all'] }, /no `tokenizer\.ggml\.tokens`/],
  [{ 'tokenizer.ggml.merges': ['tokenizer.ggml.merges', 9, 5, [1, 2]] }, /`tokenizer\.ggml\.merges`/],
  [{ 'tokenizer.ggml.merges': ['tokenizer.ggml.merges', 9, 8, ['a b c']] }, /merge "a b c"/],
  [{ 'tokenizer.ggml.token_type': ['tokenizer.ggml.token_type', 9, 5, [1, 1]] }, / 2 types/],
  [{ 'tokenizer.ggml.eos_token_id': ['tokenizer.ggml.eos_token_id', 4, 99_999] }, /99999.*eos_token_id/],
  [{ 'tokenizer.ggml.add_bos_token': ['tokenizer.ggml.add_bos_token', 4, 1] }, /add_bos_token.*true nor false/],
  [{ 'tokenizer.chat_template': ['tokenizer.chat_template', 8, '{% for'] }, /chat template/],
];
for (const [changes, message] of refusals) {
  test(`a wrong header is named: ${Object.entries(changes).map(([key, entry]) => `${key} ${JSON.stringify(entry?.[3] ?? entry?.[2])}`).join()}`, (t) => {
    const file = path.join(folderOf(t), 'model.gguf');
    writeRawGguf(file, withEntries(changes), []);
    t.throws(() => new LlamaTokenizer(file), { code: 'KV_MODEL_INVALID', message });
  });
}

test('a file that is not there, or no GGUF file, is named', (t) => {
  const file = path.join(folderOf(t), 'model.gguf');
  t.throws(() => new LlamaTokenizer(file), { code: 'KV_MODEL_INVALID', message: /model\.gguf/ });
});

slow('vocabularies of 300,000 texts')('a header has room for a vocabulary of 300,000 texts, as the largest models have', (t) => {
  const header = ggufHeader([['k', 9, 8, new Array<string>(300_000).fill('a')]], []);
  t.is(header.length, Math.ceil((4 + 4 + 8 + 8 + 8 + 1 + 4 + 4 + 8 + 300_000 * 9) / 32) * 32);
});
