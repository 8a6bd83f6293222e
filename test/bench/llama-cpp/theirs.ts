// llama.cpp through node-llama-cpp, in a process of its own: node theirs.js FILE PACKAGE-FOLDER. Prompts have a sequence each, in batches that
// can hold them all. A load comes with a setting (loads.ts), as what serves it best depends on the load and the machine.

import { rmSync } from 'node:fs';
import * as path from 'node:path';
import { pathToFileURL } from 'node:url';

import { serve, type Setting } from './loads.js';

interface Sequence {
  evaluate(tokens: readonly number[], options: { readonly temperature: number; readonly yieldEogToken: boolean }): AsyncIterableIterator<number>;
  adaptStateToTokens(tokens: readonly number[], allowShift: boolean): Promise<void>;
  saveStateToFile(file: string): Promise<unknown>;
  loadStateFromFile(file: string, risk: { readonly acceptRisk: true }): Promise<void>;
  readonly nextTokenIndex: number;
}
interface Context {
  getSequence(): Sequence;
}
interface ContextOptions {
  readonly contextSize: number;
  readonly sequences: number;
  readonly batchSize: number;
  readonly threads: number;
  readonly flashAttention: boolean;
}
interface Model {
  createContext(options: ContextOptions): Promise<Context>;
}
interface Llama {
  loadModel(options: { readonly modelPath: string; readonly gpuLayers: number }): Promise<Model>;
}

type Answers = readonly (readonly number[])[];

const [, , file, folder] = process.argv;

const begin = (sequence: Sequence, prompt: readonly number[]): AsyncIterableIterator<number> =>
  sequence.evaluate(prompt.slice(sequence.nextTokenIndex), { temperature: 0, yieldEogToken: true });

/** Each sequence goes on as it can: a batch has those whose last token was there when it began. */
function answerFreely(sequences: readonly Sequence[], prompts: Answers, newTokens: number): Promise<Answers> {
  return Promise.all(prompts.map(async (prompt, at) => {
    const tokens: number[] = [];
    for await (const token of begin(sequences[at]!, prompt)) if (tokens.push(token) >= newTokens) break;
    return tokens;
  }));
}

/** All go on when the last has its token: each batch has a token of each. */
async function answerInStep(sequences: readonly Sequence[], prompts: Answers, newTokens: number): Promise<Answers> {
  const texts = prompts.map((prompt, at) => begin(sequences[at]!, prompt));
  const answers = prompts.map((): number[] => []);
  for (let made = 0; made < newTokens; made += 1) {
    const tokens = await Promise.all(texts.map((text) => text.next()));
    tokens.forEach(({ value }, at) => { answers[at]!.push(value as number); });
  }
  await Promise.all(texts.map((text) => text.return!()));
  return answers;
}

async function main(): Promise<void> {
  const { getLlama } = await import(pathToFileURL(path.join(folder!, 'dist', 'index.js')).href) as { getLlama(options: object): Promise<Llama> };
  const llama = await getLlama({ gpu: false, build: 'never', logLevel: 'error' });
  const model = await llama.loadModel({ modelPath: file!, gpuLayers: 0 });
  const opened = new Map<string, Promise<readonly Sequence[]>>();
  const open = (contextSize: number, sequences: number, flashAttention: boolean): Promise<readonly Sequence[]> => {
    const name = `${contextSize} ${sequences} ${flashAttention}`;
    const begun = opened.get(name) ?? model.createContext({ contextSize, sequences, batchSize: 2_048, threads: 2, flashAttention })
      .then((context) => Array.from({ length: sequences }, () => context.getSequence()));
    opened.set(name, begun);
    return begun;
  };
  /** Leaves what the sequences have of their prompts, but for a token at least, which is computed. */
  const adapt = async (sequences: readonly Sequence[], prompts: Answers): Promise<void> => {
    for (const [at, prompt] of prompts.entries()) await sequences[at]!.adaptStateToTokens(prompt.slice(0, -1), false);
  };
  const inTurns = async (prompts: Answers, newTokens: number, flashAttention: boolean): Promise<Answers> => {
    const [sequence] = await open(2_048, 1, flashAttention);
    const answers: (readonly number[])[] = [];
    for (const prompt of prompts) {
      await adapt([sequence!], [prompt]);
      answers.push(...await answerInStep([sequence!], [prompt], newTokens));
    }
    return answers;
  };
  const fromCopies = async (prompts: Answers, newTokens: number, flashAttention: boolean): Promise<Answers> => {
    const sequences = await open(2_048, 16, flashAttention);
    const [first, ...others] = sequences.slice(0, prompts.length);
    await adapt(sequences, prompts);
    let shared = 0;
    while (prompts.every((prompt) => prompt[shared] === prompts[0]![shared])) shared += 1;
    const text = begin(first!, prompts[0]!.slice(0, shared));
    await text.next();
    await text.return!();
    await first!.adaptStateToTokens(prompts[0]!.slice(0, shared), false);
    const state = `${file!}.state`;
    await first!.saveStateToFile(state);
    for (const sequence of others) await sequence.loadStateFromFile(state, { acceptRisk: true });
    rmSync(state);
    return answerInStep(sequences, prompts, newTokens);
  };
  serve({
    async answer({ prompts, newTokens, isShared }, { flashAttention, steps, shared }: Setting) {
      if (prompts.length === 1 || (isShared && shared === 'turns')) return inTurns(prompts, newTokens, flashAttention);
      if (isShared) return fromCopies(prompts, newTokens, flashAttention);
      const sequences = await open(256, 16, flashAttention);
      await adapt(sequences, prompts);
      return (steps === 'free' ? answerFreely : answerInStep)(sequences, prompts, newTokens);
    },
  });
}

void main();
