// llama.cpp through node-llama-cpp, in a process of its own: node theirs.js FILE PACKAGE-FOLDER. Prompts have a sequence
// each, in batches that can hold them all; those that begin alike are answered in turns by one sequence, which keeps what they have in common.

import * as path from 'node:path';
import { pathToFileURL } from 'node:url';

import { serve } from './loads.js';

interface Sequence {
  evaluate(tokens: readonly number[], options: { readonly temperature: number; readonly yieldEogToken: boolean }): AsyncIterable<number>;
  adaptStateToTokens(tokens: readonly number[], allowShift: boolean): Promise<void>;
  readonly nextTokenIndex: number;
}
interface Context {
  getSequence(): Sequence;
}
interface Model {
  createContext(options: { readonly contextSize: number; readonly sequences: number; readonly batchSize: number; readonly threads: number }): Promise<Context>;
}
interface Llama {
  loadModel(options: { readonly modelPath: string; readonly gpuLayers: number }): Promise<Model>;
}

const [, , file, folder] = process.argv;

async function main(): Promise<void> {
  const { getLlama } = await import(pathToFileURL(path.join(folder!, 'dist', 'index.js')).href) as { getLlama(options: object): Promise<Llama> };
  const llama = await getLlama({ gpu: false, build: 'never', logLevel: 'error' });
  const model = await llama.loadModel({ modelPath: file!, gpuLayers: 0 });
  const open = async (contextSize: number, count: number): Promise<readonly Sequence[]> => {
    const context = await model.createContext({ contextSize, sequences: count, batchSize: 2_048, threads: 2 });
    return Array.from({ length: count }, () => context.getSequence());
  };
  let [single, many]: (readonly Sequence[] | undefined)[] = [];
  const one = async (sequence: Sequence, prompt: readonly number[], newTokens: number): Promise<readonly number[]> => {
    await sequence.adaptStateToTokens(prompt.slice(0, -1), false); // one token at least is computed
    const tokens: number[] = [];
    for await (const token of sequence.evaluate(prompt.slice(sequence.nextTokenIndex), { temperature: 0, yieldEogToken: true })) {
      if (tokens.push(token) >= newTokens) break;
    }
    return tokens;
  };
  serve({
    async answer({ prompts, newTokens, isShared }) {
      if (prompts.length > 1 && !isShared) {
        many ??= await open(256, 16);
        return Promise.all(prompts.map((prompt, at) => one(many![at]!, prompt, newTokens)));
      }
      single ??= await open(2_048, 1);
      const answers = [];
      for (const prompt of prompts) answers.push(await one(single[0]!, prompt, newTokens));
      return answers;
    },
  });
}

void main();
