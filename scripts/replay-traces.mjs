// Replays the public traces whole on the host driver, every sequence sampled, and the beginning of each with every byte
// checked; fails on any mismatch, leaked page, refused or unfinished request. They are not in the repository: without a
// folder of traces (the argument; default ../shared/traces) it says so and ends with 0. Used by CI.

import { spawnSync } from 'node:child_process';
import { existsSync } from 'node:fs';
import path from 'node:path';

import { prepare, root } from './prepare.mjs';

const folder = path.resolve(root, process.argv[2] ?? '../shared/traces');
const runs = [
  { file: 'azure-code.csv', requests: 8819, flags: ['--verify', 'sampled'] },
  { file: 'mooncake-synthetic.jsonl', requests: 3993, flags: ['--verify', 'sampled'] },
  { file: 'azure-code.csv', requests: 300, flags: ['--verify', 'full', '--limit', '300'] },
  { file: 'mooncake-synthetic.jsonl', requests: 40, flags: ['--verify', 'full', '--limit', '40'] },
];

let passed = 0;
let failed = 0;
let skipped = 0;
prepare();
for (const { file, requests, flags } of runs) {
  const trace = path.join(folder, file);
  const title = `${file} ${flags.join(' ')}`;
  if (!existsSync(trace)) {
    console.log(`- ${title}: skipped, there is no ${trace}`);
    skipped += 1;
    continue;
  }
  const { status, stdout, stderr } = spawnSync(
    process.execPath, [path.join(root, 'dist', 'cli', 'vkv.js'), 'replay', trace, '--driver', 'host', '--json', ...flags],
    { encoding: 'utf8', maxBuffer: 2 ** 28 });
  const result = status === 0 ? JSON.parse(stdout) : {};
  const expected = { requests, completedRequests: requests, mismatches: 0, leakedPages: 0 };
  const wrong = Object.entries(expected).filter(([name, value]) => result[name] !== value);
  if (wrong.length === 0 && result.verifiedTokens > 0) {
    console.log(`✔ ${title}: ${result.verifiedTokens} tokens read back, ${result.wallSeconds.toFixed(1)} s`);
    passed += 1;
  } else {
    console.log(`✘ ${title}: exit code ${status}, ${wrong.map(([name]) => `${name} ${result[name]}`).join(', ')}\n${stderr}`);
    failed += 1;
  }
}
console.log(`${passed} passed, ${failed} failed, ${skipped} skipped`);
process.exitCode = failed > 0 ? 1 : 0;
