// Asks both programs to do the same loads, in turns, with one file of random weights: each is a process of its own, that the other waits for.
// llama.cpp has several ways to do a load: a process that is not measured tries them first, and the fastest is taken.

import { fork, type ChildProcess } from 'node:child_process';
import { once } from 'node:events';
import { existsSync, mkdirSync, utimesSync } from 'node:fs';
import * as path from 'node:path';

import type { GgufTypeName } from '../../helpers/made-gguf.js';
import { format, median } from '../measure.js';
import { text, type Answer, type Load, type Question, type Setting } from './loads.js';
import { writeRandomGguf } from './random-gguf.js';

export const folder = path.resolve(__dirname, '..', '..', '..', 'build', 'llama-cpp');
export const peer = path.join(folder, 'node_modules', 'node-llama-cpp');
export const howToInstall = `node-llama-cpp is not there: npm install --prefix ${path.relative(process.cwd(), folder)} --no-save node-llama-cpp@3`;
export const types = ['F16', 'BF16', 'Q8_0', 'F32'] as const satisfies readonly GgufTypeName[];

const sharedTokens = 1_500;

interface Case {
  readonly name: string;
  /** `number` makes texts that were not seen before. */
  load(number: number): Load;
  /** Tokens, of which a second has so many; undefined: seconds are what counts, and fewer are better. */
  readonly counted?: number;
  /** What a timer says meanwhile is of interest. */
  readonly gap?: string;
}

const unlike = (count: number, promptTokens: number, newTokens: number) => (number: number): Load =>
  ({ prompts: Array.from({ length: count }, (_, at) => text(100 * number + at, promptTokens)), newTokens, isShared: false });

export const cases: readonly Case[] = [
  { name: 'decode, 1 sequence, tokens/s', load: unlike(1, 16, 64), counted: 64 },
  { name: 'prefill 512, tokens/s', load: unlike(1, 512, 1), counted: 512, gap: 'prefill 512' },
  { name: 'decode, 8 sequences, tokens/s', load: unlike(8, 16, 48), counted: 8 * 48 },
  { name: 'decode, 16 sequences, tokens/s', load: unlike(16, 16, 48), counted: 16 * 48, gap: 'decode, 16 sequences' },
  { name: `16 requests sharing ${format(sharedTokens)} tokens, seconds`, load: (number) => ({
    prompts: Array.from({ length: 16 }, (_, at) => [...text(100 * number, sharedTokens), ...text(100 * number + 1 + at, 16)]), newTokens: 32, isShared: true,
  }) },
];

/** A load's ways in llama.cpp, those that are the same for it left out. */
function settingsOf({ prompts, isShared }: Load): readonly Setting[] {
  return [true, false].flatMap((flashAttention): Setting[] => {
    if (prompts.length === 1) return [{ flashAttention, steps: 'common', shared: 'turns' }];
    if (isShared) return (['turns', 'copies'] as const).map((shared) => ({ flashAttention, steps: 'common', shared }));
    return (['free', 'common'] as const).map((steps) => ({ flashAttention, steps, shared: 'turns' }));
  });
}

function nameOf({ flashAttention, steps, shared }: Setting, { prompts, isShared }: Load): string {
  const way = isShared ? (shared === 'turns' ? ', one after another' : ', copies of the shared state') : `, each step ${steps === 'free' ? 'for those that are ready' : 'for all'}`;
  return `flash attention ${flashAttention ? 'on' : 'off'}${prompts.length === 1 ? '' : way}`;
}

class Side {
  readonly #child: ChildProcess;
  readonly #ready: Promise<unknown>;

  constructor(script: string, parameters: readonly string[]) {
    this.#child = fork(path.join(__dirname, script), parameters);
    this.#child.once('exit', (code) => { if (code !== 0) throw new Error(`${script} ended with ${code}.`); });
    this.#ready = once(this.#child, 'message');
  }

