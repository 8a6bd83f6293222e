// `node child.js <driver> <seed> <part> <export>…`: cases of these exports, in an order of the seed's, a part of 1 of each method's.
// It says each case before it comes, so that a crash has a name, lists what it found, and ends by itself: with 1 when it found
// something. Where there are two drivers each has every other case, since few depend on the driver.

import { writeSync } from 'node:fs';

import { Random } from '#internal/base/random.js';
import { casesOf, type Case, type Means } from './cases.js';
import { findingOf, settle } from './judge.js';
import { hostOnly, table, type Call, type Row } from './table.js';
import { World } from './world.js';

const [on = '', seed = '0', part = '1', ...names] = process.argv.slice(2);
/** Cases in one world, as long as all are refused. */
const mostCases = 40;
const findings = new Map<string, number>();

let world: World | undefined;
let cases = 0;
/** What calls from inside of calls answered; what they work with is not closed before they are done. */
const answers: unknown[] = [];

async function endWorld(title: string): Promise<void> {
  const ended = world;
  world = undefined;
  try {
    await Promise.allSettled(answers.splice(0));
    await ended?.close();
  } catch (error) {
    find(title, `afterwards: ${(error as Error).stack}`);
  }
}

function find(title: string, finding: string): void {
  const text = finding.split('\n').slice(0, 4).join('\n');
  findings.set(`${title}: ${text}`, (findings.get(text) ?? 0) + 1);
}

async function callOf(row: Row, title: string): Promise<Call> {
  if (world === undefined || cases >= mostCases || world.cache.isClosed) {
    await endWorld(title);
    world = new World(on as 'host' | 'mock');
    cases = 0;
  }
  cases += 1;
  try {
    return row(world);
  } catch (error) {
    if (cases === 1) throw error;
    await endWorld(title); // it is full
    return callOf(row, title);
  }
}

async function run(name: string, row: Row, method: string, { title: what, arm }: Case): Promise<void> {
  const title = `${name}.${method} ${what}`;
  writeSync(1, `${title}\n`);
  const { run, meant } = await callOf(row, title);
  const here = world!;
  const means: Means = {
    closeAll: () => {
      for (const one of here.closable.reverse()) void one.close();
      here.cache.close();
    },
    callAgain: () => { answers.push(run(...meant as never[])); },
    report: (finding) => find(title, finding),
  };
  const before = here.state();
  try {
    await settle(run(...arm(meant, means) as never[]));
    await endWorld(title);
  } catch (error) {
    const finding = findingOf(error);
    if (finding !== undefined) find(title, finding);
    const mayChange = what.includes('a getter that c') || /\.(run|submit|engine|sampler|tokenizer)/.test(title);
    if (mayChange || here.cache.isClosed) await endWorld(title);
    else if (here.state() !== before) {
      find(title, 'was refused, and changed something');
      await endWorld(title);
    }
  }
}

async function runAll(name: string, random: Random): Promise<void> {
  for (const [method, row] of Object.entries(table[name]!)) {
    if (row === null || (on === 'mock' && hostOnly.has(name))) continue;
    const call = await callOf(row, method);
    try { // what is right is accepted, or nothing here is tested
      await settle(call.run(...call.meant as never[]));
    } catch (error) {
      if (method !== 'new') find(`${name}.${method}`, `refuses what is meant: ${(error as Error).message}`);
    }
    await endWorld(method);
    const all = casesOf(call.meant).filter((_, at) => hostOnly.has(name) || (at % 2 === 0) === (on === 'host'));
    const enough = all.length - Math.ceil(all.length * Number(part));
    for (let left = all.length; left > enough; left -= 1) {
      const at = random.integer(left);
      await run(name, row, method, all[at]!);
      all[at] = all[left - 1]!;
    }
  }
  await endWorld('the end');
}

async function main(): Promise<void> {
  const random = new Random(Number(seed));
  for (const name of names) await runAll(name, random);
  for (const finding of [...findings.keys()].slice(0, 40)) process.stderr.write(`${finding}\n`);
  if (findings.size > 40) process.stderr.write(`and ${findings.size - 40} more\n`);
  process.exitCode = findings.size === 0 ? 0 : 1;
}

void main();
