// Every example runs, ends with 0 and prints something. They are compiled first, as `npm run example` does it.

import { spawnSync } from 'node:child_process';
import { readdirSync } from 'node:fs';
import * as path from 'node:path';

import test from 'ava';

const root = path.resolve(__dirname, '..', '..');
const names = readdirSync(path.join(root, 'examples'))
  .filter((file) => /\.(ts|mjs)$/.test(file))
  .map((file) => path.parse(file).name);

function run(name: string): { status: number | null; stdout: string; stderr: string } {
  const script = path.join(root, 'scripts', 'run-example.mjs');
  return spawnSync(process.execPath, [script, name], { cwd: root, encoding: 'utf8' });
}

for (const name of names) {
  test.serial(`the example ${name} runs`, (t) => {
    const { status, stdout, stderr } = run(name);
    t.is(status, 0, stderr);
    t.not(stdout, '');
  });
}
