// What tests cost: prints the CPU time of each folder and the ten dearest tests, and tells where a test that is not declared slow
// takes more than a second in `quick`, or a folder half as much again as its budget. Seconds are those of the machine that the budgets were
// made on: a fixed piece of work says how much slower this one is now.

import { createHash } from 'node:crypto';
import { existsSync, readFileSync } from 'node:fs';
import path from 'node:path';

import { root } from '../prepare.mjs';

const mostUndeclaredMs = 1_000;
/** What tests take on a machine that others share, at most, of what they take alone. */
const noise = 2;
const mostOverBudget = 1.5;
const shownTests = 10;
/** Of a folder that budgets.json does not name, in CPU-s. */
const leastBudget = 4;
const work = Buffer.alloc(16 * 2 ** 20);
/** CPU ms of the fixed work where the budgets were made. */
const referenceMs = 15;

/** How many times as long as on the reference machine work takes here now, by a fixed piece of native work; 1 at least. */
export function machineSpeed() {
  const begin = process.cpuUsage();
  createHash('sha256').update(work).digest();
  const { user, system } = process.cpuUsage(begin);
  return Math.max(1, (user + system) / 1e3 / referenceMs);
}

/** CPU seconds of this process and all children that have ended. */
export function cpuSeconds() {
  const stat = readFileSync('/proc/self/stat', 'utf8');
  return stat.slice(stat.lastIndexOf(')') + 2).split(' ').slice(11, 15).reduce((sum, ticks) => sum + Number(ticks), 0) / 100;
}

/** `lines` to print, and how many limits are exceeded. */
export function judgeCosts(file, { tier, speed, hasBudget }) {
  const costs = existsSync(file) ? readFileSync(file, 'utf8').trimEnd().split('\n').map((line) => JSON.parse(line)) : [];
  if (costs.length === 0) return { lines: [], excesses: 0 };
  const budgets = JSON.parse(readFileSync(path.join(root, 'test', 'runner', 'budgets.json'), 'utf8'))[tier] ?? {};
  const folders = new Map();
  for (const cost of costs) {
    const folder = cost.file.includes('/') ? cost.file.split('/')[0] : 'test';
    folders.set(folder, (folders.get(folder) ?? 0) + cost.cpuMs / 1e3 / speed);
  }
  const wrong = [];
  if (hasBudget) {
    // At full length random worlds and sweeps take what they take.
    for (const { file: of, title, cpuMs, slow } of tier === 'quick' ? costs : []) {
      if (cpuMs / speed > noise * mostUndeclaredMs && slow === undefined) wrong.push(`${of}: ${title}: ${(cpuMs / 1e3 / speed).toFixed(2)} CPU-s; make it cheaper, or declare it slow`);
    }
    for (const [folder, seconds] of folders) {
      const budget = budgets[folder] ?? leastBudget;
      if (seconds > mostOverBudget * budget) wrong.push(`${folder}: ${seconds.toFixed(1)} CPU-s of a budget of ${budget} (test/runner/budgets.json)`);
    }
  }
  const sums = [...folders].sort(([, a], [, b]) => b - a);
  const dearest = [...costs].sort((a, b) => b.cpuMs - a.cpuMs).slice(0, shownTests);
  return {
    excesses: wrong.length,
    lines: [
      `\nCPU-s by folder, tests alone${speed > 1.05 ? `, divided by ${speed.toFixed(2)}, as this machine is so much slower than the reference now` : ''}: `
        + sums.map(([folder, seconds]) => `${folder} ${seconds.toFixed(1)}`).join(', '),
      'The dearest tests:',
      ...dearest.map(({ file: of, title, cpuMs, slow }) => `  ${(cpuMs / 1e3 / speed).toFixed(2)} s  ${of}: ${title}${slow === undefined ? '' : ` (slow: ${slow})`}`),
      ...(wrong.length > 0 ? ['Too dear:', ...wrong.map((line) => `  ${line}`)] : []),
    ],
  };
}
