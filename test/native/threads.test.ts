// What an operator sees of the addon's threads: each has a name, and those that work in the background, and no others, let
// the process's other threads go first. Of signals, none handles those that are sent to the process, and all handle those
// that their own instructions raise, which crash reporters wait for.
// Alone in its process: it lists the threads of the process.

import * as fs from 'node:fs';
import { constants, tmpdir } from 'node:os';
import * as path from 'node:path';
import { setImmediate } from 'node:timers/promises';

import test from 'ava';

import { diskTier } from 'virtual-kv';

import { LastingCache } from '../cache/tiers/lasting-cache.js';
import { NativeCaches } from '../helpers/native-caches.js';

/** Niceness by name of thread, of this process. */
function threads(): Map<string, number> {
  return new Map(fs.readdirSync('/proc/self/task').map((id) => {
    const stat = fs.readFileSync(`/proc/self/task/${id}/stat`, 'utf8');
    const name = stat.slice(stat.indexOf('(') + 1, stat.lastIndexOf(')'));
    return [name, Number(stat.slice(stat.lastIndexOf(')') + 2).split(' ')[16])];
  }));
}

/** Signals that are blocked, by name of thread, of this process. */
function blocked(): Map<string, readonly string[]> {
  return new Map(fs.readdirSync('/proc/self/task').map((id) => {
    const status = fs.readFileSync(`/proc/self/task/${id}/status`, 'utf8');
    const mask = BigInt(`0x${/^SigBlk:\t(\w+)$/m.exec(status)![1]!}`);
    const names = Object.entries(constants.signals).filter(([, number]) => mask & 1n << BigInt(number - 1));
    return [/^Name:\t(.*)$/m.exec(status)![1]!, names.map(([name]) => name)];
  }));
}

test('threads have names; those of tiers, and no others, stand back', async (t) => {
  const directory = fs.mkdtempSync(path.join(tmpdir(), 'vkv-threads-'));
  t.teardown(() => { fs.rmSync(directory, { recursive: true, force: true }); });
  const { pid } = process;
  const own = Number(fs.readFileSync(`/proc/self/task/${pid}/stat`, 'utf8').replace(/.*\) /, '').split(' ')[16]);
  const one = new LastingCache([diskTier({ directory, bytes: 2 ** 25, admit: 'all' })], { on: 'host' });
  await one.ready();
  one.compute(1);
  await one.cache.prefixes.tiers!.settled();
  const found = threads();
  for (const name of ['vkv-store', 'vkv-sync', 'vkv-copier']) t.is(found.get(name), Math.min(19, own + 10), name);
  t.is(found.get('vkv-mapper'), own, 'mapping is what steps wait for');
  const raised = ['SIGSEGV', 'SIGBUS', 'SIGFPE', 'SIGILL', 'SIGTRAP', 'SIGABRT', 'SIGSYS'];
  const isBetween = (): boolean => // the C library blocks all while a thread begins and ends
    [...blocked()].some(([name, signals]) => name.startsWith('vkv-') && signals.includes(raised[0]!));
  for (let turns = 0; turns < 10_000 && isBetween(); turns += 1) await setImmediate();
  for (const [name, signals] of blocked()) {
    if (!name.startsWith('vkv-')) continue;
    t.deepEqual(raised.filter((signal) => signals.includes(signal)), [], name);
    t.deepEqual(['SIGINT', 'SIGTERM', 'SIGUSR1', 'SIGCHLD', 'SIGXFSZ'].filter((signal) => !signals.includes(signal)), [], name);
  }
  await one.close();
  for (const name of threads().keys()) t.false(name.startsWith('vkv-'), `${name} has ended`);
});

test('caches that share a mapper have one thread, which ends with the last of them', (t) => {
  const mappers = (): number => fs.readdirSync('/proc/self/task')
    .filter((id) => fs.readFileSync(`/proc/self/task/${id}/comm`, 'utf8') === 'vkv-mapper\n').length;
  const bench = new NativeCaches(t, { pages: 20, tensors: [1, 2, 1], slots: 2, mapper: true });
  for (const { cache } of bench.sets) {
    t.is(mappers(), 1);
    cache.close();
  }
  t.is(mappers(), 0);
  bench.close();
});