  async ask(question: Question): Promise<Answer> {
    await this.#ready;
    const answered = once(this.#child, 'message') as Promise<[Answer]>;
    this.#child.send(question);
    return (await answered)[0];
  }

  async end(): Promise<void> {
    this.#child.disconnect();
    await once(this.#child, 'exit');
  }
}

/** A line of the table: what each round gave. */
export interface Row {
  readonly name: string;
  readonly ours: readonly number[];
  readonly theirs: readonly number[];
  readonly isMoreBetter: boolean;
  readonly hasSpread: boolean;
  /** Of llama.cpp. */
  readonly setting: string | undefined;
}

export interface Comparison {
  readonly type: GgufTypeName;
  readonly rows: readonly Row[];
  /** Tokens that both gave, up to the first in each answer that differs, of all. */
  readonly sameTokens: number;
  readonly tokens: number;
}

/** Of each round, above 1 where this engine is ahead. */
export const ratios = ({ ours, theirs, isMoreBetter }: Row): readonly number[] =>
  ours.map((value, round) => isMoreBetter ? value / theirs[round]! : theirs[round]! / value);

/** Whether one engine is ahead in some rounds and the other one in others. */
export const isEqual = (row: Row): boolean => Math.min(...ratios(row)) <= 1 && Math.max(...ratios(row)) >= 1;

/** The fastest setting of each load, by its second time: the first opens a context. `number` names texts that no round has. */
async function bestSettings(theirs: Side, chosen: readonly Case[], number: number): Promise<Map<Case, Setting>> {
  const best = new Map<Case, Setting>();
  for (const each of chosen) {
    let least = Infinity;
    for (const setting of settingsOf(each.load(number))) {
      let seconds = 0;
      for (let time = 0; time < 2; time += 1) ({ seconds } = await theirs.ask({ load: each.load(number++), setting }));
      if (seconds < least) best.set(each, setting);
      least = Math.min(least, seconds);
    }
  }
  return best;
}

/** Loads whose names begin with `chosen`. */
export async function compare(type: GgufTypeName, rounds: number, chosen = ''): Promise<Comparison> {
  mkdirSync(folder, { recursive: true });
  const file = path.join(folder, `random-${type}.gguf`);
  if (!existsSync(file)) {
    writeRandomGguf(file, type);
    utimesSync(file, 0, 0); // what was written to a moment ago is copied instead of mapped
  }
  const loads = cases.filter(({ name }) => name.startsWith(chosen));
  const trying = new Side('theirs.js', [file, peer]);
  const settings = await bestSettings(trying, loads, cases.length * (rounds + 1));
  await trying.end();

  const sides = { ours: new Side('ours.js', [file]), theirs: new Side('theirs.js', [file, peer]) };
  const answers = new Map(loads.map((each) => [each, { ours: [] as Answer[], theirs: [] as Answer[] }]));
  let [sameTokens, tokens] = [0, 0];
  for (let round = 0; round <= rounds; round += 1) { // the first one warms up
    for (const [at, each] of loads.entries()) {
      const question = { load: each.load(cases.length * round + at), setting: settings.get(each)! };
      const given = { ours: [] as Answer['tokens'], theirs: [] as Answer['tokens'] };
      for (const side of round % 2 === 0 ? ['ours', 'theirs'] as const : ['theirs', 'ours'] as const) {
        const answer = await sides[side].ask(question);
        given[side] = answer.tokens;
        if (round > 0) answers.get(each)![side].push(answer);
      }
      for (const [prompt, own] of given.ours.entries()) {
        const differs = own.findIndex((token, index) => token !== given.theirs[prompt]![index]);
        sameTokens += differs < 0 ? own.length : differs;
        tokens += own.length;
      }
    }
    process.stderr.write('.');
  }
  await Promise.all(Object.values(sides).map((side) => side.end()));

  const rowOf = (each: Case, name: string, of: (answer: Answer) => number, isMoreBetter: boolean, hasSpread: boolean, setting?: string): Row => {
    const { ours, theirs } = answers.get(each)!;
    return { name, ours: ours.map(of), theirs: theirs.map(of), isMoreBetter, hasSpread, setting };
  };
  const rows = loads.map((each) => {
    const counted = each.counted;
    return rowOf(each, each.name, ({ seconds }) => counted === undefined ? seconds : counted / seconds, counted !== undefined, false, nameOf(settings.get(each)!, each.load(0)));
  });
  for (const each of loads) {
    if (each.gap !== undefined) rows.push(rowOf(each, `longest gap of a 10 ms timer, ${each.gap}, ms`, ({ longestGapMs }) => longestGapMs, false, true));
  }
  rows.push(rowOf(loads.at(-1)!, 'private memory that was written to, MiB', ({ privateBytes }) => privateBytes / 2 ** 20, false, false));
  return { type, rows, sameTokens, tokens };
}

/** A side's numbers as text. */
export function numbersOf(values: readonly number[], { hasSpread, isMoreBetter }: Row): string {
  const digits = hasSpread || median(values) >= 200 ? 0 : isMoreBetter ? 1 : 2;
  const shown = (value: number): string => format(value, digits);
  return `${shown(median(values))}${hasSpread ? ` (${shown(Math.min(...values))}–${shown(Math.max(...values))})` : ''}`;
}

export const verdictOf = (row: Row): string => isEqual(row) ? 'equal within the spread' : `${format(median(ratios(row)), 2)} ×`;
