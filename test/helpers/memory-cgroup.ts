// A memory cgroup of a test's own (v1 or v2), with a process started in it. Needs a machine whose cgroups may be changed.

import { spawnSync } from 'node:child_process';
import { existsSync, mkdirSync, readFileSync, rmdirSync, writeFileSync } from 'node:fs';
import * as path from 'node:path';

export interface End {
  readonly status: number | null;
  readonly signal: NodeJS.Signals | null;
  readonly output: string;
}

/** Where a cgroup can be made, and what its limits are called. */
function places(): readonly { readonly folder: string; readonly limit: string }[] {
  const own = readFileSync('/proc/self/cgroup', 'utf8').trim().split('\n').map((line) => line.split(':'));
  const pathOf = (controller: string): string => own.find(([, names]) => names!.split(',').includes(controller))?.[2] ?? '/';
  const version2 = ['/sys/fs/cgroup', path.join('/sys/fs/cgroup', pathOf(''))];
  return [
    { folder: path.join('/sys/fs/cgroup/memory', pathOf('memory')), limit: 'memory.limit_in_bytes' },
    ...version2.map((folder) => ({ folder, limit: 'memory.max' })),
  ].filter(({ folder }) => existsSync(folder));
}

/** Runs a command in a new cgroup with so many bytes; undefined where none can be made. */
export function runInCgroup(bytes: number, command: readonly string[]): End | undefined {
  for (const { folder, limit } of places()) {
    const group = path.join(folder, `vkv-test-${process.pid}`);
    try {
      mkdirSync(group);
    } catch {
      continue;
    }
    try {
      if (!existsSync(path.join(group, limit))) continue;
      writeFileSync(path.join(group, limit), String(bytes));
      const swap = path.join(group, 'memory.swap.max');
      if (existsSync(swap)) writeFileSync(swap, '0');
      const script = 'echo $$ > "$0/cgroup.procs" && exec "$@"';
      const { status, signal, stdout, stderr } = spawnSync('sh', ['-c', script, group, ...command], { encoding: 'utf8' });
      return { status, signal, output: stdout + stderr };
    } catch {
      continue;
    } finally {
      rmdirSync(group);
    }
  }
  return undefined;
}
