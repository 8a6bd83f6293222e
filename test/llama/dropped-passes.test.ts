// Passes of the reference engine that its scheduler needs no more: the layers that have not begun are not computed, and requests behind them
// find the engine and the cache as if there had been none.

import { once } from 'node:events';
import { setImmediate } from 'node:timers/promises';
import { Worker } from 'node:worker_threads';

import test from 'ava';

import { isKvError, KvCache, OnlineScheduler, type Engine, type EngineOutput, type EnginePass, type Sequence, type TokenStream } from 'virtual-kv';

import { LlamaEngine } from '#internal/llama/engine.js';
import { LlamaModel } from '#internal/llama/model.js';
import { Random } from '#internal/base/random.js';
import { nativeOf } from '../helpers/native-of.js';
import { pageBytes, randomText } from '../helpers/llama-shapes.js';
import { randomLlama, removeFolder, writeLlama } from '../helpers/made-llama.js';
import { seedOf } from '../helpers/seed.js';
import { slow } from '../runner/slow.js';

const seed = seedOf('dropped passes');
const layers = 19;
const vocabularyTokens = 60;
const folder = writeLlama(randomLlama(new Random(seed), {
  layers, hidden: 96, intermediate: 160, queryHeads: 4, kvHeads: 2, headDim: 24, vocabularyTokens,
}, {}, 'bfloat16'), 'bfloat16');
const model = new LlamaModel(folder, { threads: 2 });
test.after.always(() => removeFolder(folder));
const tokens = randomText(new Random(seed), 40);
const request = { tokens, maxNewTokens: 5 };

/** Layers that have the K of a sequence's first token, from the first on; memory is zeros before. */
function writtenLayers({ tensors }: KvCache, sequence: Sequence): number {
  const isWritten = tensors.map(({ role }, tensor) => role === 'key' && (sequence.view(tensor) as Uint16Array).subarray(0, 48).some((bits) => bits !== 0));
  return Math.floor(isWritten.lastIndexOf(true) / 2) + 1;
}

/** A scheduler over the reference engine, and what became of its first pass. */
class Scene {
  readonly cache = new KvCache({ model: model.shape('bfloat16'), slots: 2, maxTokens: 256, memoryBudgetBytes: 2 ** 26, driver: 'host', pageBytes });
  readonly llama = new LlamaEngine({ model, cache: this.cache, results: 'exact' });
  readonly scheduler: OnlineScheduler;
  passes = 0;
  prefills = 0;
  writtenLayers = 0;
  /** Of its first pass that was dropped. */
  error: unknown;
  dropped = 0;
  #sequence: Sequence | undefined;

