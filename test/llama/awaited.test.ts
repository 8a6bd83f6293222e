// Passes that are awaited, beside passes that block: the same bits, and an engine that is closed in the middle of one.

import { setImmediate } from 'node:timers/promises';

import test from 'ava';

import { KvCache } from 'virtual-kv';

import { LlamaEngine } from '#internal/llama/engine.js';
import { LlamaModel } from '#internal/llama/model.js';
import { Random } from '#internal/base/random.js';
import { nativeOf } from '../helpers/native-of.js';
import { pageBytes, randomText } from '../helpers/llama-shapes.js';
import { randomLlama, removeFolder, writeLlama } from '../helpers/made-llama.js';
import { seedOf } from '../helpers/seed.js';

const seed = seedOf('awaited passes');
const folder = writeLlama(randomLlama(new Random(seed), {
  layers: 19, hidden: 96, intermediate: 160, queryHeads: 4, kvHeads: 2, headDim: 24, vocabularyTokens: 60,
}, {}, 'bfloat16'), 'bfloat16');
const model = new LlamaModel(folder, { threads: 2 });
test.after.always(() => removeFolder(folder));

/** An engine over a cache of its own, and passes over three sequences. */
function scene(passes: 'awaited' | 'blocking') {
  const cache = new KvCache({ model: model.shape('bfloat16'), slots: 3, maxTokens: 256, memoryBudgetBytes: 2 ** 26, driver: 'host', pageBytes, prefixCache: 'off' });
  const engine = new LlamaEngine({ model, cache, passes });
  const sequences = [cache.acquire(), cache.acquire(), cache.acquire()];
  const atEnd = { writtenLayers: 0 };
  const run = async (tokens: readonly (readonly number[])[], embedded?: Float32Array, signal?: AbortSignal): Promise<Float32Array> => {
    const batch = cache.createBatch();
    tokens.forEach((some, index) => { batch.add(sequences[index]!, some.length); });
    cache.prepare(batch);
    try {
      const { logits } = await engine[tokens.every(({ length }) => length === 1) ? 'decode' : 'prefill']({
        length: 3, slots: Int32Array.from(sequences, ({ slot }) => slot), positions: Int32Array.from(sequences, ({ length }) => length),
        tokenCounts: Int32Array.from(tokens, ({ length }) => length), tokens: Int32Array.from(tokens.flat()), wantsLogits: new Uint8Array(3).fill(1),
        inputs: [undefined, embedded && [{ at: sequences[1]!.length, rows: embedded }], undefined], signal,
      });
      cache.commit(batch);
      return logits.slice(0, 3 * engine.vocabularyTokens);
    } finally {
      atEnd.writtenLayers = writtenLayers();
      if (batch.isPrepared) cache.discard(batch);
    }
  };
  /** Layers that have the K of the first sequence's first token, from the first on; memory is zeros before. */
  const writtenLayers = (): number => {
    const isWritten = cache.tensors.map((_, tensor) => (sequences[0]!.view(tensor) as Uint16Array).subarray(0, 48).some((bits) => bits !== 0));
    return isWritten.filter((_, tensor) => tensor % 2 === 0).lastIndexOf(true) + 1;
  };
  const close = (): void => {
    engine.close();
    for (const sequence of sequences) sequence.release();
    cache.verify();
    cache.close();
  };
  return { cache, engine, sequences, run, close, writtenLayers, atEnd };
}

test(`a pass that is awaited gives the bits of one that blocks, chunk by chunk and token by token (seed ${seed})`, async (t) => {
  const random = new Random(seed);
  const [awaited, blocking] = [scene('awaited'), scene('blocking')];
  for (let step = 0; step < 30; step += 1) {
    const tokens = [0, 1, 2].map(() => randomText(random, step % 3 === 0 ? 1 + random.integer(8) : 1));
    const embedded = step % 5 === 0 ? Float32Array.from({ length: 96 }, () => random.next()) : undefined;
    t.deepEqual(await awaited.run(tokens, embedded), await blocking.run(tokens, embedded), `step ${step}`);
  }
  awaited.close();
  blocking.close();
});

