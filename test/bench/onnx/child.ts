// One process of the benchmark `onnx`: child.js stock|ours FOLDER. Prints a line when the loads are over, and then what
// `generate` of transformers.js took, as JSON: processor time of all threads, with one thread in onnxruntime, so that other programs on the machine matter
// little.

import { createRequire } from 'node:module';
import * as path from 'node:path';
import { setTimeout } from 'node:timers/promises';

import { install } from 'virtual-kv/transformers';

import { LoopDelays } from '../loop-delays.js';

export interface Measured {
  /** Of each load, in ms. */
  readonly cpuMs: Readonly<Record<string, number>>;
  /** Tokens of all answers. */
  readonly answers: Readonly<Record<string, readonly number[]>>;
  /** The longest time in which a timer did not run while a prompt was computed: 4,096 tokens by ours, 700 by stock. */
  readonly longestGapMs: number;
  /** The same in processor time of the JavaScript thread, which other programs do not lengthen. */
  readonly longestCpuMs: number;
}

export const loads = {
  first: '1,500-token prompt, first',
  again: 'the same system prompt again',
  batch: 'a batch of 4',
  atOnce: '4 `generate()` at once, 700 tokens',
} as const;

const newTokens = 32;
const promptTokens = 1_500;
const shortTokens = 700;
const longTokens = 4_096;

interface Tensor {
  readonly data: BigInt64Array;
}

interface Library {
  readonly AutoModelForCausalLM: {
    from_pretrained(name: string, options: object): Promise<{ generate(options: object): Promise<Tensor> }>;
  };
  readonly Tensor: new (type: string, data: BigInt64Array, dims: readonly number[]) => Tensor;
  readonly env: { allowRemoteModels: boolean; localModelPath: string };
}

/**
 * Waits until the process is idle. transformers.js 4 reads the model's file a second time in the background. Making a
 * stock session takes longer than that; ours is made sooner, and the rest of the read would count in the first prompt.
 */
async function settled(): Promise<void> {
  for (let before = process.cpuUsage(); ; before = process.cpuUsage()) {
    await setTimeout(200);
    const { user, system } = process.cpuUsage(before);
    if (user + system < 10_000) return;
  }
}

async function main(mode: string, folder: string): Promise<void> {
  const home = path.resolve(__dirname, '..', '..', '..', 'examples', 'transformers');
  if (mode === 'ours') install({ memoryBudgetBytes: 2 ** 30, from: home });
  const { AutoModelForCausalLM, Tensor, env } = createRequire(path.join(home, 'package.json'))(
    '@huggingface/transformers',
  ) as Library;
  env.allowRemoteModels = false;
  env.localModelPath = '/';
  const model = await AutoModelForCausalLM.from_pretrained(folder, {
    dtype: 'q4',
    device: 'cpu',
    session_options: { intraOpNumThreads: 1 },
  });
  const system = Array.from({ length: longTokens }, (_, at) => 1 + ((at * 31 + (at % 7)) % 500));
  const ask = (user: number, tokens: number): number[] => [...system.slice(0, tokens - 3), 7, 8 + user, 9];
  const generate = async (prompts: readonly (readonly number[])[], max: number): Promise<number[]> => {
    const dims = [prompts.length, prompts[0]!.length];
    const long = (numbers: readonly number[]): Tensor => new Tensor('int64', BigInt64Array.from(numbers, BigInt), dims);
    const { data } = await model.generate({
      input_ids: long(prompts.flat()),
      attention_mask: long(prompts.flat().map(() => 1)),
      max_new_tokens: max,
      do_sample: false,
    });
    return prompts.flatMap((_, row) =>
      Array.from(data.slice((row + 1) * (dims[1]! + max) - max, (row + 1) * (dims[1]! + max)), Number),
    );
  };
  const cpuMs: Record<string, number> = {};
  const answers: Record<string, readonly number[]> = {};
  const measure = async (name: keyof typeof loads, work: () => Promise<number[]>): Promise<void> => {
    const before = process.cpuUsage();
    answers[name] = await work();
    const { user, system: kernel } = process.cpuUsage(before);
    cpuMs[name] = (user + kernel) / 1e3;
  };
  await generate([[1, 2, 3]], 2);
  await settled();
  await measure('first', () => generate([ask(0, promptTokens)], newTokens));
  await measure('again', () => generate([ask(1, promptTokens)], newTokens));
  await measure('batch', () =>
    generate(
      [2, 3, 4, 5].map((user) => ask(user, promptTokens)),
      newTokens,
    ),
  );
  await measure('atOnce', async () =>
    (await Promise.all([6, 7, 8, 9].map((user) => generate([ask(user, shortTokens)], newTokens)))).flat(),
  );
  process.stdout.write('\n'); // memory is measured up to here
  const delays = new LoopDelays();
  const longest = mode === 'ours' ? longTokens : shortTokens; // a stock session takes minutes for more
  await generate([system.slice(0, longest).map((token) => 501 + (token % 11))], 1);
  const { longestMs: longestGapMs, longestCpuMs } = delays.end();
  const measured: Measured = { cpuMs, answers, longestGapMs, longestCpuMs };
  process.stdout.write(JSON.stringify(measured), () => {
    process.exit(0);
  });
}

if (require.main === module) void main(process.argv[2]!, process.argv[3]!);
