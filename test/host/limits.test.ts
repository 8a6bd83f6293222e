// The limits of the machine that belong to a whole process: kernel mappings and memory. Every host driver of every thread draws on
// them, and an error has to come before the kernel's own answer, which is the end of the process.
// Alone in its process: it lowers limits of the process.
// Slow: it fills cgroups and mappings to their limits.

import { spawnSync } from 'node:child_process';
import { readFileSync } from 'node:fs';
import * as path from 'node:path';

import test, { type ExecutionContext } from 'ava';

import { Driver } from 'virtual-kv';

import { compileHostProbe, hostProbe, whyNoProbe } from '../helpers/host-probe.js';
import { runInCgroup } from '../helpers/memory-cgroup.js';
import { withTemporaryFolder } from '../helpers/temporary-folder.js';

const child = path.join(__dirname, 'limits-child.js');
const MiB = 2 ** 20;
const kernelLimit = Number(readFileSync('/proc/sys/vm/max_map_count', 'utf8'));

interface Details {
  readonly neededMappings: number;
  readonly limitMappings: number;
  readonly otherMappings: number;
}

test('twenty drivers in eight threads at the limit are refused by number, and the process can still allocate', (t) => {
  const { status, signal, stdout, stderr } = spawnSync(process.execPath, [child, 'mappings'], { encoding: 'utf8' });
  t.deepEqual({ status, signal }, { status: 0, signal: null }, stderr);
  const { refusals, mappings, left } = JSON.parse(stdout) as {
    refusals: readonly { code: string; message: string; details: Details }[]; mappings: number; left: number;
  };
  t.is(refusals.length, 20);
  for (const { code, message, details } of refusals) {
    t.is(code, 'KV_OUT_OF_MAPPINGS', message);
    t.is(details.limitMappings, Math.floor(kernelLimit / 2));
    t.true(details.neededMappings + details.otherMappings > details.limitMappings, message);
  }
  t.true(mappings < kernelLimit * 0.75, `${mappings} of ${kernelLimit}`);
  t.is(left, 0, 'a thread that ends gives back what its drivers had');
});

test('a driver may be asked to keep to more mappings than the shared half, but not to all', (t) => {
  const most = kernelLimit - Math.floor(kernelLimit / 8);
  using driver = Driver.open('host', { mappingLimit: most });
  t.is(driver.info.mappingLimit, most);
  const error = t.throws(() => Driver.open('host', { mappingLimit: most + 1 }), { code: 'KV_INVALID_OPTION' });
  t.like(error, { details: { option: 'mappingLimit', received: most + 1 } });
});

// Memory: what is read of the machine and its cgroups

const noProbe = whyNoProbe();
const probeTest = (title: string, body: (t: ExecutionContext) => void): void => {
  if (noProbe === undefined) test(title, body);
  else test.skip(`${title} [${noProbe}]`, body);
};
if (noProbe === undefined) test.before(compileHostProbe);

/** Files of a cgroup of either version; -1: no limit. */
const group2 = (folder: string, limit: number, usage: number, cached = 0): Readonly<Record<string, string>> => ({
  [`sys/fs/cgroup${folder}/memory.max`]: limit < 0 ? 'max\n' : `${limit}\n`,
  [`sys/fs/cgroup${folder}/memory.current`]: `${usage}\n`,
  [`sys/fs/cgroup${folder}/memory.stat`]: `anon 5\nfile 7\ninactive_file ${cached}\nactive_file 0\n`,
});
const group1 = (folder: string, limit: number, usage: number, cached = 0): Readonly<Record<string, string>> => ({
  [`sys/fs/cgroup/memory${folder}/memory.limit_in_bytes`]: `${limit < 0 ? 2n ** 63n - 4096n : limit}\n`,
  [`sys/fs/cgroup/memory${folder}/memory.usage_in_bytes`]: `${usage}\n`,
  [`sys/fs/cgroup/memory${folder}/memory.stat`]: `inactive_file 1\ntotal_inactive_file 0\ntotal_active_file ${cached}\n`,
});
const meminfo = (availableBytes: number): Readonly<Record<string, string>> => ({
  'proc/meminfo': `MemTotal: 999 kB\nMemFree: 1 kB\nMemAvailable: ${availableBytes / 1024} kB\nHugePages_Total: 0\n`,
});

