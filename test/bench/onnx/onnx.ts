// `npm run bench -- onnx [--shape=smollm2-135m|qwen3-0.6b|gemma3-1b]`: transformers.js as it is and on this package's
// memory, with one model of random weights, in the same run: processor time of `generate`, memory, the event loop, and
// a step of decoding long texts. Each of the two in a process of its own with one thread, both at the same time, so
// that they find the same machine. It takes 5 GiB of memory, and the largest shape about five minutes on two processors.

import { spawn } from 'node:child_process';
import { existsSync, mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import * as path from 'node:path';
import { once } from 'node:events';

import { format, type BenchResult } from '../measure.js';
import { loads, type Measured } from './child.js';
import { decodeTimes } from './decode.js';
import { ResidentPeak } from './resident-peak.js';
import { shapes, writeModel, type ShapeName } from './shapes.js';

const home = path.resolve(__dirname, '..', '..', '..', 'examples', 'transformers');
/** Stock by ours, at least. */
const goals = { first: 1 / 1.05, again: 8, batch: 15, atOnce: 8 } as const;
const [goalMemory, goalGapMs, goalDecode] = [0.4, 20, 3.5];

type MeasuredHere = Measured & { readonly peakBytes: number };

async function measured(mode: 'stock' | 'ours', folder: string): Promise<MeasuredHere> {
  const child = spawn(process.execPath, [path.join(__dirname, 'child.js'), mode, folder], {
    stdio: ['ignore', 'pipe', 'inherit'],
  });
  const peak = new ResidentPeak(child.pid!);
  let printed = '';
  child.stdout.setEncoding('utf8').on('data', (chunk: string) => {
    peak.end(); // it prints first when the loads are over
    printed += chunk;
  });
  const [status] = (await once(child, 'close')) as [number | null];
  const peakBytes = peak.end();
  if (status !== 0) throw new Error(`The ${mode} program ended with ${status}.`);
  return { ...(JSON.parse(printed) as Measured), peakBytes };
}

export async function onnx(): Promise<BenchResult[]> {
  if (!existsSync(path.join(home, 'node_modules'))) {
    console.error('The benchmark onnx needs transformers.js: `npm run example -- transformers` installs it.');
    return [];
  }
  const name = (process.argv.find((word) => word.startsWith('--shape='))?.slice(8) ?? 'smollm2-135m') as ShapeName;
  if (!(name in shapes)) throw new Error(`There is no shape ${name}: choose from ${Object.keys(shapes).join(', ')}.`);
  const folder = mkdtempSync(path.join(tmpdir(), 'vkv-bench-'));
  try {
    writeModel(folder, name);
    const [stock, ours] = await Promise.all([measured('stock', folder), measured('ours', folder)]);
    const results = (Object.keys(loads) as (keyof typeof loads)[]).map((load): BenchResult => {
      const [before, after] = [stock.cpuMs[load]!, ours.cpuMs[load]!];
      const same = ours.answers[load]!.filter((token, at) => token === stock.answers[load]![at]).length;
      return {
        name: `${name}: ${loads[load]}`,
        value: `${format(after, 0)} ms of CPU`,
        against: `stock ${format(before, 0)} ms: ${format(before / after, 2)} × (goal ${format(goals[load], 2)} ×); ${same} of ${ours.answers[load]!.length} tokens the same`,
        isGoalMet: before / after >= goals[load],
        numbers: { ours: after, stock: before, same },
      };
    });
    const mib = (bytes: number): string => `${format(bytes / 2 ** 20, 0)} MiB`;
    const times = await decodeTimes(home, folder, name);
    return [
      ...results,
      {
        name: `${name}: peak memory`,
        value: mib(ours.peakBytes),
        against: `stock ${mib(stock.peakBytes)}: ${format(ours.peakBytes / stock.peakBytes, 2)} × (goal ${goalMemory} ×)`,
        isGoalMet: ours.peakBytes <= goalMemory * stock.peakBytes,
        numbers: { ours: ours.peakBytes, stock: stock.peakBytes },
      },
      {
        name: `${name}: longest gap of the event loop, prompt of 4,096 tokens`,
        value: `${format(ours.longestCpuMs)} ms of CPU, ${format(ours.longestGapMs)} ms by the clock`,
        against: `goal ${goalGapMs} ms of CPU; stock, of 700 tokens, ${format(stock.longestCpuMs, 0)} ms`,
        isGoalMet: ours.longestCpuMs <= goalGapMs,
        numbers: { ours: ours.longestCpuMs, stock: stock.longestCpuMs, clock: ours.longestGapMs },
      },
      {
        name: `${name}: a step of 4 × 4,096 tokens`,
        value: `${format(times.ours)} ms of CPU, ${format(times.oursHalf)} ms with a bfloat16 cache`,
        against: `in place by onnxruntime's C API ${format(times.inPlace)} ms; stock ${format(times.stock)} ms: ${format(times.stock / times.ours, 2)} × (goal ${goalDecode} ×)`,
        isGoalMet: times.ours <= times.inPlace && times.stock / times.ours >= goalDecode,
        numbers: { ...times },
      },
    ];
  } finally {
    rmSync(folder, { recursive: true });
  }
}
