// A made decoder twice: in onnxruntime-node as it is, with fresh pasts; and opened by this package over a cache. And the tests that need
// onnxruntime-node, which are skipped by that name where it is not installed.

import { readFileSync, writeFileSync } from 'node:fs';
import { createRequire } from 'node:module';
import * as path from 'node:path';

import test, { type ExecutionContext, type Implementation } from 'ava';

import { KvCache, type KvCacheOptions } from 'virtual-kv';
import { OnnxDecoder } from 'virtual-kv/onnx';

import { maskWindows } from '#internal/onnx/causal-mask.js';
import { planDecoder, writeDecoder } from '#internal/onnx/decoder-graph.js';
import { OnnxEngine } from '#internal/onnx/engine.js';
import { float16Values } from '#internal/onnx/float16-values.js';
import { libraryOf } from '#internal/onnx/library.js';
import { OnnxSession as Session } from '#internal/onnx/session.js';
import { measureUnfused } from '#internal/onnx/unfused-attention.js';
import { whyNoOnnxRuntime, type OnnxSession } from '../../build-examples/onnxruntime/runtime.js';
import { folderOf } from '../helpers/temporary-folder.js';
import type { UnfusedForm } from './made-attention.js';
import { madeDecoder, type DecoderForm, type MadeDecoder } from './made-decoder.js';

/** Where onnxruntime-node is installed: by the example, or, to test another version, where this names. */
export const home = process.env['VKV_TEST_ONNXRUNTIME'] ?? path.resolve(__dirname, '..', '..', 'examples', 'onnxruntime');
const load = createRequire(path.join(home, 'package.json'));
const missing = process.env['VKV_TEST_ONNXRUNTIME'] === undefined ? whyNoOnnxRuntime() : undefined;

/** Of that onnxruntime-node, the second number of its version: 24 of 1.24.3. */
const minor = missing === undefined ? minorOf(path.join(home, 'node_modules', 'onnxruntime-node', 'package.json')) : 0;

function minorOf(file: string): number {
  const { version } = JSON.parse(readFileSync(file, 'utf8')) as { readonly version: string };
  return Number(version.split('.')[1]);
}

/** A test that computes by onnxruntime; of a form that it has to have itself, where the two are compared. */
export function onnxTest(title: string, run: Implementation<[]>, declare = test, form: DecoderForm = {}): void {
  const why = missing ?? whyNoForm(form);
  if (why === undefined) declare(title, run);
  else test.skip(`${title} [${why}]`, run);
}

/** Why this version of onnxruntime does not run such a graph as it was exported; undefined: it does. */
function whyNoForm({ hasSinks = false, attention }: DecoderForm): string | undefined {
  const needs = (least: number, what: string): string | undefined =>
    minor < least ? `onnxruntime has ${what} since 1.${least}` : undefined;
  const { kind, softcap }: UnfusedForm = typeof attention === 'object' ? attention : { kind: 'softmax' };
  if (kind !== 'softmax' && softcap !== undefined) return needs(27, 'masks behind the softcap in Attention of opset 23');
  if (kind === 'joined') return needs(23, 'Attention of opset 23');
  if (kind !== 'softmax') return needs(24, 'Attention of opset 23 with a past');
  return hasSinks ? needs(23, 'sinks') : undefined;
}

/**
 * The form with the same logits in this version of onnxruntime: before 1.22 GroupQueryAttention takes no mask, and is causal and
 * has windows by itself; before 1.24 its windows have a token more than they say.
 */
function formOfStock(form: DecoderForm): DecoderForm {
  const { mask, ...unmasked } = form;
  const { attention = 'grouped', maskWindow = 8, windows = [], integers = {} } = form;
  const takesMask = minor >= 22 || attention !== 'grouped' || mask === 'distances';
  const less = minor >= 24 ? 0 : 1;
  const { local_window_size: window = !takesMask && mask === 'windowed' ? maskWindow : 0 } = integers;
  return {
    ...(takesMask ? form : unmasked),
    integers: { ...integers, ...(window > 0 ? { local_window_size: window - less } : {}) },
    windows: windows.map((tokens) => (tokens > 0 ? tokens - less : 0)),
  };
}

/** The library of that onnxruntime-node. */
export function libraryFile(): string {
  return libraryOf(path.join(home, 'node_modules', 'onnxruntime-node'));
}

type Data = Float32Array | BigInt64Array | Uint16Array;

interface StockTensor {
  readonly data: Data;
  readonly dims: readonly number[];
}

interface Stock {
  readonly Tensor: new (type: string, data: Data, dims: readonly number[]) => StockTensor;
  readonly InferenceSession: { create(model: Uint8Array, options: object): Promise<OnnxSession> };
}

const values = ({ data }: StockTensor, isHalf: boolean): Float32Array =>
  isHalf ? float16Values(new Uint16Array(data.buffer, data.byteOffset, data.length)) : data as Float32Array;

/** onnxruntime-node over the graph as it was exported. */
export class StockDecoder {
  readonly #made: MadeDecoder;
  readonly #session: OnnxSession;
  readonly #stock: Stock;

