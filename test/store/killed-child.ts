// A process that uses a store until it is killed: `node killed-child.js DIRECTORY SEED DURABILITY POINT|call|none NTH`.
// Before and after each operation it writes a line to the file `expected` beside the store, which the kernel keeps:
// `+12 3` a put of version 3 of block 12 begins, `=12 3` it was acknowledged; `-12`, `_12` for a removal; and a dot to
// standard output. It ends by itself, with code 3, when it was never killed, and leaves the points that it passed in
// the file `points`.

import { openSync, writeFileSync, writeSync } from 'node:fs';
import * as path from 'node:path';

import { Random } from '#internal/base/random.js';
import type { Durability } from '#internal/store/disk-store-options.js';
import { StoreFaults } from '#internal/store/store-faults.js';
import { keyOf, options, orderOf, put } from './store-world.js';

const [directory, seed, durability, point, nth] = process.argv.slice(2) as [string, string, Durability, string, string];
const random = new Random(Number(seed));
const orders = new Random(1_000_003 * Number(seed));
const lines = openSync(path.join(directory, 'expected'), 'a');
function note(line: string): void {
  writeSync(lines, `${line}\n`);
  process.stdout.write('.');
}
const faults = new StoreFaults();

export const killedSizes = [30_000, 304];
const blocks = 24;

async function run(): Promise<void> {
  if (point === 'call') faults.add({ nth: Number(nth), kills: true });
  else if (point !== 'none') faults.killAt(point, Number(nth));
  const store = await faults.open(options(path.join(directory, 'store'), { durability, threads: 3 }));
  const busy = new Set<number>();
  let version = Number(seed) * 1_000 % 60_000;
  const one = async (): Promise<void> => {
    const number = random.integer(blocks);
    if (busy.has(number)) return;
    busy.add(number);
    if (store.has(keyOf(number)) && orders.chance(0.4)) {
      await store.reorder(keyOf(number), orderOf(orders)); // it stays what it was, whatever becomes of this
    } else if (store.has(keyOf(number))) {
      note(`-${number}`);
      if ((await store.remove([keyOf(number)])).isRecorded) note(`_${number}`);
    } else {
      const mine = version += 1;
      note(`+${number} ${mine}`);
      const { stored } = await put(store, number, mine, killedSizes);
      if (stored) note(`=${number} ${mine}`);
    }
    busy.delete(number);
  };
  for (let turn = 0; turn < 75; turn += 1) {
    await Promise.all([one(), one(), one()]);
    if (turn % 25 === 24) await store.sync();
  }
  await store.close();
  writeFileSync(path.join(directory, 'points'), JSON.stringify(faults.points()));
  process.exitCode = 3;
}

void run();
