import { mkdtempSync, rmSync } from 'node:fs';
import { createServer } from 'node:http';
import { once } from 'node:events';
import type { AddressInfo } from 'node:net';
import { tmpdir } from 'node:os';
import * as path from 'node:path';

import { KvCache, OnlineScheduler } from 'virtual-kv';
import { LlamaEngine, LlamaModel, LlamaTokenizer } from 'virtual-kv/llama';

import { replaceProcessClock } from '../helpers/patient.js';
import { runVkv, serveOnce } from './run-vkv.js';
import { costly, slow } from '../runner/slow.js';

const storyteller = 'examples/llama/storyteller';

slow('starts the server')('a command line that is wrong, a folder that is no model and a port in use are one line each', async (t) => {
  const folder = mkdtempSync(path.join(tmpdir(), 'vkv-model-'));
  t.teardown(() => rmSync(folder, { recursive: true }));
  const other = createServer().listen(0, '127.0.0.1');
  await once(other, 'listening');
  t.teardown(() => other.close());
  const { port } = other.address() as AddressInfo;
  const cases: readonly (readonly [parameters: readonly string[], exitCode: number, line: string])[] = [
    [[], 2, 'KV_INVALID_OPTION: `--model` .*missing'],
    [['--model', storyteller, '--onnx', folder], 2, `KV_INVALID_OPTION: \`--model\` .*got '${storyteller}'`],
    [['--onnx', folder, '--weights', 'int8'], 2, "KV_INVALID_OPTION: `--weights` .*got 'int8'"],
    [['--onnx', folder], 1, 'KV_MODEL_INVALID: .*\\.onnx'],
    [['--model', folder], 1, 'KV_MODEL_INVALID: .*tokenizer\\.json'],
    [['--model', storyteller, '--slots', '0'], 2, 'KV_INVALID_OPTION: .*--slots'],
    [['--model', storyteller, '--port', String(port)], 1, `EADDRINUSE: .*127\\.0\\.0\\.1.*${port}.*\`--port\``],
    [['--model', storyteller, '--port', '70000'], 2, 'KV_INVALID_OPTION: `--port` .*70,000'],
    [['--model', storyteller, '--off', 'encoder'], 2, "KV_UNKNOWN_OPTION: .*'--off'"],
    [['--model', storyteller, '--results', 'nearly'], 2, 'KV_INVALID_OPTION: .*--results'],
    [['--model', storyteller, '--api-key', ''], 2, 'KV_INVALID_OPTION: '],
  ];
  for (const [parameters, code, line] of cases) {
    const { exitCode, stderr } = await runVkv(['serve', ...parameters]);
    t.regex(stderr, new RegExp(`^vkv: ${line}.*\\n$`), parameters.join(' '));
    t.is(exitCode, code, parameters.join(' '));
  }
});

costly('starts the server')('a name, a size and a limit are what clients and the first lines say', async (t) => {
  const { exitCode, stdout, models } = await serveOnce(
    ['--model', storyteller, '--name', 'teller', '--slots', '2', '--max-tokens', '256', '--memory-bytes', '16MiB',
      '--driver', 'host'], undefined, true,
  );
  t.is(exitCode, 0);
  t.deepEqual(models, ['teller']);
  t.regex(stdout, /^teller on .*: 2 slots, 256 tokens each, 16 MiB for K and V$/m);
  t.regex(stdout, /^Layout: fused, 64 tokens a row, pages of 64 KiB$/m);
});

