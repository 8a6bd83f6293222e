// Replays the public traces whole on the host driver with a sample of each sequence verified, and their beginnings with every byte
// verified; then with the prefix cache, comparing the share of prompt tokens found. Fails on any mismatch, leaked page, refused or
// unfinished request, or a share that is too low. The traces are not in the repository: without a folder of traces (the
// argument; default ../shared/traces) it says so and ends with 0. Used by CI.

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
  { file: 'mooncake-synthetic.jsonl', requests: 600, flags: ['--verify', 'sampled', '--limit', '600', '--prefix-cache'], hitRate: 0.001 },
  // One prompt at a time, rows of 16 tokens (Llama-3-8B, fused), 3,000,000 tokens of simulated memory.
  ...[['lru', 0.3165], ['adaptive', 0.33]].map(([policy, hitRate]) => ({
    file: 'mooncake-synthetic.jsonl', requests: 3993, hitRate,
    flags: [
      '--policy', policy, '--prompt-only', '--max-batch', '1', '--prefill-tokens-per-step', '196608', '--verify', 'off',
      '--driver', 'mock', '--memory-bytes', '375000MiB', '--layout', 'fused',
      '--layers', '32', '--kv-heads', '8', '--head-dim', '128',
    ],
  })),
];

let passed = 0;
let failed = 0;
let skipped = 0;
prepare();
for (const { file, requests, flags, hitRate = 0 } of runs) {
  const trace = path.join(folder, file);
  const title = `${file} ${flags.slice(0, 6).join(' ')}`;
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
  if (!(result.hitRate >= hitRate)) wrong.push(['hitRate']);
  if (wrong.length === 0 && (result.verifiedTokens > 0 || result.verify === 'off')) {
    const found = hitRate > 0 ? `${(100 * result.hitRate).toFixed(2)} % found in the cache, ` : '';
    console.log(`✔ ${title}: ${found}${result.verifiedTokens} tokens read back, ${result.wallSeconds.toFixed(1)} s`);
    passed += 1;
  } else {
    console.log(`✘ ${title}: exit code ${status}, ${wrong.map(([name]) => `${name} ${result[name]}`).join(', ')}\n${stderr}`);
    failed += 1;
  }
}
console.log(`${passed} passed, ${failed} failed, ${skipped} skipped`);
process.exitCode = failed > 0 ? 1 : 0;
