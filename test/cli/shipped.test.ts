// Names of what comes with the package stand for it wherever a command is called, unless something of that name is there.

import { mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import * as path from 'node:path';

import test from 'ava';

import { runVkv } from './run-vkv.js';

let folder: string;
test.before(() => { folder = mkdtempSync(path.join(tmpdir(), 'vkv-shipped-')); });
test.after.always(() => rmSync(folder, { recursive: true }));

test('a model and traces by their names, from a folder that has neither', async (t) => {
  const plan = await runVkv(['plan', '--config', 'storyteller', '--json'], {}, folder);
  t.is((JSON.parse(plan.stdout) as { model: { source: string } }).model.source, 'config', plan.stderr);
  for (const name of ['conversations', 'requests']) {
    const { stdout, stderr } = await runVkv(['replay', name, '--limit', '2', '--driver', 'mock', '--verify', 'off', '--json'], {}, folder);
    t.is((JSON.parse(stdout) as { requests: number }).requests, 2, stderr);
  }
});

test('a file of that name comes first', async (t) => {
  writeFileSync(path.join(folder, 'requests'), 'TIMESTAMP,ContextTokens,GeneratedTokens\n2024-05-10 00:00:00,100,10\n');
  const { stdout, stderr } = await runVkv(['replay', 'requests', '--driver', 'mock', '--verify', 'off', '--json'], {}, folder);
  t.is((JSON.parse(stdout) as { requests: number }).requests, 1, stderr);
});

for (const words of [['serve', '--model', 'nowhere'], ['serve', '--onnx', 'nowhere'], ['plan', '--config', 'nowhere'], ['replay', 'nowhere'], ['quantize', 'nowhere', 'x.gguf']]) {
  test(`vkv ${words.join(' ')} says that it is not there`, async (t) => {
    const { exitCode, stderr } = await runVkv(words, {}, folder);
    t.is(exitCode, 1);
    t.regex(stderr, /^vkv: KV_(MODEL|CONFIG)_INVALID: nowhere\b/);
  });
}
