import { spawn, spawnSync } from 'node:child_process';
import { once } from 'node:events';
import { createServer } from 'node:http';
import type { AddressInfo } from 'node:net';

import test, { type ExecutionContext } from 'ava';

import { requestsOf, WatchedWorld, type WatchedOptions } from '../server/watched-world.js';
import { runVkv, spawnVkv, vkvInShell, type Ended } from './run-vkv.js';
import { costly, slow } from '../runner/slow.js';

/** Runs the command beside the server of this process. */
const top = (words: readonly string[], run = runVkv): Promise<Ended> => run(['top', ...words], { VKV_API_KEY: '' });

async function withWorld(t: ExecutionContext, options: WatchedOptions, body: (world: WatchedWorld) => Promise<void>): Promise<void> {
  const world = new WatchedWorld(options);
  try {
    await world.server.listen({ port: 0 });
    await body(world);
  } finally {
    await world.close();
  }
  t.pass();
}

costly('starts the command')('in a pipe it prints once: requests, times, memory, and each slot with letters for what it shares', (t) => withWorld(t, {}, async (world) => {
  await world.fill();
  const { exitCode, stdout, stderr } = await top([`${world.url}/v1/`], spawnVkv);
  t.is(exitCode, 0, stderr);
  t.regex(stdout, /^storyteller {2}host · 12 slots of 4,096 tokens/);
  t.regex(stdout, new RegExp(`^requests +${world.scheduler.runningRequests} running, ${world.scheduler.waitingRequests} waiting · 9 answered, 0 failed`, 'm'));
  t.regex(stdout, /^memory {4}[█▒·]+ \S+ MiB running/m);
  const { slot, number } = requestsOf(world.scheduler).running[0]!;
  t.regex(stdout, new RegExp(`^ *${slot} {2}#${number} .* [A-Z]+█+░*$`, 'm'));
  // eslint-disable-next-line no-control-regex -- escape sequences
  t.notRegex(stdout, /\u001B/);
  t.true(stdout.split('\n').every((line) => line.length <= 100), 'it fits 100 columns');
}));

test('without an address it asks the one that `vkv serve` has by default', async (t) => {
  t.regex((await top(['--help'])).stdout, /\(default:\s+"http:\/\/127\.0\.0\.1:8000"\)/);
});

test('with --json it prints the state, and a key is asked for', (t) => withWorld(t, { apiKeys: ['k'] }, async (world) => {
  const { exitCode, stderr } = await top([world.url]);
  t.is(exitCode, 1);
  t.regex(stderr, /^vkv: KV_REQUEST_INVALID: .*`--api-key`/);
  const { stdout } = await top([world.url.replace('http://', ''), '--json', '--api-key', 'k']);
  t.is((JSON.parse(stdout) as { modelName: string }).modelName, 'storyteller');
}));

test('an address where nothing answers, something else does, or that is none, is one line', async (t) => {
  const other = createServer((_, response) => { response.end('hello'); }).listen(0, '127.0.0.1');
  await once(other, 'listening');
  const { port } = other.address() as AddressInfo;
  const { exitCode, stderr } = await top([`http://127.0.0.1:${port}`]);
  t.is(exitCode, 1);
  t.regex(stderr, /^vkv: KV_SERVER_UNREACHABLE: .*:\d+ .* 200.*\n$/);
  other.close();
  await once(other, 'close');
  t.regex((await top([`http://127.0.0.1:${port}`])).stderr, /^vkv: KV_SERVER_UNREACHABLE: .*: ECONNREFUSED.*\n$/);
  const { error } = JSON.parse((await top([`http://127.0.0.1:${port}`, '--json'])).stderr) as { error: { code: string; recovery: string } };
  t.like(error, { code: 'KV_SERVER_UNREACHABLE', recovery: 'retry' });
  for (const wrong of ['ftp://x', 'http://', 'a b']) {
    const answer = await top([wrong]);
    t.is(answer.exitCode, 2, wrong);
    t.regex(answer.stderr, /^vkv: KV_INVALID_OPTION: /, wrong);
  }
});

const hasScript = spawnSync('script', ['--version']).status === 0;
const terminalTest = hasScript ? slow('starts the command on a terminal') : test.skip;

for (const [how, key] of [['Ctrl-C', '\u0003'], ['q', 'q']] as const) {
  terminalTest(hasScript ? `on a terminal it draws again and again until ${how}, and leaves the terminal as it was` : `${how} (needs script)`, (t) => withWorld(t, {}, async (world) => {
    await world.fill();
    const command = `stty cols 90 rows 14; ${vkvInShell} top ${world.url} --every-ms 100; echo "ended with $?"`;
    const child = spawn('script', ['-qec', command, '/dev/null'], { env: { ...process.env, TERM: 'xterm', VKV_API_KEY: '' } });
    let output = '';
    const drawn = new Promise<void>((resolve) => {
      child.stdout.on('data', (chunk: Buffer) => {
        output += chunk.toString();
        if (output.split('\u001B[H').length > 3) resolve();
      });
    });
    await drawn;
    child.stdin.write(key);
    await once(child, 'close');
    t.regex(output, /\u001B\[\?1049h\u001B\[\?25l/, 'the second screen, without a cursor'); // eslint-disable-line no-control-regex
    t.regex(output, /\u001B\[\?25h\u001B\[\?1049l(?:\^C)?ended with 0\r\n$/, output.slice(-80)); // eslint-disable-line no-control-regex
    const frame = output.split('\u001B[H')[2]!.split('\u001B[J')[0]!;
    t.is(frame.split('\n').length, 13, 'as many lines as the terminal has, but one');
    t.regex(frame, /and \d+ slots more/);
  }));
}
