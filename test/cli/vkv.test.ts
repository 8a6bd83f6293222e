import { spawnSync } from 'node:child_process';
import { readFileSync } from 'node:fs';
import * as path from 'node:path';

import test from 'ava';

import { runVkv, spawnVkv, vkvInShell } from './run-vkv.js';
import { costly, slow } from '../runner/slow.js';

const manifest = path.resolve(__dirname, '..', '..', 'package.json');
const { version } = JSON.parse(readFileSync(manifest, 'utf8')) as { version: string };

costly('starts the command')('--version prints the version of the package', async (t) => {
  t.deepEqual(await spawnVkv(['--version']), { exitCode: 0, stdout: `${version}\n`, stderr: '' });
});

test('--help names the commands, and each command has a --help', async (t) => {
  const { exitCode, stdout } = await runVkv(['--help']);
  t.is(exitCode, 0);
  for (const command of ['plan', 'info']) {
    t.regex(stdout, new RegExp(`^  ${command} `, 'm'));
    t.regex((await runVkv([command, '--help'])).stdout, new RegExp(`^Usage: vkv ${command} `));
  }
});

test('help has lines of at most 80 columns', async (t) => {
  const { stdout } = await runVkv(['--help']);
  const commands = [...stdout.matchAll(/^ {2}([a-z][a-z-]*) /gm)].map(([, name]) => name!).filter((name) => name !== 'help');
  t.true(commands.includes('serve') && commands.length >= 8, commands.join(' '));
  for (const words of [[], ...commands.map((name) => [name]), ['store', 'verify']]) {
    const help = (await runVkv([...words, '--help'])).stdout;
    t.deepEqual(help.split('\n').filter((line) => line.length > 80), [], words.join(' '));
  }
});

test('no command, or an unknown one, ends with 2', async (t) => {
  t.is((await runVkv([])).exitCode, 2);
  const { exitCode, stderr } = await runVkv(['plam']);
  t.is(exitCode, 2);
  t.is(stderr, "vkv: KV_INVALID_OPTION: Unknown command 'plam'. Did you mean plan?\n");
  t.is((await runVkv(['foo'])).stderr, "vkv: KV_INVALID_OPTION: Unknown command 'foo'. `vkv --help` lists the commands.\n");
  t.is((await runVkv(['store', 'foo'])).stderr, "vkv: KV_INVALID_OPTION: Unknown command 'foo'. `vkv store --help` lists the commands.\n");
});

slow('starts the command')('a closed pipe ends the command quietly', (t) => {
  const pipeline = `for i in 1 2 3; do ${vkvInShell} plan --compare --json | head -c 1; done; ${vkvInShell} plan | true`;
  const { status, stdout, stderr } = spawnSync('sh', ['-c', pipeline], { encoding: 'utf8' });
  t.is(status, 0);
  t.is(stdout, '{{{');
  t.is(stderr, '');
});

test('VKV_DEBUG adds the stack to an error', async (t) => {
  const { stderr } = await runVkv(['plan', '--config', '/nowhere'], { VKV_DEBUG: '1' });
  t.regex(stderr, /^vkv: KV_CONFIG_INVALID: .*\n.*\n    at /);
});
