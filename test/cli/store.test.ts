import { readFileSync, writeFileSync } from 'node:fs';
import * as path from 'node:path';

import test from 'ava';

import { Random } from '#internal/base/random.js';
import { bytesOf, fileOf, inFolder, keyOf, options, orderOf, put, withStore } from '../store/store-world.js';
import { runVkv, runVkvJson, spawnVkv } from './run-vkv.js';
import { slow } from '../runner/slow.js';

test('`vkv store info` lists each namespace of a directory', (t) => inFolder(async (directory) => {
  await withStore(options(directory), async (store) => {
    for (const number of [1, 2]) await put(store, number);
    await put(store, 3, 0, [16, 3_200]);
    t.deepEqual(await store.reorder(keyOf(3), orderOf(new Random(1))), { stored: true });
    await store.remove([keyOf(2)]);
  });
  await withStore(options(directory, { namespace: Buffer.from('another') }), (store) => put(store, 1));
  const { namespaces } = await runVkvJson(['store', 'info', directory]) as { namespaces: Record<string, number>[] };
  t.deepEqual(namespaces.map(({ blocks, reordered, tokens }) => [blocks, reordered, tokens]).toSorted(), [[1, 0, 16], [2, 1, 32]]);
  const { stdout, exitCode } = await runVkv(['store', 'info', directory]);
  t.is(exitCode, 0);
  t.is((await runVkv(['store', 'verify', directory])).exitCode, 0);
  t.regex(stdout, /namespace +blocks +reordered +tokens +bytes +files +O_DIRECT\nkvs-[0-9a-f]{32} +\d.* (on|unsupported) *\n/);
}));

test('`vkv store verify` names what is damaged and ends with 1', (t) => inFolder(async (directory) => {
  await withStore(options(directory), async (store) => {
    for (const number of [1, 2]) await put(store, number);
  });
  t.is((await runVkv(['store', 'verify', directory])).exitCode, 0);
  const file = fileOf(directory, 2);
  const bytes = readFileSync(file);
  bytes[bytes.indexOf(bytesOf(2, 0, 3, 704))]! ^= 1;
  writeFileSync(file, bytes);
  const { exitCode, stdout } = await runVkv(['store', 'verify', directory, '--json']);
  t.is(exitCode, 1);
  t.like((JSON.parse(stdout) as { namespaces: object[] }).namespaces[0], { blocks: 2, corrupt: [keyOf(2)], isInterrupted: false });
}));

slow('starts the command')('`vkv store verify` shows how far it is on a terminal, and nothing of it where stderr is none', (t) => inFolder(async (directory) => {
  await withStore(options(directory), async (store) => {
    for (let number = 0; number < 8; number += 1) await put(store, number);
    await store.remove([0, 1, 2, 3, 4, 5].map(keyOf));
  });
  const onTerminal = { NODE_OPTIONS: `--require ${JSON.stringify(path.join(__dirname, 'on-terminal.js'))}` };
  for (const [operation, status] of [['verify', 'starting']] as const) {
    const { stderr, stdout, exitCode } = await spawnVkv(['store', operation, directory], onTerminal);
    t.is(exitCode, 0, stderr);
    t.regex(stderr, new RegExp(`^\u001B\\[\\?25l\r\u001B\\[K[█░]{28} ${status}`), operation);
    t.true(stderr.endsWith('\r\u001B[K\u001B[?25h'), operation);
    t.false(stdout.includes('\u001B['), operation);
    t.is((await runVkv(['store', operation, directory])).stderr, '', operation);
  }
}));

test('`vkv store` names what it cannot open', (t) => inFolder(async (directory) => {
  const missing = await runVkv(['store', 'info', `${directory}/none`]);
  t.is(missing.exitCode, 1);
  t.regex(missing.stderr, /^vkv: KV_STORE_UNAVAILABLE: .*ENOENT/);
  for (const [operation, code] of [['info', 0], ['verify', 1]] as const) {
    const { stdout, exitCode } = await runVkv(['store', operation, directory]);
    t.deepEqual({ stdout, exitCode }, { stdout: 'No disk store here.\n', exitCode: code });
  }
  await withStore(options(directory), async () => {
    const { exitCode, stderr } = await runVkv(['store', 'info', directory]);
    t.is(exitCode, 1);
    t.regex(stderr, /^vkv: KV_STORE_LOCKED: .* this process/);
  });
  t.is((await runVkv(['store', 'infos', directory])).exitCode, 2);
}));