for (const [version, group, self] of [['v2', group2, '0::/a/b\n'], ['v1', group1, '3:cpu:/x\n4:memory,blkio:/a/b\n0::/\n']] as const) {
  probeTest(`the tightest limit and the least room of the cgroup and all above it count (${version})`, (t) => {
    withTemporaryFolder({
      'proc/self/cgroup': self, ...meminfo(900 * MiB),
      ...group('/a/b', 600 * MiB, 100 * MiB), ...group('/a', 800 * MiB, 700 * MiB), ...group('', -1, 5000 * MiB),
    }, (root) => {
      t.deepEqual(hostProbe('memory-room', root), {
        'limit-bytes': `${600 * MiB}`, 'available-bytes': `${100 * MiB}`, 'headroom-bytes': `${128 * MiB}`,
      });
    });
  });

  probeTest(`cached files count as available (${version})`, (t) => {
    withTemporaryFolder({ 'proc/self/cgroup': self, ...meminfo(900 * MiB), ...group('/a/b', 600 * MiB, 590 * MiB, 400 * MiB) }, (root) => {
      t.is(hostProbe('memory-room', root)['available-bytes'], `${410 * MiB}`);
    });
  });

  probeTest(`a cgroup path that exists only outside the container still finds the limit at the top (${version})`, (t) => {
    withTemporaryFolder({ 'proc/self/cgroup': self, ...meminfo(900 * MiB), ...group('', 64 * MiB, 4 * MiB) }, (root) => {
      t.deepEqual(hostProbe('memory-room', root), {
        'limit-bytes': `${64 * MiB}`, 'available-bytes': `${60 * MiB}`, 'headroom-bytes': `${32 * MiB}`,
      });
    });
  });
}

probeTest('`memory.high` is a limit too, since a process is throttled above it', (t) => {
  withTemporaryFolder({
    'proc/self/cgroup': '0::/\n', ...meminfo(900 * MiB), ...group2('', 600 * MiB, 0), 'sys/fs/cgroup/memory.high': `${500 * MiB}\n`,
  }, (root) => {
    t.is(hostProbe('memory-room', root)['limit-bytes'], `${500 * MiB}`);
  });
});

probeTest('without cgroups the available memory is the kernel\'s number', (t) => {
  withTemporaryFolder({ 'proc/self/cgroup': '', ...meminfo(96 * MiB) }, (root) => {
    t.is(hostProbe('memory-room', root)['available-bytes'], `${96 * MiB}`);
  });
});

probeTest('drivers of one process share the available memory, and pages that were never touched count', (t) => {
  withTemporaryFolder({ 'proc/self/cgroup': '0::/\n', ...meminfo(4096 * MiB), ...group2('', 600 * MiB, 80 * MiB) }, (root) => {
    t.deepEqual(hostProbe('memory-shares', root), {
      'total-bytes': `${472 * MiB}`, 'free-bytes': `${392 * MiB}`,
      'pages-of-first': '392', 'pages-of-second': '0', 'pages-after-release': '1', 'second-is-alone': '1',
      'pages-beyond-the-machine': '1',
    });
  });
});

// Memory: in a real cgroup

const hasCgroups = runInCgroup(64 * MiB, ['true'])?.status === 0;

for (const [title, options] of [
  ['by default', {}],
  ['with populate', { populate: true }],
  ['with populate and a budget beyond it', { populate: true, memoryBytes: 2 ** 40 }],
  ['with huge pages', { hugePages: true, memoryBytes: 2 ** 40 }],
] as const) {
  const name = `in a cgroup of 600 MiB a lack of memory is an error and not a dead process (${title})`;
  if (process.env['VKV_TEST_PRELOAD'] !== undefined) test.skip(`${name} [a sanitizer takes most of it]`, () => {});
  else if (!hasCgroups) test.skip(`${name} [this process may make no memory cgroup]`, () => {});
  else test.serial(name, (t) => {
    const end = runInCgroup(600 * MiB, [process.execPath, child, 'memory', JSON.stringify(options)])!;
    t.like(end, { status: 0, signal: null }, end.output);
    const { code, bytes } = JSON.parse(end.output.trim().split('\n').at(-1)!) as { code: string; bytes: number };
    t.is(code, 'KV_OUT_OF_DEVICE_MEMORY', end.output);
    t.true(bytes > 256 * MiB, `${bytes / MiB} MiB were had`);
  });
}
