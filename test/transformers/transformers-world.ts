// A made decoder twice in transformers.js: as it is, and on this package's memory. And the tests that need
// transformers.js, which are skipped by that name where it is not installed.

import { existsSync, mkdirSync, writeFileSync } from 'node:fs';
import { createRequire } from 'node:module';
import * as path from 'node:path';

import test, { type ExecutionContext, type Implementation } from 'ava';

import { install, type InstallOptions, type TransformersMemory } from 'virtual-kv/transformers';

import { folderOf } from '../helpers/temporary-folder.js';
import { madeDecoder, type DecoderForm } from '../onnx/made-decoder.js';

/** Where `@huggingface/transformers` is installed: by the example, or, to test another version, where this names. */
export const home =
  process.env['VKV_TEST_TRANSFORMERS'] ?? path.resolve(__dirname, '..', '..', 'examples', 'transformers');
const isThere = existsSync(path.join(home, 'node_modules', '@huggingface', 'transformers'));

/** A test that runs transformers.js, one after the other: `install` is for the whole process. */
export function transformersTest(title: string, run: Implementation<[]>): void {
  if (isThere) test.serial(title, run);
  else
    test.serial.skip(
      `${title} [@huggingface/transformers is not installed; \`npm run example -- transformers\` installs it]`,
      run,
    );
}

export interface Tensor {
  readonly type: string;
  readonly dims: readonly number[];
  readonly location: string;
  readonly data: BigInt64Array | Float32Array;
  dispose(): void;
}

export type PastValues = Record<string, Tensor> & { get_seq_length(): number; dispose(): Promise<void> };

/** Beside these: options of `generate`. */
export interface Inputs extends Readonly<Record<string, unknown>> {
  readonly input_ids: Tensor;
  readonly attention_mask: Tensor;
}

export interface Generated {
  readonly sequences: Tensor;
  readonly past_key_values: PastValues;
}

export interface Model {
  (inputs: Inputs): Promise<Record<string, Tensor>>;
  generate(options: Inputs): Promise<Tensor>;
  dispose(): Promise<unknown>;
}

interface Library {
  readonly AutoModelForCausalLM: { from_pretrained(name: string, options: object): Promise<Model> };
  readonly Tensor: new (type: string, data: BigInt64Array | Float32Array, dims: readonly number[]) => Tensor;
  readonly DynamicCache: new (entries: Record<string, Tensor>) => PastValues;
  readonly StoppingCriteria: new () => object;
  readonly env: { allowRemoteModels: boolean; localModelPath: string; logLevel: number };
}

export const library = (): Library =>
  createRequire(path.join(home, 'package.json'))('@huggingface/transformers') as Library;

/** Tokens of an answer never end it: there is no such token. */
const noToken = 1_000;

/** Writes a model as transformers.js reads it; returns its name. */
export function writeModel(t: ExecutionContext, form: DecoderForm, modelType = 'llama'): string {
  const made = madeDecoder(form, 7);
  const folder = folderOf(t);
  mkdirSync(path.join(folder, 'onnx'));
  writeFileSync(path.join(folder, 'onnx', 'model.onnx'), made.bytes);
  const { layers, heads, kvHeads, dim, vocabulary } = made.form;
  writeFileSync(
    path.join(folder, 'config.json'),
    JSON.stringify({
      model_type: modelType,
      architectures: ['LlamaForCausalLM'],
      vocab_size: vocabulary,
      hidden_size: 64,
      num_hidden_layers: layers,
      num_attention_heads: heads,
      num_key_value_heads: kvHeads,
      head_dim: dim,
      eos_token_id: noToken,
      pad_token_id: 0,
    }),
  );
  writeFileSync(
    path.join(folder, 'generation_config.json'),
    JSON.stringify({ eos_token_id: noToken, pad_token_id: 0 }),
  );
  return folder;
}

export async function loadModel(t: ExecutionContext, folder: string): Promise<Model> {
  const { AutoModelForCausalLM, env } = library();
  env.allowRemoteModels = false;
  env.localModelPath = '/';
  env.logLevel = 50; // errors are asserted
  const model = await AutoModelForCausalLM.from_pretrained(folder, {
    dtype: 'fp32',
    device: 'cpu',
    session_options: { intraOpNumThreads: 1 },
  });
  t.teardown(() => model.dispose());
  return model;
}

export interface World {
  readonly stock: Model;
  readonly ours: Model;
  readonly memory: TransformersMemory;
}

/** A row of the cache has 32 tokens. */
const wide: DecoderForm = { heads: 8, kvHeads: 4, dim: 128, positions: 512 };

export async function openWorld(
  t: ExecutionContext,
  {
    form = wide,
    modelType,
    ...options
  }: Partial<InstallOptions> & { readonly form?: DecoderForm; readonly modelType?: string } = {},
): Promise<World> {
  const folder = writeModel(t, form, modelType);
  const stock = await loadModel(t, folder);
  const memory = installHere(t, options);
  const ours = await loadModel(t, folder);
  return { stock, ours, memory };
}

/** Calls wait for each other as long as that takes, on a busy machine too. */
export function installHere(t: ExecutionContext, options: Partial<InstallOptions> = {}): TransformersMemory {
  const memory = install({ memoryBudgetBytes: 2 ** 25, slots: 8, waitMs: 3_600_000, from: home, ...options });
  t.teardown(() => memory.close());
  return memory;
}

/** A batch of texts, padded on a side to the longest. */
export function batchOf(texts: readonly (readonly number[])[], side: 'left' | 'right' = 'left'): Inputs {
  const { Tensor } = library();
  const longest = Math.max(...texts.map(({ length }) => length));
  const padded = (text: readonly number[], padding: number): readonly number[] => {
    const pads = new Array<number>(longest - text.length).fill(padding);
    return side === 'left' ? [...pads, ...text] : [...text, ...pads];
  };
  const long = (rows: readonly (readonly number[])[]): Tensor =>
    new Tensor('int64', BigInt64Array.from(rows.flat(), BigInt), [texts.length, longest]);
  return {
    input_ids: long(texts.map((text) => padded(text, 0))),
    attention_mask: long(
      texts.map((text) =>
        padded(
          text.map(() => 1),
          0,
        ),
      ),
    ),
  };
}

/** The last `count` tokens of each row. */
export function lastTokens({ dims, data }: Tensor, count: number): number[][] {
  const [rows, columns] = dims as [number, number];
  return Array.from({ length: rows }, (_, row) =>
    Array.from(data.slice((row + 1) * columns - count, (row + 1) * columns), Number),
  );
}

/** Greedy answers of `count` tokens. */
export async function answersOf(model: Model, inputs: Inputs, count: number): Promise<number[][]> {
  return lastTokens(await model.generate({ ...inputs, max_new_tokens: count, do_sample: false }), count);
}
