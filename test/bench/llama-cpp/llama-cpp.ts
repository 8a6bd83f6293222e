// The reference engine beside llama.cpp: the same file of random weights of SmolLM2-360M's shape, the same prompts, greedily, in turns within one
// run, each program in a process of its own that the other waits for. Run it: node build-test/bench/llama-cpp/llama-cpp.js [F16 …] [--rounds 5],
// once `npm test -- build-test/base` has compiled it and `npm install --prefix build/llama-cpp --no-save node-llama-cpp@3` has installed the other.

import { fork, type ChildProcess } from 'node:child_process';
import { once } from 'node:events';
import { existsSync, mkdirSync } from 'node:fs';
import { availableParallelism, cpus } from 'node:os';
import * as path from 'node:path';

import Table from 'cli-table3';

import type { GgufTypeName } from '../../helpers/made-gguf.js';
import { format, median } from '../measure.js';
import { text, type Answer, type Load } from './loads.js';
import { writeRandomGguf } from './random-gguf.js';

const folder = path.resolve(__dirname, '..', '..', '..', 'build', 'llama-cpp');
const peer = path.join(folder, 'node_modules', 'node-llama-cpp');
const types = ['F16', 'BF16', 'Q8_0', 'F32'] as const satisfies readonly GgufTypeName[];
const sharedTokens = 1_500;

interface Case {
  readonly name: string;
  /** `number` makes texts that were not seen before. */
  load(number: number): Load;
  /** Tokens, of which a second has so many; undefined: seconds are what counts, and fewer are better. */
  readonly counted?: number;
}

const unlike = (count: number, promptTokens: number, newTokens: number) => (number: number): Load =>
  ({ prompts: Array.from({ length: count }, (_, at) => text(100 * number + at, promptTokens)), newTokens, isShared: false });

const cases: readonly Case[] = [
  { name: 'decode, 1 sequence, tokens/s', load: unlike(1, 16, 64), counted: 64 },
  { name: 'prefill 512, tokens/s', load: unlike(1, 512, 1), counted: 512 },
  { name: 'decode, 8 sequences, tokens/s', load: unlike(8, 16, 48), counted: 8 * 48 },
  { name: 'decode, 16 sequences, tokens/s', load: unlike(16, 16, 48), counted: 16 * 48 },
  { name: `16 requests sharing ${format(sharedTokens)} tokens, seconds`, load: (number) => ({
    prompts: Array.from({ length: 16 }, (_, at) => [...text(100 * number, sharedTokens), ...text(100 * number + 1 + at, 16)]), newTokens: 32, isShared: true,
  }) },
];

class Side {
  readonly answers = cases.map((): Answer[] => []);
  readonly #child: ChildProcess;

  constructor(script: string, parameters: readonly string[]) {
    this.#child = fork(path.join(__dirname, script), parameters);
    this.#child.once('exit', (code) => { if (code !== 0) throw new Error(`${script} ended with ${code}.`); });
  }

  async ready(): Promise<this> {
    await once(this.#child, 'message');
    return this;
  }

  async ask(load: Load): Promise<Answer> {
    const answered = once(this.#child, 'message') as Promise<[Answer]>;
    this.#child.send(load);
    return (await answered)[0];
  }

  end(): void {
    this.#child.disconnect();
  }
}

async function compare(type: GgufTypeName, rounds: number): Promise<string> {
  const file = path.join(folder, `random-${type}.gguf`);
  if (!existsSync(file)) writeRandomGguf(file, type);
  const ours = await new Side('ours.js', [file]).ready();
  const theirs = await new Side('theirs.js', [file, peer]).ready();
  let [same, compared] = [0, 0];
  for (let round = 0; round <= rounds; round += 1) { // the first one warms up
    for (const [at, { load }] of cases.entries()) {
      const asked = load(cases.length * round + at);
      const pair: Answer[] = [];
      for (const side of round % 2 === 0 ? [ours, theirs] : [theirs, ours]) {
        const answer = await side.ask(asked);
        pair.push(answer);
        if (round > 0) side.answers[at]!.push(answer);
      }
      const [first, second] = pair as [Answer, Answer];
      const differs = first.tokens.findIndex((token, index) => token !== second.tokens[index]);
      same += differs < 0 ? first.tokens.length : differs;
      compared += first.tokens.length;
    }
    process.stderr.write('.');
  }
  ours.end();
  theirs.end();

  const table = new Table({ head: [`${type}, median of ${rounds} rounds`, 'virtual-kv', 'llama.cpp', 'ratio'], style: { head: [], border: [] } });
  const row = (name: string, of: (side: Side) => readonly number[], isMoreBetter: boolean, digits = 1): void => {
    const [own, other] = [of(ours), of(theirs)];
    const ratio = median(own.map((value, round) => isMoreBetter ? value / other[round]! : other[round]! / value));
    table.push([name, format(median(own), digits), format(median(other), digits), `${format(ratio, 2)} ×`]);
  };
  for (const [at, { name, counted }] of cases.entries()) {
    row(name, (side) => side.answers[at]!.map(({ seconds }) => counted === undefined ? seconds : counted / seconds), counted !== undefined);
  }
  for (const at of [1, 3]) row(`longest gap of a 10 ms timer, ${cases[at]!.name.split(',', 2).slice(0, at === 1 ? 1 : 2).join(',')}, ms`, (side) => side.answers[at]!.map(({ longestGapMs }) => longestGapMs), false, 0);
  row('private memory that was written to, MiB', (side) => side.answers.flat().slice(-rounds).map(({ privateBytes }) => privateBytes / 2 ** 20), false, 0);
  return `${table.toString()}\nThe first ${format(same)} of ${format(compared)} tokens are the same, until one differs in an answer.\n`;
}

async function main(): Promise<void> {
  if (!existsSync(peer)) throw new Error(`node-llama-cpp is not there: npm install --prefix ${path.relative(process.cwd(), folder)} --no-save node-llama-cpp@3`);
  const at = process.argv.indexOf('--rounds');
  const rounds = at < 0 ? 5 : Number(process.argv[at + 1]);
  const chosen = types.filter((type) => process.argv.includes(type));
  mkdirSync(folder, { recursive: true });
  console.log(`${cpus()[0]?.model ?? 'unknown CPU'}, ${availableParallelism()} threads, Node ${process.version}`);
  for (const type of chosen.length > 0 ? chosen : types) console.log(await compare(type, rounds));
}

void main();
