// Processes that are killed in the middle of their work: at named points, at system calls that chance names, and by
// another process at any moment. Whatever was acknowledged is there, in every durability: what a killed process wrote
// is the kernel's. Alone in its process: it kills others that it waits for.

import { spawn } from 'node:child_process';
import { appendFileSync, existsSync, readFileSync } from 'node:fs';
import * as path from 'node:path';

import test, { type ExecutionContext } from 'ava';

import { Random } from '#internal/base/random.js';
import { seedOf } from '../helpers/seed.js';
import { assertAccounts, inFolder, options, scale, versionOf, withStore } from './store-world.js';

const seed = seedOf('disk store kills');
const child = path.join(__dirname, 'killed-child.js');
const sizes = [30_000, 304];

/** Named points, and at which passing. */
const points: readonly (readonly [string, number])[] = [
  ['identity-written', 1], ['identity-renamed', 1], ['file-made', 9], ['file-written', 7], ['file-synced', 8], ['file-renamed', 5], ['file-renamed', 12],
  ['folder-synced', 6], ['reordering', 3], ['reordered', 4], ['files-deleted', 6], ['deletions-synced', 5],
];

/** Runs a process to its end; `mostSteps`: kills it once it has told of so many. */
function killed(parameters: readonly string[], mostSteps = Infinity): Promise<{ readonly code: number | null; readonly signal: string | null }> {
  return new Promise((resolve) => {
    const started = spawn(process.execPath, [child, ...parameters], { stdio: ['ignore', 'pipe', 'inherit'] });
    let steps = 0;
    started.stdout.on('data', (dots: Buffer) => {
      steps += dots.length;
      if (steps >= mostSteps) started.kill('SIGKILL');
    });
    started.on('close', (code, signal) => resolve({ code, signal }));
  });
}

/** By block: the versions that it may have now, undefined for none. */
function expected(directory: string): Map<number, (number | undefined)[]> {
  const allowed = new Map<number, (number | undefined)[]>();
  const file = path.join(directory, 'expected');
  for (const line of existsSync(file) ? readFileSync(file, 'utf8').split('\n').slice(0, -1) : []) {
    const [number, version] = line.slice(1).split(' ').map(Number) as [number, number | undefined];
    const now = allowed.get(number) ?? [undefined];
    if ('+-'.includes(line[0]!)) allowed.set(number, [...now, version]);
    else allowed.set(number, [version]);
  }
  return allowed;
}

/** Fails unless every block is as the process was told; what is found now is what the next process must find. */
async function judge(t: ExecutionContext, directory: string, what: string): Promise<void> {
  let seen = '';
  await withStore(options(path.join(directory, 'store')), async (store) => {
    assertAccounts(t, store, path.join(directory, 'store'));
    for (const [number, allowed] of expected(directory)) {
      const found = await versionOf(t, store, number, allowed.filter((version) => version !== undefined), sizes);
      t.true(allowed.includes(found), `${what}: block ${number} is ${found ?? 'absent'}, not ${allowed.map((one) => one ?? 'absent').join(' or ')}`);
      seen += found === undefined ? `_${number}\n` : `=${number} ${found}\n`;
    }
    t.is((await store.verify()).corrupt.length, 0, what);
  });
  appendFileSync(path.join(directory, 'expected'), seen);
}

test('a process that is not killed passes the named points, all of them', (t) => inFolder(async (directory) => {
  t.deepEqual(await killed([directory, '1', 'sync', 'none', '1']), { signal: null, code: 3 });
  const passed = JSON.parse(readFileSync(path.join(directory, 'points'), 'utf8')) as Record<string, number>;
  t.deepEqual(Object.keys(passed).sort(), [...new Set(points.map(([point]) => point))].sort());
  for (const [point, nth] of points) t.true(passed[point]! >= nth, `${point} is passed ${passed[point]} times`);
}));

for (const durability of ['sync', 'interval'] as const) {
  const mine = durability === 'sync' ? points : points.filter(([point]) => /^(file-m|file-w|file-r|reorder|files-d)/.test(point));
  test(`a process killed at any of ${mine.length} points loses nothing that it acknowledged, with durability ${durability}`, async (t) => {
    for (const [index, [point, nth]] of mine.entries()) {
      if (scale < 1 && index % 4 !== 0) continue;
      await inFolder(async (directory) => {
        const { signal, code } = await killed([directory, String(index), durability, point, String(nth)]);
        t.is(signal, 'SIGKILL', `${point}: the process ended with ${code}`);
        await judge(t, directory, point);
      });
    }
  });
}

test(`a process killed at any system call or moment, again and again, loses nothing that it acknowledged (seed ${seed})`, (t) => inFolder(async (directory) => {
  const random = new Random(seed);
  const turns = scale >= 100 ? 1_000 : Math.ceil(6 * scale);
  let survivors = 0;
  for (let turn = 0; turn < turns; turn += 1) {
    const durability = (['sync', 'interval', 'none'] as const)[turn % 3]!;
    const common = [directory, String(turn + 1), durability];
    const nth = 1 + random.integer(turn % 2 === 0 ? 600 : 150);
    const { signal, code } = await (turn % 2 === 0 ? killed([...common, 'call', String(nth)]) : killed([...common, 'none', '1'], nth));
    t.true(signal === 'SIGKILL' || code === 3, `turn ${turn} ended with ${code}`);
    if (signal === null) survivors += 1;
    await judge(t, directory, `turn ${turn}, killed at ${turn % 2 === 0 ? 'call' : 'step'} ${nth}`);
  }
  t.log(`${turns - survivors} of ${turns} processes were killed`);
}));
