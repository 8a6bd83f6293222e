// Memory at the peak of a replay, saturated: what contiguous slots with pages under them hold, against one static allocation
// per slot and against a paged cache with 16-token blocks. The Azure code trace where it is (VKV_TRACE names another file),
// else the package's own workload.

import { spawnSync } from 'node:child_process';
import { existsSync } from 'node:fs';
import * as path from 'node:path';

import { format, type BenchResult } from './measure.js';

const root = path.resolve(__dirname, '..', '..');
const azure = path.resolve(root, '..', 'shared', 'traces', 'azure-code.csv');

interface Replay {
  readonly peakPhysicalBytes: number;
  readonly usedBytesAtPeak: number;
  readonly pagedBytesAtPeak: number;
  readonly staticBytes: number;
  readonly completedRequests: number;
  readonly mismatches: number;
  readonly stepOverheadUs: { readonly p50: number };
}

/** The layouts and page sizes that are compared, as flags of `vkv replay`. */
const settings = [
  { name: 'per-layer, 64 KiB pages', flags: ['--layout', 'per-layer', '--page-bytes', '64KiB'] },
  { name: 'per-layer, 2 MiB pages', flags: ['--layout', 'per-layer'] },
  { name: 'fused, 2 MiB pages', flags: ['--layout', 'fused'] },
];

export function replayMemory(): BenchResult[] {
  const file = process.env['VKV_TRACE'] ?? (existsSync(azure) ? azure : undefined);
  const trace = file === undefined ? ['--generate', '2000'] : [file];
  const name = file === undefined ? 'the generated workload' : path.basename(file);
  return settings.map((setting) => {
    const flags = ['--driver', 'host', '--max-tokens', '8192', '--max-batch', '64', '--memory-bytes', '12GiB'];
    const result = replay([...trace, ...flags, ...setting.flags]);
    const ofUsed = (bytes: number): string => `${format(bytes / result.usedBytesAtPeak, 2)} ×`;
    return {
      name: `memory at peak, ${name}, ${setting.name}`,
      value: `${format(result.peakPhysicalBytes / 2 ** 30, 2)} GiB, ${ofUsed(result.peakPhysicalBytes)} the valid tokens`,
      against: `static ${ofUsed(result.staticBytes)}, paged (16-token blocks) ${ofUsed(result.pagedBytesAtPeak)}`,
      isGoalMet: undefined,
      numbers: {
        peakBytes: result.peakPhysicalBytes, usedBytes: result.usedBytesAtPeak, pagedBytes: result.pagedBytesAtPeak,
        staticBytes: result.staticBytes, requests: result.completedRequests, stepP50Us: result.stepOverheadUs.p50,
      },
    };
  });
}

function replay(flags: readonly string[]): Replay {
  const vkv = path.join(root, 'dist', 'cli', 'vkv.js');
  const args = [vkv, 'replay', ...flags, '--verify', 'off', '--json'];
  const { status, stdout, stderr } = spawnSync(process.execPath, args, { encoding: 'utf8', maxBuffer: 2 ** 26 });
  if (status !== 0) throw new Error(`vkv replay ended with ${status}: ${stderr}`);
  return JSON.parse(stdout) as Replay;
}
