// A whole trace through `vkv replay` on the simulated device, memory only counted, prompts one by one: requests a second
// with the prefix cache off and with each of two policies, and what they find. The Mooncake trace where it is
// (VKV_PREFIX_TRACE names another file), else the package's own workload.

import { spawnSync } from 'node:child_process';
import { existsSync } from 'node:fs';
import * as path from 'node:path';

import { format, type BenchResult } from './measure.js';

const root = path.resolve(__dirname, '..', '..');
const mooncake = path.resolve(root, '..', 'shared', 'traces', 'mooncake-synthetic.jsonl');

/** The trace of the prefix cache's benchmarks, where there is one. */
export const prefixTraceFile = process.env['VKV_PREFIX_TRACE'] ?? (existsSync(mooncake) ? mooncake : undefined);

interface Replay {
  readonly completedRequests: number;
  readonly promptTokens: number;
  readonly wallSeconds: number;
  readonly hitRate: number;
}

/** The shape of Llama-3-8B, 128 KiB a token: a page of 2 MiB is a row of 16 tokens. Memory for 3,000,000 tokens. */
const FLAGS = [
  '--layers', '32', '--kv-heads', '8', '--head-dim', '128', '--layout', 'fused', '--driver', 'mock',
  '--memory-bytes', '375000MiB',
  '--max-batch', '1', '--prompt-only', '--prefill-tokens-per-step', '196608', '--verify', 'off', '--json',
];

export function replayPrefixes(): BenchResult[] {
  const file = prefixTraceFile;
  const trace = file === undefined ? ['--generate', '4000'] : [file];
  const name = file === undefined ? 'the generated workload' : path.basename(file);
  const off = replay(trace);
  return (['lru', 'adaptive'] as const).map((policy) => {
    const { completedRequests, promptTokens, wallSeconds, hitRate } = replay([...trace, '--policy', policy]);
    const meanTokens = promptTokens / completedRequests;
    return {
      name: `whole trace, ${name}, ${format(meanTokens, 0)} tokens a prompt, rows of 16 tokens, ${policy}`,
      value: `${format(completedRequests / wallSeconds, 0)} requests/s, ${format(100 * hitRate, 1)} % of the tokens found`,
      against: `cache off: ${format(off.completedRequests / off.wallSeconds, 0)} requests/s`,
      isGoalMet: undefined,
      numbers: {
        requestsPerSecond: completedRequests / wallSeconds, offRequestsPerSecond: off.completedRequests / off.wallSeconds,
        hitRate, requests: completedRequests, meanTokens,
      },
    };
  });
}

function replay(flags: readonly string[]): Replay {
  const vkv = path.join(root, 'dist', 'cli', 'vkv.js');
  const { status, stdout, stderr } = spawnSync(process.execPath, [vkv, 'replay', ...flags, ...FLAGS], {
    encoding: 'utf8', maxBuffer: 2 ** 26,
  });
  if (status !== 0) throw new Error(`vkv replay ended with ${status}: ${stderr}`);
  return JSON.parse(stdout) as Replay;
}
