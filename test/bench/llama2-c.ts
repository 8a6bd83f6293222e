// The reference engine beside llama2.c, each decoding one sequence in float32 in a process of its own, in turns: the same random weights of SmolLM2
// 360M's shape, both files mapped, greedily. Its run.c is not part of this project: `VKV_LLAMA2C=FOLDER npm run bench -- llama2-c` names a clone of
// https://github.com/karpathy/llama2.c, and compiles it as its `make runomp` does (-Ofast, OpenMP, for this processor).

import { fork, spawn, spawnSync } from 'node:child_process';
import { once } from 'node:events';
import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import * as path from 'node:path';

import { writeLlama2 } from './llama2-model.js';
import type { Decoded } from './mapped-decode.js';
import { format, median, type BenchResult } from './measure.js';
import { privateBytes } from './private-bytes.js';

const rounds = 7;
/** Of a decoded text; of a prompt, which llama2.c computes token by token, as it decodes. */
const [newTokens, promptTokens] = [64, 512];

/** Answers with nothing where llama2.c is not there, and says what to do. */
export async function llama2C(): Promise<BenchResult[]> {
  const clone = process.env['VKV_LLAMA2C'];
  if (clone === undefined) {
    console.error('llama2.c is not there: let VKV_LLAMA2C name a clone of https://github.com/karpathy/llama2.c');
    return [];
  }
  const folder = mkdtempSync(path.join(tmpdir(), 'vkv-bench-llama2-'));
  try {
    const given = ['-Ofast', '-fopenmp', '-march=native', path.join(clone, 'run.c'), '-lm', '-o', path.join(folder, 'run')];
    const { status, stderr } = spawnSync(process.env['CC'] ?? 'cc', given, { encoding: 'utf8' });
    if (status !== 0) throw new Error(stderr);
    writeLlama2(folder);
    return await compare(folder);
  } finally {
    rmSync(folder, { recursive: true });
  }
}

async function compare(folder: string): Promise<BenchResult[]> {
  const sides = { ours: [] as Decoded[], theirs: [] as Decoded[] };
  for (let round = 0; round <= rounds; round += 1) { // the first one warms up
    for (const side of round % 2 === 0 ? ['ours', 'theirs'] as const : ['theirs', 'ours'] as const) {
      const decoded = await (side === 'ours' ? decodeOurs(folder) : decodeTheirs(folder, newTokens));
      if (round > 0) sides[side].push(decoded);
    }
  }
  const { ours, theirs } = sides;
  const of = (side: readonly Decoded[], what: 'tokensPerS' | 'privateBytes'): number => median(side.map((decoded) => decoded[what]));
  const ratio = median(ours.map(({ tokensPerS }, round) => tokensPerS / theirs[round]!.tokensPerS));
  const differs = ours[0]!.tokens.findIndex((token, at) => token !== theirs[0]!.tokens[at]);
  const [ownBytes, theirBytes] = [of(ours, 'privateBytes'), of(theirs, 'privateBytes')];
  const long = await decodeTheirs(folder, promptTokens + 1);
  return [{
    name: 'float32 beside llama2.c, decode, 1 sequence, mapped', value: `${format(of(ours, 'tokensPerS'))} tokens/s`,
    against: `llama2.c ${format(of(theirs, 'tokensPerS'))} tokens/s: ${format(ratio, 2)} ×; goal ≥ 1 ×`, isGoalMet: ratio >= 1,
    numbers: { tokensPerS: of(ours, 'tokensPerS'), theirTokensPerS: of(theirs, 'tokensPerS'), ratio },
  }, {
    name: 'float32 beside llama2.c: private memory that was written to', value: `${format(ownBytes / 2 ** 20)} MiB`,
    against: `llama2.c ${format(theirBytes / 2 ** 20)} MiB; Node.js alone ${format(ours[0]!.bytesBefore / 2 ** 20)} MiB`, isGoalMet: undefined, numbers: { privateBytes: ownBytes, theirPrivateBytes: theirBytes },
  }, {
    name: `float32 beside llama2.c: ${promptTokens} tokens of a prompt, one by one`, value: `${format(long.tokensPerS)} tokens/s by llama2.c`, against: '', isGoalMet: undefined,
    numbers: { theirTokensPerS: long.tokensPerS },
  }, {
    name: 'float32 beside llama2.c: tokens up to the first that differs', value: format(differs < 0 ? newTokens : differs), against: `of ${newTokens}`, isGoalMet: undefined,
    numbers: { sameTokens: differs < 0 ? newTokens : differs },
  }];
}

async function decodeOurs(folder: string): Promise<Decoded> {
  const child = fork(path.join(__dirname, 'mapped-decode.js'), [folder, String(newTokens)]);
  const [decoded] = await once(child, 'message') as [Decoded];
  await once(child, 'exit');
  return decoded;
}

/** Its tokens' texts are their numbers (llama2-model.ts). Its memory is read when it has said all but a few. */
async function decodeTheirs(folder: string, tokens: number): Promise<Decoded> {
  const child = spawn(path.join(folder, 'run'), ['random.bin', '-z', 'tokenizer.bin', '-t', '0', '-n', String(tokens)], { cwd: folder, stdio: ['ignore', 'pipe', 'pipe'] });
  let [text, speed, bytes] = ['', '', 0];
  child.stdout.setEncoding('latin1').on('data', (more: string) => {
    text += more;
    if (bytes === 0 && text.split(' ').length >= tokens - 4) bytes = privateBytes(child.pid);
  });
  child.stderr.setEncoding('latin1').on('data', (more: string) => { speed += more; });
  const [status] = await once(child, 'close') as [number | null];
  const tokensPerS = Number(/achieved tok\/s: ([\d.]+)/.exec(speed)?.[1]);
  if (status !== 0 || !(tokensPerS > 0)) throw new Error(`llama2.c ended with ${status}: ${speed}`);
  return { tokens: text.trim().split(/\s+/).map(Number), tokensPerS, bytesBefore: 0, privateBytes: bytes };
}