  constructor() {
    const engine: Engine = { vocabularyTokens, prefill: (pass) => this.#prefill(pass), decode: (pass) => this.#compute('decode', pass) };
    this.scheduler = new OnlineScheduler({ cache: this.cache, engine });
  }

  /** Holds back the commands of the next pass behind the first six layers, about. */
  hold(): void {
    nativeOf(this.cache.driver).failCall('hold', 60, 0);
  }

  goOn(): void {
    nativeOf(this.cache.driver).failCall('hold', 0, 0);
  }

  async hasWritten(layers: number): Promise<void> {
    while (this.#sequence === undefined || writtenLayers(this.cache, this.#sequence) < layers) await setImmediate();
  }

  close(): void {
    this.llama.close();
    this.cache.verify();
    this.cache.close();
  }

  async #prefill(pass: EnginePass): Promise<EngineOutput> {
    this.prefills += 1;
    this.#sequence = pass.sequences[0]!;
    try {
      return await this.#compute('prefill', pass);
    } finally {
      this.writtenLayers = writtenLayers(this.cache, this.#sequence);
    }
  }

  async #compute(call: 'prefill' | 'decode', pass: EnginePass): Promise<EngineOutput> {
    this.passes += 1;
    try {
      return await this.llama[call](pass);
    } catch (error) {
      this.error ??= error;
      this.dropped += 1;
      throw error;
    }
  }
}

test(`a request that is cancelled between two layers of its prompt has none behind them computed (seed ${seed})`, async (t) => {
  const [plain, scene] = [new Scene(), new Scene()];
  const { tokens: expected } = await plain.scheduler.submit(request).result;
  scene.hold();
  const stream = scene.scheduler.submit(request);
  await scene.hasWritten(3);
  stream.cancel();
  scene.goOn();
  await t.throwsAsync(stream.result, { code: 'KV_ABORTED' });
  await scene.scheduler.idle();
  t.like(scene.error, { code: 'KV_ABORTED' });
  t.true(scene.writtenLayers >= 3 && scene.writtenLayers <= 12, `${scene.writtenLayers} layers of ${layers}`);
  t.is(scene.cache.counts().idleSlots, 2);
  t.is(scene.cache.prefixes.lookup({ tokens }).cachedTokens, 0);
  t.deepEqual((await scene.scheduler.submit(request).result).tokens, expected);
  t.deepEqual([scene.prefills, scene.writtenLayers], [2, layers]);
  for (const { scheduler } of [plain, scene]) await scheduler.close();
  plain.close();
  scene.close();
});

test('a pass goes on for a request that waits with the same prompt', async (t) => {
  const scene = new Scene();
  scene.hold();
  const long = { tokens: [...tokens, ...tokens, ...tokens], maxNewTokens: 2 };
  const [first, second] = [scene.scheduler.submit(long), scene.scheduler.submit(long)];
  await scene.hasWritten(3);
  first.cancel();
  scene.goOn();
  await t.throwsAsync(first.result, { code: 'KV_ABORTED' });
  t.is((await second.result).cachedTokens, long.tokens.length - 1);
  t.deepEqual([scene.prefills, scene.error], [1, undefined]);
  await scene.scheduler.close();
  scene.close();
});

test('an engine that is closed in the middle of a pass, and then its scheduler, end without an error that no caller hears', async (t) => {
  const scene = new Scene();
  scene.hold();
  const { result } = scene.scheduler.submit(request);
  await scene.hasWritten(3);
  scene.llama.close();
  const closed = scene.scheduler.close();
  scene.goOn();
  await t.throwsAsync(result, { code: 'KV_CLOSED' });
  await closed;
  t.like(scene.error, { code: 'KV_ABORTED' });
  scene.close();
});

slow('a random world of requests')(`requests that are cancelled at random, often all of them, leave right answers for the others (seed ${seed})`, async (t) => {
  const random = new Random(seed);
  const plain = new Scene();
  const requests = Array.from({ length: 6 }, (_, at) => ({ tokens: [...tokens.slice(0, 10 * (at % 3)), ...randomText(random, 5 + random.integer(80))], maxNewTokens: 4 }));
  const expected = await Promise.all(requests.map(async (one) => [...(await plain.scheduler.submit(one).result).tokens]));
  const scene = new Scene();
  const open = new Set<TokenStream>();
  const ends: Promise<void>[] = [];
  let done = 0;
  const serve = async (which: number): Promise<void> => {
    const stream = scene.scheduler.submit(requests[which]!);
    open.add(stream);
    try {
      t.deepEqual([...(await stream.result).tokens], expected[which]);
      done += 1;
    } catch (error) {
      if (!isKvError(error, 'KV_ABORTED')) throw error;
    } finally {
      open.delete(stream);
    }
  };
  for (let count = 0; count < 150; count += 1) {
    ends.push(serve(random.integer(requests.length)));
    const until = scene.passes + random.integer(8);
    while (scene.passes < until && open.size > 0) await setImmediate();
    for (let turns = random.integer(30); turns > 0; turns -= 1) await setImmediate(); // into the pass
    if (random.chance(0.2)) for (const stream of open) stream.cancel();
    if (random.chance(0.05)) scene.cache.prefixes.reset({ preempt: true });
  }
  await Promise.all(ends);
  t.log({ done, dropped: scene.dropped });
  t.true(done > 30 && scene.dropped > 3);
  for (const { scheduler } of [plain, scene]) await scheduler.close();
  plain.close();
  scene.close();
});

/** A signal of a worker thread's, which that aborts when it is told to. */
async function signalOfWorker() {
  const worker = new Worker(`
    const { parentPort } = require('node:worker_threads');
    const controller = require('node:util').transferableAbortController();
    parentPort.postMessage(controller.signal, [controller.signal]);
    parentPort.on('message', () => { controller.abort('by the worker'); });
  `, { eval: true });
  const [signal] = await once(worker, 'message') as [AbortSignal];
  return { signal, abort: () => { worker.postMessage('abort'); }, close: () => worker.terminate() };
}

test('a signal of a worker thread ends a request in the middle of its pass', async (t) => {
  const scene = new Scene();
  const { signal, abort, close } = await signalOfWorker();
  scene.hold();
  const { result } = scene.scheduler.submit({ ...request, signal });
  await scene.hasWritten(3);
  abort();
  const error = await t.throwsAsync(result, { code: 'KV_ABORTED' });
  t.is(error?.cause, 'by the worker');
  scene.goOn();
  await scene.scheduler.idle();
  t.true(scene.writtenLayers < layers, `${scene.writtenLayers} layers of ${layers}`);
  await scene.scheduler.close();
  scene.close();
  await close();
});

test('a signal of a worker thread ends a pass that its caller drives', async (t) => {
  const { cache, llama, scheduler } = new Scene();
  const { signal, abort, close } = await signalOfWorker();
  const sequence = cache.acquire();
  const batch = cache.createBatch();
  batch.add(sequence, 3);
  cache.prepare(batch);
  nativeOf(cache.driver).failCall('hold', 1, 0);
  const pass = llama.prefill({
    length: 1, slots: Int32Array.of(sequence.slot), positions: Int32Array.of(0), tokenCounts: Int32Array.of(3), tokens: Int32Array.of(1, 2, 3),
    wantsLogits: Uint8Array.of(1), signal,
  });
  const rejected = t.throwsAsync(pass as Promise<unknown>, { code: 'KV_ABORTED' });
  abort();
  await once(signal, 'abort');
  nativeOf(cache.driver).failCall('hold', 0, 0);
  await rejected;
  cache.discard(batch);
  sequence.release();
  await scheduler.close();
  llama.close();
  cache.verify();
  cache.close();
  await close();
});
