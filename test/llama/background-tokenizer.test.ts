// Tokenizing on a worker thread: the same tokens as on the JavaScript thread, in order; what is given up, what is closed and what fails;
// and that the worker keeps no process alive.

import { spawnSync } from 'node:child_process';
import { cpSync, readFileSync, writeFileSync } from 'node:fs';
import * as path from 'node:path';

import test from 'ava';

import { BackgroundTokenizer } from '#internal/llama/background-tokenizer.js';
import { Random } from '#internal/base/random.js';
import { LlamaTokenizer } from '#internal/llama/tokenizer.js';
import { TokenizerThread } from '#internal/llama/tokenizer-thread.js';
import { seedOf } from '../helpers/seed.js';
import { folderOf } from '../helpers/temporary-folder.js';
import { slow } from '../runner/slow.js';

const seed = seedOf('background tokenizer');
const storyteller = path.resolve(__dirname, '..', '..', 'examples', 'llama', 'storyteller');
const tokenizer = new LlamaTokenizer(storyteller);
const pieces = ['the fox ', 'and a ball. ', '\n\n', '  ', 'grüße ', '🦊', '\uD83E', 'don’t', '7', '你好', ...(JSON.parse(readFileSync(path.join(storyteller, 'tokenizer.json'), 'utf8')) as
  { added_tokens: { content: string }[] }).added_tokens.map(({ content }) => content)];

function textOf(random: Random, count: number): string {
  return Array.from({ length: count }, () => pieces[random.integer(pieces.length)]!).join('');
}

slow('starts processes, or tokenizes long texts')(`long and short texts have the tokens that they have on the JavaScript thread, many at once (seed ${seed})`, async (t) => {
  const random = new Random(seed);
  await using background = new BackgroundTokenizer({ tokenizer, minBackgroundCharacters: 40 });
  const texts = Array.from({ length: 300 }, () => textOf(random, 1 + random.integer(60)));
  t.true(texts.some(({ length }) => length < 40) && texts.some(({ length }) => length > 200));
  await Promise.all(texts.map(async (text, index) => {
    const specialTokens = index % 2 === 0 ? 'text' : 'parse';
    t.deepEqual(await background.encode(text, { specialTokens }), tokenizer.encode(text, { specialTokens }));
    const messages = [{ role: 'user', content: text }];
    t.deepEqual(await background.encodeChat(messages), tokenizer.encodeChat(messages));
    t.is(background.decode(tokenizer.encode(text)), tokenizer.decode(tokenizer.encode(text)));
  }));
  t.deepEqual(background.endTokens, tokenizer.endTokens);
  t.is(background.hasChatTemplate, tokenizer.hasChatTemplate);
  await t.throwsAsync(background.encodeChat([{ role: 'no role', content: 'a'.repeat(99) }]), { code: 'KV_MODEL_INVALID', message: /"no role"/ });
});

test('texts are answered in their order, and a short one does not wait behind a long one', async (t) => {
  await using background = new BackgroundTokenizer({ tokenizer, minBackgroundCharacters: 100 });
  const order: string[] = [];
  const ask = async (name: string, text: string): Promise<void> => {
    await background.encode(text);
    order.push(name);
  };
  await Promise.all([ask('longest', 'a fox '.repeat(5_000)), ask('long', 'a fox '.repeat(500)), ask('longer', 'a fox '.repeat(1_000)), ask('short', 'a fox')]);
  t.deepEqual(order, ['short', 'longest', 'long', 'longer']);
});

slow('starts processes, or tokenizes long texts')('a text that is given up ends at once, whether it waits or is under way, and the others go on', async (t) => {
  await using background = new BackgroundTokenizer({ tokenizer, minBackgroundCharacters: 1 });
  const text = 'a fox and a ball. '.repeat(2_000);
  const first = new AbortController();
  const second = new AbortController();
  const jobs = [background.encode(text, { signal: first.signal }), background.encode(text, { signal: second.signal }), background.encode(text)];
  for (const { reason, controller, job } of [{ reason: 'waits', controller: second, job: jobs[1]! }, { reason: 'runs', controller: first, job: jobs[0]! }]) {
    controller.abort(reason);
    t.is((await t.throwsAsync(job, { code: 'KV_ABORTED' })).cause, reason);
  }
  t.deepEqual(await jobs[2], tokenizer.encode(text));
  await t.throwsAsync(background.encode(text, { signal: first.signal }), { code: 'KV_ABORTED' });
  const unused = new AbortController();
  const tokens = await background.encode(text, { signal: unused.signal });
  unused.abort();
  t.deepEqual(tokens, tokenizer.encode(text));
});

