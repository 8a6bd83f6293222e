// `vkv serve --onnx` with a real tokenizer and chat template: the storyteller's graph answers over HTTP as the reference engine
// does with the same weights.
// Slow: it starts servers.

import * as path from 'node:path';

import { writeStoryteller } from '../../build-examples/transformers/storyteller.js';
import { serveOnce } from '../cli/run-vkv.js';
import { folderOf } from '../helpers/temporary-folder.js';
import { home, onnxTest } from './onnx-world.js';

const storyteller = path.resolve(__dirname, '..', '..', 'examples', 'llama', 'storyteller');

interface Answer {
  readonly choices: readonly { readonly message: { readonly content: string } }[];
  readonly usage: {
    readonly prompt_tokens: number;
    readonly prompt_tokens_details: { readonly cached_tokens: number };
  };
}

onnxTest('a chat over HTTP is answered as by the reference engine, the second time from the cache', async (t) => {
  const model = path.join(folderOf(t), 'storyteller');
  writeStoryteller(model);
  const ask = async (url: string): Promise<Answer[]> => {
    const messages = [
      { role: 'user', content: 'Tell me a story about a fox and a small bird who live in a forest. '.repeat(8) },
    ];
    const body = JSON.stringify({ model: 'storyteller', messages, max_tokens: 24, temperature: 0 });
    const answers: Answer[] = [];
    for (let time = 0; time < 2; time += 1) {
      const headers = { 'content-type': 'application/json' };
      answers.push(
        (await (await fetch(`${url}/v1/chat/completions`, { method: 'POST', headers, body })).json()) as Answer,
      );
    }
    return answers;
  };
  const size = [
    '--threads',
    '2',
    '--slots',
    '2',
    '--max-tokens',
    '512',
    '--memory-bytes',
    '16MiB',
    '--page-bytes',
    '64KiB',
  ];
  const served = async (words: readonly string[]): Promise<Answer[]> => {
    const { exitCode, stderr, answer } = await serveOnce([...words, ...size], ask, false, home);
    t.is(exitCode, 0, stderr);
    return answer!;
  };
  const answers = await served(['--onnx', model]);
  const expected = await served([
    '--model',
    storyteller,
    '--driver',
    'host',
    '--kv-dtype',
    'float32',
    '--results',
    'exact',
  ]);
  const texts = (of: readonly Answer[]): string[] => of.map(({ choices }) => choices[0]!.message.content);
  t.deepEqual(texts(answers), texts(expected));
  t.true(texts(answers)[0]!.length > 20);
  const {
    prompt_tokens: prompt,
    prompt_tokens_details: { cached_tokens: cached },
  } = answers[1]!.usage;
  t.true(cached > 0.9 * prompt, `${cached} of ${prompt}`);
});