  constructor(made: MadeDecoder, session: OnnxSession, stock: Stock) {
    this.#made = made;
    this.#session = session;
    this.#stock = stock;
  }

  static async open(t: ExecutionContext, made: MadeDecoder): Promise<StockDecoder> {
    const stock = load('onnxruntime-node') as Stock;
    const session = await stock.InferenceSession.create(made.bytes, { executionProviders: ['cpu'], intraOpNumThreads: 1 });
    t.teardown(() => session.release());
    return new StockDecoder(made, session, stock);
  }

  /** Logits behind a text's last token, with a past that computed all before the last `tokens`. */
  async logits(text: readonly number[], tokens = text.length): Promise<Float32Array> {
    const before = tokens === text.length ? undefined : await this.#run(text.slice(0, -tokens), text.length - tokens, undefined);
    return this.#last(await this.#run(text, tokens, before));
  }

  async greedy(text: readonly number[], count: number): Promise<number[]> {
    const whole = [...text];
    let past: Readonly<Record<string, StockTensor>> | undefined;
    for (let made = 0; made < count; made += 1) {
      past = await this.#run(whole, past === undefined ? whole.length : 1, past);
      whole.push(mostLikely(this.#last(past)));
    }
    return whole.slice(text.length);
  }

  #last({ logits }: Readonly<Record<string, StockTensor>>): Float32Array {
    return values(logits!, this.#made.form.isHalf).slice(-this.#made.form.vocabulary);
  }

  async #run(text: readonly number[], tokens: number, past: Readonly<Record<string, StockTensor>> | undefined): Promise<Readonly<Record<string, StockTensor>>> {
    const { form: { kvHeads, dim, isHalf }, inputs } = this.#made;
    const long = (numbers: readonly number[], dims: readonly number[]): StockTensor => new this.#stock.Tensor('int64', BigInt64Array.from(numbers, BigInt), dims);
    const empty = (): StockTensor => new this.#stock.Tensor(isHalf ? 'float16' : 'float32', isHalf ? new Uint16Array(0) : new Float32Array(0), [1, kvHeads, 0, dim]);
    const before = text.length - tokens;
    const feeds = Object.fromEntries(inputs.map((name) => {
      if (name === 'input_ids') return [name, long(text.slice(before), [1, tokens])];
      if (name === 'attention_mask') return [name, long(text.map(() => 1), [1, text.length])];
      if (name === 'position_ids') return [name, long(Array.from({ length: tokens }, (_, at) => before + at), [1, tokens])];
      if (name === 'num_logits_to_keep') return [name, long([1], [])];
      return [name, past?.[name.replace('past_key_values', 'present')] ?? empty()];
    }));
    return this.#session.run(feeds as never) as Promise<Readonly<Record<string, StockTensor>>>;
  }
}

export function mostLikely(logits: Float32Array): number {
  return logits.indexOf(Math.max(...logits));
}

export interface OnnxWorld {
  readonly made: MadeDecoder;
  readonly decoder: OnnxDecoder;
  readonly stock: StockDecoder;
  readonly cache: (options?: Partial<KvCacheOptions>) => KvCache;
  readonly engine: (cache: KvCache) => OnnxEngine;
}

export function madeFile(t: ExecutionContext, { bytes }: Pick<MadeDecoder, 'bytes'>): string {
  const file = path.join(folderOf(t), 'model.onnx');
  writeFileSync(file, bytes);
  return file;
}

export async function openOnnxWorld(t: ExecutionContext, form: DecoderForm = {}, seed = 1, threads = 1): Promise<OnnxWorld> {
  const made = madeDecoder(form, seed);
  const decoder = await OnnxDecoder.open(madeFile(t, made), { threads, library: libraryFile() });
  t.teardown(() => { decoder.close(); });
  return {
    made, decoder, stock: await StockDecoder.open(t, madeDecoder(formOfStock(form), seed)), engine: (cache) => decoder.engine(cache),
    cache: (options = {}) => {
      const cache = new KvCache({
        model: decoder.model(), driver: 'host', slots: 4, maxTokens: 512, pageBytes: 65_536, memoryBudgetBytes: 2 ** 24, ...options,
      });
      t.teardown(() => { cache.close(); });
      return cache;
    },
  };
}

/** The same world with the graph that a device gets, computed by the CPU. */
export async function withGraphOfDevice(t: ExecutionContext, world: OnnxWorld): Promise<OnnxWorld> {
  const place = { library: libraryFile(), folder: '' };
  const read = planDecoder(world.made.bytes, 'model.onnx');
  const plan = { ...read, layers: await measureUnfused(read, place) };
  const graph = writeDecoder(plan, await maskWindows(plan, place), { isOnDevice: true });
  const session = await Session.open({ ...place, threads: 1, model: graph.bytes });
  t.teardown(() => { session.close(); });
  const Engine = OnnxEngine as unknown as new (parts: object) => OnnxEngine; // its constructor is not in the types
  return { ...world, engine: (cache) => new Engine({ graph, session, driver: undefined, cache }) };
}