slow('starts the server')('`--kv-dtype` and `--results` are the type of K and V and the results of the engine that answers, to the bit', async (t) => {
  const prompt = 'Once upon a time there was a fox who lived in a forest. '.repeat(8);
  const [model, tokenizer] = [new LlamaModel(storyteller, { threads: 2 }), new LlamaTokenizer(storyteller)];
  const computed = async (dtype: 'float16' | 'float32', results: 'fast' | 'exact'): Promise<number[]> => {
    using cache = new KvCache({ model: model.shape(dtype), slots: 2, maxTokens: 512, memoryBudgetBytes: 2 ** 24, driver: 'host', pageBytes: 65_536 });
    using engine = new LlamaEngine({ model, cache, results });
    const scheduler = new OnlineScheduler({ cache, engine });
    const { logProbabilities } = await scheduler.submit({ tokens: tokenizer.encode(prompt), maxNewTokens: 12, logProbabilities: 1 }).result;
    await scheduler.close();
    return logProbabilities!.map(({ logProbability }) => logProbability);
  };
  const parameters = ['--model', storyteller, '--threads', '2', '--driver', 'host', '--slots', '2', '--max-tokens', '512', '--memory-bytes', '16MiB'];
  const { exitCode, answer } = await serveOnce([...parameters, '--kv-dtype', 'float32', '--results', 'exact'], async (url) => {
    const body = JSON.stringify({ model: 'storyteller', prompt, max_tokens: 12, temperature: 0, logprobs: 1 });
    const answers: number[][] = [];
    for (let time = 0; time < 2; time += 1) { // the second finds the first's text
      const { choices } = await (await fetch(`${url}/v1/completions`, { method: 'POST', headers: { 'content-type': 'application/json' }, body })).json() as
        { choices: { logprobs: { token_logprobs: number[] } }[] };
      answers.push(choices[0]!.logprobs.token_logprobs);
    }
    return answers;
  });
  t.is(exitCode, 0);
  const expected = await computed('float32', 'exact');
  t.deepEqual(answer, [expected, expected]);
  t.notDeepEqual(await computed('float16', 'exact'), expected);
  t.notDeepEqual(await computed('float32', 'fast'), expected);
});

slow('starts the server')('`--disk`, `--host-tier` and `--layout`: the end stores what was answered, and the next start finds it', async (t) => {
  replaceProcessClock(t);
  const folder = mkdtempSync(path.join(tmpdir(), 'vkv-disk-'));
  t.teardown(() => rmSync(folder, { recursive: true }));
  const parameters = ['--model', storyteller, '--slots', '2', '--max-tokens', '256', '--memory-bytes', '16MiB', '--layout', 'fused',
    '--host-tier', '16MiB', '--disk', `${path.join(folder, 'store')}=64MiB`];
  const start = async (): Promise<number | undefined> => {
    const { exitCode, answer, stderr } = await serveOnce(parameters, async (url) => {
      const body = JSON.stringify({ prompt: 'Once upon a time there was a fox who lived in a forest. '.repeat(6), max_tokens: 2 });
      const response = await fetch(`${url}/v1/completions`, { method: 'POST', headers: { 'content-type': 'application/json' }, body });
      return (await response.json() as { usage: { prompt_tokens_details: { cached_tokens: number } } }).usage.prompt_tokens_details.cached_tokens;
    });
    t.is(exitCode, 0, stderr);
    return answer;
  };
  t.is(await start(), 0);
  t.true((await start())! > 50);
});

slow('starts the server')('flags that say nothing are one line each', async (t) => {
  const cases: readonly (readonly [parameters: readonly string[], exitCode: number, line: string])[] = [
    [['--disk', '/tmp/vkv'], 2, 'KV_INVALID_OPTION: .*--disk.* a folder and '], [['--disk', '/tmp/vkv=much'], 2, 'KV_INVALID_OPTION: .*--disk.*much'],
    [['--layout', 'round'], 2, 'KV_INVALID_OPTION: .*--layout'], [['--max-urgency', '256'], 2, 'KV_INVALID_OPTION: `--max-urgency` '],
    [['--api-key', 'two words'], 2, 'KV_INVALID_OPTION: .*ASCII'], [['--api-keys', '/nowhere/keys'], 1, 'ENOENT'],
    [['--redis', 'http://127.0.0.1:1'], 2, 'KV_INVALID_OPTION: '],
  ];
  for (const [parameters, code, line] of cases) {
    const { exitCode, stderr } = await runVkv(['serve', '--model', storyteller, '--memory-bytes', '16MiB', ...parameters]);
    t.regex(stderr, new RegExp(`^vkv: ${line}.*\\n$`), parameters.join(' '));
    t.is(exitCode, code, parameters.join(' '));
  }
});
