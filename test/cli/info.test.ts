import { mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import * as path from 'node:path';

import test from 'ava';

import type { MachineInfo } from '#internal/cli/machine-info.js';
import { runVkv, runVkvJson } from './run-vkv.js';
import { slow } from '../runner/slow.js';

const info = (environment?: NodeJS.ProcessEnv): MachineInfo =>
  runVkvJson(['info'], environment) as unknown as MachineInfo;

test('--json has the addon, the machine and the host driver', (t) => {
  const { addon, node, package: version, drivers, host } = info();
  t.is(node, process.version);
  t.like(addon, { isAvailable: true, version });
  t.true(host.memoryBytes > 0);
  const driver = drivers.at(-1);
  if (driver?.kind !== 'host' || !driver.isAvailable) return t.fail('the host driver is always there');
  t.is(driver.defaultPageBytes % driver.granularityBytes, 0);
  t.true(driver.memory.totalBytes > 0);
  t.true(driver.reservableBytes >= 2 ** 40);
});

test('a machine without a GPU says why in one line', (t) => {
  const [cuda] = info().drivers;
  t.is(cuda?.kind, 'cuda');
  if (cuda === undefined || cuda.isAvailable) return t.pass('this machine has one');
  t.true(cuda.code.startsWith('KV_DRIVER_'));
  t.regex(cuda.reason, /^[^\n]+\.$/);
  if (cuda.code === 'KV_DRIVER_UNAVAILABLE') t.regex(cuda.reason, /^No cuda driver here: /);
});

test('without --json it is a table with a line for every driver', (t) => {
  const { exitCode, stdout, stderr } = runVkv(['info']);
  t.is(exitCode, 0);
  t.is(stderr, '');
  for (const name of ['virtual-kv', 'addon', 'node', 'memory', 'mappings', 'cuda', 'host']) {
    t.regex(stdout, new RegExp(`^${name}\\b.*  \\S`, 'm'));
  }
});

slow('starts the command')('an addon that is missing, or built for another version, is part of the answer', (t) => {
  const missing = info({ VKV_ADDON: '/nowhere/virtual_kv.node' });
  t.like(missing.addon, { isAvailable: false, code: 'KV_ADDON_NOT_FOUND' });
  t.deepEqual(missing.drivers, []);

  const folder = mkdtempSync(path.join(tmpdir(), 'vkv-addon-'));
  try {
    const other = path.join(folder, 'addon.cjs');
    writeFileSync(other, "module.exports = { version: '0.0.0', setMakeError() {} };");
    t.like(info({ VKV_ADDON: other }).addon, { isAvailable: false, code: 'KV_ADDON_MISMATCH' });
    t.regex(runVkv(['info'], { VKV_ADDON: other }).stdout, /addon +not loaded\. The addon was built for version 0\.0\.0/);
  } finally {
    rmSync(folder, { recursive: true });
  }
});
