import { mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import * as path from 'node:path';

import test from 'ava';

import type { MachineInfo } from '#internal/cli/machine-info.js';
import { runVkv, runVkvJson, spawnVkv } from './run-vkv.js';
import { slow } from '../runner/slow.js';

const info = async (run = runVkv): Promise<MachineInfo> => await runVkvJson(['info'], run) as unknown as MachineInfo;

test('--json has the addon, the machine and the host driver', async (t) => {
  const { addon, node, package: version, drivers, host } = await info();
  t.is(node, process.version);
  t.like(addon, { isAvailable: true, version });
  t.true(host.memoryBytes > 0);
  const driver = drivers.at(-1);
  if (driver?.kind !== 'host' || !driver.isAvailable) return t.fail('the host driver is always there');
  t.is(driver.defaultPageBytes % driver.granularityBytes, 0);
  t.true(driver.memory.totalBytes > 0);
  t.true(driver.reservableBytes >= 2 ** 40);
});

test('a machine without a GPU says why in one line', async (t) => {
  const [cuda] = (await info()).drivers;
  t.is(cuda?.kind, 'cuda');
  if (cuda === undefined || cuda.isAvailable) return t.pass('this machine has one');
  t.true(cuda.code.startsWith('KV_DRIVER_'));
  t.regex(cuda.reason, /^[^\n]+\.$/);
  if (cuda.code === 'KV_DRIVER_UNAVAILABLE') t.regex(cuda.reason, /^No cuda driver here: /);
});

test('without --json it is a table with a line for every driver', async (t) => {
  const { exitCode, stdout, stderr } = await spawnVkv(['info']);
  t.is(exitCode, 0);
  t.is(stderr, '');
  for (const name of ['virtual-kv', 'addon', 'node', 'memory', 'mappings', 'cuda', 'host']) {
    t.regex(stdout, new RegExp(`^${name}\\b.*  \\S`, 'm'));
  }
});

slow('starts the command')('an addon that is missing, or built for another version, is part of the answer', async (t) => {
  const withAddon = (file: string): Promise<MachineInfo> => info((words) => spawnVkv(words, { VKV_ADDON: file }));
  const missing = await withAddon('/nowhere/virtual_kv.node');
  t.like(missing.addon, { isAvailable: false, code: 'KV_ADDON_NOT_FOUND' });
  t.deepEqual(missing.drivers, []);

  const folder = mkdtempSync(path.join(tmpdir(), 'vkv-addon-'));
  try {
    const other = path.join(folder, 'addon.cjs');
    writeFileSync(other, "module.exports = { version: '0.0.0', setMakeError() {} };");
    t.like((await withAddon(other)).addon, { isAvailable: false, code: 'KV_ADDON_MISMATCH' });
    t.regex((await spawnVkv(['info'], { VKV_ADDON: other })).stdout, /addon +not loaded\. The addon was built for version 0\.0\.0/);
  } finally {
    rmSync(folder, { recursive: true });
  }
});