test('an engine that is closed in the middle of a pass drops the rest of it', async (t) => {
  const { cache, engine, run, close } = scene('awaited');
  nativeOf(cache.driver).failCall('hold', 1, 0);
  const pass = run([[1, 2, 3], [4], [5]]);
  const rejected = t.throwsAsync(pass, { code: 'KV_ABORTED' });
  engine.close();
  await rejected;
  close();
});

for (const end of ['closes', 'aborts'] as const) {
  test(`a pass that its ${end === 'closes' ? 'engine' : 'signal'} ${end} between two layers computes none behind them`, async (t) => {
    const { cache, engine, run, close, writtenLayers, atEnd } = scene('awaited');
    const controller = new AbortController();
    const commandsOfSixLayers = 60; // about; the rest is held back
    nativeOf(cache.driver).failCall('hold', commandsOfSixLayers, 0);
    const rejected = t.throwsAsync(run([[1, 2, 3], [4], [5]], undefined, controller.signal), { code: 'KV_ABORTED' });
    while (writtenLayers() < 3) await setImmediate();
    if (end === 'closes') engine.close();
    else controller.abort();
    nativeOf(cache.driver).failCall('hold', 0, 0);
    await rejected;
    t.true(atEnd.writtenLayers >= 3 && atEnd.writtenLayers <= 12, `${atEnd.writtenLayers} layers of 19`);
    if (end === 'aborts') t.deepEqual(await run([[1, 2, 3], [4], [5]]), await scene('blocking').run([[1, 2, 3], [4], [5]]));
    close();
  });
}

test('a pass whose signal is aborted before it begins computes nothing', async (t) => {
  for (const passes of ['awaited', 'blocking'] as const) {
    const { run, close, atEnd } = scene(passes);
    await t.throwsAsync(run([[1, 2, 3], [4], [5]], undefined, AbortSignal.abort()), { code: 'KV_ABORTED' });
    t.is(atEnd.writtenLayers, 0);
    close();
  }
});

test('passes that overlap are computed one after the other, and none behind the end of their engine', async (t) => {
  const expected = await scene('blocking').run([[1, 2, 3], [4], [5]]);
  const { cache, engine, close, sequences } = scene('awaited');
  const batch = cache.createBatch();
  [3, 1, 1].forEach((tokens, index) => { batch.add(sequences[index]!, tokens); });
  cache.prepare(batch);
  const prefill = async (from: number, to: number, ...tokens: number[]): Promise<Float32Array> => {
    const { logits } = await engine.prefill({
      length: to - from, slots: Int32Array.from(sequences.slice(from, to), ({ slot }) => slot), positions: new Int32Array(to - from),
      tokenCounts: from === 0 ? Int32Array.of(3) : Int32Array.of(1, 1), tokens: Int32Array.from(tokens), wantsLogits: new Uint8Array(to - from).fill(1),
    });
    return logits.slice(0, (to - from) * engine.vocabularyTokens);
  };
  const parts = await Promise.all([prefill(0, 1, 1, 2, 3), prefill(1, 3, 4, 5)]);
  t.deepEqual(Float32Array.from(parts.flatMap((part) => [...part])), expected);
  cache.commit(batch);
  close();
  await t.throwsAsync(prefill(0, 1, 1, 2, 3), { code: 'KV_CLOSED' });
});

test('a pass of which a command fails is over, does not count, and can be computed again', async (t) => {
  const { cache, run, close } = scene('awaited');
  const expected = await scene('blocking').run([[1, 2, 3], [4], [5]]);
  for (const nth of [1, 9, 30]) {
    nativeOf(cache.driver).failCall('command', nth, 5);
    await t.throwsAsync(run([[1, 2, 3], [4], [5]]), { code: 'KV_COMMAND_FAILED' });
  }
  t.deepEqual(await run([[1, 2, 3], [4], [5]]), expected);
  close();
});
