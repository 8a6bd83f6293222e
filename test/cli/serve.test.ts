import { mkdtempSync, rmSync } from 'node:fs';
import { createServer } from 'node:http';
import { once } from 'node:events';
import type { AddressInfo } from 'node:net';
import { tmpdir } from 'node:os';
import * as path from 'node:path';

import test from 'ava';

import { runVkv, serveOnce } from './run-vkv.js';

const storyteller = 'examples/llama/storyteller';

test('a command line that is wrong, a folder that is no model and a port in use are one line each', async (t) => {
  const folder = mkdtempSync(path.join(tmpdir(), 'vkv-model-'));
  t.teardown(() => rmSync(folder, { recursive: true }));
  const other = createServer().listen(0, '127.0.0.1');
  await once(other, 'listening');
  t.teardown(() => other.close());
  const { port } = other.address() as AddressInfo;
  const cases: readonly (readonly [readonly string[], number, RegExp])[] = [
    [[], 2, /^vkv: KV_INVALID_OPTION: Required option '--model <folder>' not specified\.\n$/],
    [['--model', folder], 1, /^vkv: KV_MODEL_INVALID: .*tokenizer\.json is not there\. .*\n$/],
    [['--model', storyteller, '--slots', '0'], 2, /^vkv: KV_INVALID_OPTION: .*at least 1.*\n$/],
    [['--model', storyteller, '--port', String(port)], 1, /^vkv: EADDRINUSE: .*\n$/],
    [['--model', storyteller, '--port', '70000'], 2, /^vkv: KV_INVALID_OPTION: `--port` must be an integer from 0 to 65,535, got 70,000\.\n$/],
    [['--model', storyteller, '--api-key', ''], 2, /^vkv: KV_INVALID_OPTION: /],
  ];
  for (const [parameters, code, message] of cases) {
    const { exitCode, stderr } = runVkv(['serve', ...parameters]);
    t.regex(stderr, message, parameters.join(' '));
    t.is(exitCode, code, parameters.join(' '));
  }
});

test('a name, a size and a limit are what clients and the first lines say', async (t) => {
  const { exitCode, stdout, models } = await serveOnce(['--model', storyteller, '--name', 'teller', '--slots', '2', '--max-tokens', '256', '--memory-bytes', '16MiB']);
  t.is(exitCode, 0);
  t.deepEqual(models, ['teller']);
  t.regex(stdout, /^teller on .*: 2 slots, 256 tokens each, 16 MiB for K and V$/m);
});