test('closing ends what is under way, and twice is once', async (t) => {
  const background = new BackgroundTokenizer({ tokenizer, minBackgroundCharacters: 10 });
  const jobs = Array.from({ length: 3 }, () => background.encode('a fox and a ball. '.repeat(2_000)));
  const ended = Promise.all(jobs.map((job) => t.throwsAsync(job, { code: 'KV_CLOSED' })));
  const closing = background.close();
  t.is(background.close(), closing);
  t.true(background.isClosed);
  await Promise.all([closing, ended]);
  for (const text of ['a', 'a fox and a ball. ']) await t.throwsAsync(background.encode(text), { code: 'KV_CLOSED' });
  await new BackgroundTokenizer({ tokenizer }).close();
});

test('a tokenizer whose files have changed gives no tokens of other ones, until they are back', async (t) => {
  const folder = folderOf(t);
  cpSync(storyteller, folder, { recursive: true });
  await using background = new BackgroundTokenizer({ tokenizer: new LlamaTokenizer(folder), minBackgroundCharacters: 10 });
  const file = path.join(folder, 'tokenizer.json');
  const before = readFileSync(file, 'utf8');
  writeFileSync(file, `${before} `);
  const text = 'a fox and a ball. ';
  await t.throwsAsync(background.encode(text), { code: 'KV_MODEL_INVALID', message: /changed/ });
  writeFileSync(file, before);
  t.deepEqual(await background.encode(text), tokenizer.encode(text));
  writeFileSync(file, 'no longer read');
  t.deepEqual(await background.encode(text), tokenizer.encode(text));
});

test('where the worker dies, its text fails and the others get another worker', async (t) => {
  const file = path.join(folderOf(t), 'worker.cjs');
  writeFileSync(file, `const { parentPort } = require('node:worker_threads');
    parentPort.on('message', ({ text }) => {
      if (text === 'exit') process.exit(3);
      if (text === 'throw') throw new Error('out of something');
      parentPort.postMessage(text === 'fail' ? { error: new RangeError('no such text') } : { tokens: Int32Array.of(text.length) });
    });`);
  const thread = new TokenizerThread({ model: storyteller, digest: '' }, file);
  const ask = (text: string): Promise<number[]> => thread.encode({ text, specialTokens: 'text' });
  const [one, fail, exit, two, thrown, three] = ['a', 'fail', 'exit', 'aa', 'throw', 'aaa'].map(ask);
  t.deepEqual(await one, [1]);
  await t.throwsAsync(fail!, { instanceOf: RangeError, message: 'no such text' });
  await t.throwsAsync(exit!, { code: 'KV_INTERNAL', message: /tokenizes .*\(3\)/ });
  t.deepEqual(await two, [2]);
  t.like((await t.throwsAsync(thrown!, { code: 'KV_INTERNAL' })).cause, { message: 'out of something' });
  t.deepEqual(await three, [3]);
  await thread.close();
});

const endings: Readonly<Record<string, { readonly script: string; readonly status: number; readonly stdout: string }>> = {
  'that has tokenized and was not closed ends': { script: "(await background.encode(text)).length > 1_000 && console.log('tokens')", status: 0, stdout: 'tokens\n' },
  'that waits for tokens gets them before it ends': { script: "background.encode(text).then(() => console.log('tokens'))", status: 0, stdout: 'tokens\n' },
  'that has given up its text does not wait for it': {
    script: 'const c = new AbortController(); const job = background.encode(text, { signal: c.signal }); c.abort(); await job.catch((e) => console.log(e.code))', status: 0, stdout: 'KV_ABORTED\n',
  },
  'that exits meanwhile exits': { script: "background.encode(text); setImmediate(() => process.exit(7))", status: 7, stdout: '' },
};
for (const [name, { script, status, stdout }] of Object.entries(endings)) {
  slow('starts processes, or tokenizes long texts')(`a process ${name}`, (t) => {
    const program = `import { BackgroundTokenizer, LlamaTokenizer } from 'virtual-kv/llama';
      const background = new BackgroundTokenizer({ tokenizer: new LlamaTokenizer(${JSON.stringify(storyteller)}) });
      const text = 'a fox and a ball. '.repeat(3_000);
      ${script}`;
    const ended = spawnSync(process.execPath, ['--input-type=module', '--eval', program], { encoding: 'utf8', timeout: 500_000, cwd: path.resolve(__dirname, '..', '..') });
    t.deepEqual({ status: ended.status, stdout: ended.stdout, stderr: ended.stderr }, { status, stdout, stderr: '' });
  });
}
