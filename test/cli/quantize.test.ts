import { readdirSync, writeFileSync } from 'node:fs';
import * as path from 'node:path';

import test from 'ava';

import { folderOf } from '../helpers/temporary-folder.js';
import { runVkv, runVkvJson, serveOnce, spawnVkv } from './run-vkv.js';
import { slow } from '../runner/slow.js';

const storyteller = 'examples/llama/storyteller';

slow('starts the command and quantizes')('`vkv quantize` writes a file that `vkv serve` serves, and writes over another only when told to', async (t) => {
  const output = path.join(folderOf(t), 'teller.gguf');
  const first = await spawnVkv(['quantize', storyteller, output]);
  t.deepEqual({ exitCode: first.exitCode, stderr: first.stderr }, { exitCode: 0, stderr: '' });
  t.regex(first.stdout, /^\S+teller\.gguf: \d+ tensors, [\d.]+ \wi?B\n$/);
  const second = await runVkv(['quantize', storyteller, output]);
  t.is(second.exitCode, 2);
  t.regex(second.stderr, /^vkv: KV_INVALID_OPTION: `output` .*`--force`.*teller\.gguf.*\n$/);
  const { output: place, tensors, bytes } = await runVkvJson(['quantize', storyteller, output, '--force']);
  t.deepEqual([place, typeof tensors, typeof bytes], [output, 'number', 'number']);
  const { exitCode, models } = await serveOnce(['--model', output, '--max-tokens', '256', '--memory-bytes', '16MiB']);
  t.deepEqual([exitCode, models], [0, ['teller.gguf']]);
});

test('a command line that is wrong, a folder that is no model and a place that is none are one line each, and leave nothing', async (t) => {
  const folder = folderOf(t);
  writeFileSync(path.join(folder, 'file'), '');
  const cases: readonly (readonly [parameters: readonly string[], exitCode: number, line: string])[] = [
    [[storyteller], 2, "KV_INVALID_OPTION: .*'output'"],
    [[storyteller, path.join(folder, 'int8')], 2, 'KV_INVALID_OPTION: `output` .*\\.gguf'],
    [[folder, path.join(folder, 'int8.gguf')], 1, 'KV_MODEL_INVALID: .*config\\.json'],
    [[path.join(folder, 'none.gguf'), path.join(folder, 'int8.gguf')], 1, 'KV_MODEL_INVALID: .*none\\.gguf'],
    [[storyteller, path.join(folder, 'file', 'int8.gguf')], 1, 'KV_OUTPUT_FAILED: .*int8\\.gguf.*ENOTDIR'],
  ];
  for (const [parameters, code, line] of cases) {
    const { exitCode, stderr } = await runVkv(['quantize', ...parameters]);
    t.regex(stderr, new RegExp(`^vkv: ${line}.*\\n$`), parameters.join(' '));
    t.is(exitCode, code, parameters.join(' '));
  }
  t.deepEqual(readdirSync(folder), ['file']);
});
