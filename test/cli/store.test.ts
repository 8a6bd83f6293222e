import { readFileSync, writeFileSync } from 'node:fs';
import * as path from 'node:path';

import test from 'ava';

import { Random } from '#internal/base/random.js';
import { bytesOf, inFolder, keyOf, options, orderOf, recordOf, segmentsOf, withStore } from '../store/store-world.js';
import { runVkv, runVkvJson, spawnVkv } from './run-vkv.js';
import { costly, slow } from '../runner/slow.js';

test('`vkv store info` lists each namespace of a directory', (t) => inFolder(async (directory) => {
  await withStore(options(directory), async (store) => {
    for (const number of [1, 2]) await store.put(recordOf(number));
    await store.put(recordOf(3, 0, [16, 3_200]));
    t.deepEqual(await store.reorder(keyOf(3), orderOf(new Random(1))), { stored: true });
    await store.remove([keyOf(2)]);
  });
  await withStore(options(directory, { namespace: Buffer.from('another') }), (store) => store.put(recordOf(1)));
  const { namespaces } = await runVkvJson(['store', 'info', directory]) as { namespaces: Record<string, number>[] };
  t.deepEqual(namespaces.map(({ records, reordered, tokens }) => [records, reordered, tokens]).toSorted(), [[1, 0, 16], [2, 1, 32]]);
  const { stdout, exitCode } = await runVkv(['store', 'info', directory]);
  t.is(exitCode, 0);
  t.is((await runVkv(['store', 'verify', directory])).exitCode, 0);
  t.regex(stdout, /namespace +records +reordered +tokens +live +removed +files +segments +O_DIRECT\nkvs-[0-9a-f]{32} +\d.* (on|unsupported) *\n/);
}));

test('`vkv store verify` names what is damaged and ends with 1', (t) => inFolder(async (directory) => {
  await withStore(options(directory), async (store) => {
    for (const number of [1, 2]) await store.put(recordOf(number));
  });
  t.is((await runVkv(['store', 'verify', directory])).exitCode, 0);
  const file = segmentsOf(directory)[0]!;
  const bytes = readFileSync(file);
  bytes[bytes.indexOf(bytesOf(2, 0, 3, 700))]! ^= 1;
  writeFileSync(file, bytes);
  const { exitCode, stdout } = await runVkv(['store', 'verify', directory, '--json']);
  t.is(exitCode, 1);
  t.like((JSON.parse(stdout) as { namespaces: object[] }).namespaces[0], { records: 2, corrupt: [Buffer.from(keyOf(2)).toString('hex')], isInterrupted: false });
}));

costly('starts the command')('`vkv store gc` gives bytes back', (t) => inFolder(async (directory) => {
  await withStore(options(directory), async (store) => {
    for (let number = 0; number < 8; number += 1) await store.put(recordOf(number));
    await store.remove([0, 1, 2, 3, 4, 5].map(keyOf));
  });
  const { namespaces } = await runVkvJson(['store', 'gc', directory], spawnVkv) as { namespaces: Record<string, number>[] };
  t.like(namespaces[0], { droppedSegments: 1, copiedBytes: 2 * 8_192 });
}));

slow('starts the command')('`vkv store` shows how far it is on a terminal, and nothing of it where stderr is none', (t) => inFolder(async (directory) => {
  await withStore(options(directory), async (store) => {
    for (let number = 0; number < 8; number += 1) await store.put(recordOf(number));
    await store.remove([0, 1, 2, 3, 4, 5].map(keyOf));
  });
  const onTerminal = { NODE_OPTIONS: `--require ${JSON.stringify(path.join(__dirname, 'on-terminal.js'))}` };
  for (const [operation, status] of [
    ['info', '0 records of 2'], ['verify', 'starting'], ['gc', '0 B of [\\d.]+ KiB removed given back'],
  ] as const) {
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
  t.regex(missing.stderr, /^vkv: KV_STORE_UNAVAILABLE: .*ENOENT.* There is no such directory/);
  for (const [operation, code] of [['info', 0], ['verify', 1], ['gc', 1]] as const) {
    const { stdout, exitCode } = await runVkv(['store', operation, directory]);
    t.deepEqual({ stdout, exitCode }, { stdout: 'No disk store here.\n', exitCode: code });
  }
  await withStore(options(directory), async () => {
    const { exitCode, stderr } = await runVkv(['store', 'info', directory]);
    t.is(exitCode, 1);
    t.regex(stderr, /^vkv: KV_STORE_LOCKED: .* is open in process/);
  });
  t.is((await runVkv(['store', 'infos', directory])).exitCode, 2);
}));
