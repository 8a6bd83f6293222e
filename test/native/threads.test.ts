// What an operator sees of the addon's threads: each has a name, and those that work in the background, and no others, let the process's other
// threads go first.
// Alone in its process: it lists the threads of the process.

import * as fs from 'node:fs';
import { tmpdir } from 'node:os';
import * as path from 'node:path';

import test from 'ava';

import { diskTier } from 'virtual-kv';

import { LastingCache } from '../cache/tiers/lasting-cache.js';

/** Niceness by name of thread, of this process. */
function threads(): Map<string, number> {
  return new Map(fs.readdirSync('/proc/self/task').map((id) => {
    const stat = fs.readFileSync(`/proc/self/task/${id}/stat`, 'utf8');
    const name = stat.slice(stat.indexOf('(') + 1, stat.lastIndexOf(')'));
    return [name, Number(stat.slice(stat.lastIndexOf(')') + 2).split(' ')[16])];
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
  await one.close();
  for (const name of threads().keys()) t.false(name.startsWith('vkv-'), `${name} has ended`);
});
