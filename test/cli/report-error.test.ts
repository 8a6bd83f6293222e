import test from 'ava';

import { inFlagWords } from '#internal/cli/report-error.js';
import { planCommand } from '#internal/cli/plan.js';
import { replayCommand } from '#internal/cli/replay.js';
import { catalogue, createError, type ErrorCode } from '#internal/base/errors.js';
import { errorExamples } from '../fixtures/error-examples.js';
import { runVkv } from './run-vkv.js';

test('options, paths and options with values become the flags of the command', (t) => {
  const replay = (text: string): string => inFlagWords(text, replayCommand());
  t.is(replay("use `driver: 'host'`, raise `memoryBudgetBytes` (now 1 GiB)"), 'use `--driver host`, raise `--memory-bytes` (now 1 GiB)');
  t.is(replay('`model.kvHeads`, `model.parallel.tensor`, `slots`'), '`--kv-heads`, `--tensor-parallel`, `--max-batch`');
  t.is(inFlagWords('Lower `slots` or `maxTokens`.', planCommand()), 'Lower `--slots` or `--max-tokens`.');
  for (const text of ['`growth: ahead(…)`', '`cuMemMap` failed', '`--layers`', 'slots', '`npm install x`', '`config.json`', '`nvidia-smi`', '``']) t.is(replay(text), text);
});

test('no message of the catalogue names an option where the command has a flag', (t) => {
  const commands = [planCommand(), replayCommand()];
  for (const code of Object.keys(catalogue) as ErrorCode[]) {
    for (const command of commands) {
      const message = inFlagWords(createError(code, errorExamples[code]).message, command);
      for (const name of command.options.map((option) => option.attributeName())) {
        t.false(new RegExp(`\`(?:\\w+\\.)*${name}\\b(?![-.])`).test(message), `${code} of ${command.name()}: ${message}`);
      }
    }
  }
});

test('errors of the API name flags of the command', async (t) => {
  const said = async (...parameters: string[]): Promise<string> => (await runVkv(parameters)).stderr;
  t.regex(await said('replay', '--generate', '1', '--driver', 'cuda', '--layers', '1', '--kv-heads', '1', '--head-dim', '8'), /`--driver host`|^$/);
  t.regex(await said('replay', '--generate', '1', '--driver', 'host', '--max-batch', '2000000'), /`--max-batch` must be an integer from 1 to 1,048,576/);
  t.regex(await said('plan', '--tensor-parallel', '3'), /`--kv-heads` is 8 and cannot be divided/);
  t.regex(await said('plan', '--slots', '100000000', '--max-tokens', '1000000'), /Lower `--slots` or `--max-tokens`/);
});
