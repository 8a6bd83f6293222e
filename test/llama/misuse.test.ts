// What the reference engine refuses: caches of another shape than its model, options that do not exist or are wrong, passes with numbers and
// rows that do not fit. By name, before anything is acquired or computed.

import test, { type ExecutionContext } from 'ava';

import { KvCache, type Driver, type KvCacheOptions, type ModelShape } from 'virtual-kv';
import { LlamaEngine, LlamaModel, type LlamaEngineOptions, type LlamaPass } from 'virtual-kv/llama';
import { MockDevice } from 'virtual-kv/testing';

import { Random } from '#internal/base/random.js';
import { randomLlama, removeFolder, writeLlama } from '../helpers/made-llama.js';

const hidden = 64;
const folder = writeLlama(randomLlama(new Random(1), { layers: 2, hidden, intermediate: 96, queryHeads: 4, kvHeads: 2, headDim: 16, vocabularyTokens: 60 }));
const model = new LlamaModel(folder, { threads: 1 });
test.after.always(() => removeFolder(folder));

const open = (shape: Partial<ModelShape>, driver: Driver | 'host', more: Partial<KvCacheOptions> = {}): KvCache => new KvCache({
  model: { ...model.shape(), ...shape }, slots: 3, maxTokens: 64, memoryBudgetBytes: 2 ** 24, driver, pageBytes: 2 ** 16, mapper: 'off', ...more,
});

/** One text in one cache, computed as a prompt and a token. */
async function answer(cache: KvCache): Promise<number[]> {
  const engine = new LlamaEngine({ model, cache });
  const sequence = cache.acquire();
  const answers: number[] = [];
  for (const tokens of [[1, 2, 3, 4, 5], [6]]) {
    const batch = cache.createBatch();
    batch.add(sequence, tokens.length);
    cache.prepare(batch);
    const { logits } = await engine[tokens.length > 1 ? 'prefill' : 'decode'](passOf({
      slots: Int32Array.of(sequence.slot), positions: Int32Array.of(sequence.length), tokenCounts: Int32Array.of(tokens.length), tokens: Int32Array.from(tokens),
    }));
    answers.push(...logits.subarray(0, engine.vocabularyTokens));
    cache.commit(batch);
  }
  sequence.release();
  engine.close();
  return answers;
}

/** Of one sequence, three tokens. */
function passOf(change: object): LlamaPass {
  return {
    length: 1, slots: Int32Array.of(0), positions: Int32Array.of(0), tokenCounts: Int32Array.of(3), tokens: Int32Array.of(1, 2, 3),
    wantsLogits: Uint8Array.of(1), ...change,
  };
}

const otherShapes: readonly (readonly [Partial<ModelShape>, RegExp])[] = [
  [{ kvHeads: 4, headDim: 8 }, /2 layers with K and V of 2 heads × 16 .*layer 0 with a key of 4 heads × 8.*`model: model\.shape\(\)`/],
  [{ kvHeads: 2, headDim: 8 }, /layer 0 with a key of 2 heads × 8/],
  [{ kvHeads: 1, headDim: 8 }, /layer 0 with a key of 1 head × 8/],
  [{ kvHeads: 1, headDim: 16 }, /layer 0 with a key of 1 head × 16/],
  [{ kvHeads: 1, headDim: 32 }, /layer 0 with a key of 1 head × 32/],
  [{ valueHeadDim: 8 }, /layer 0 with a value of 2 heads × 8/],
  [{ layerShapes: [{}, { kvHeads: 1 }] }, /layer 1 with a key of 1 head × 16/],
  [{ parallel: { tensor: 2 } }, /layer 0 with a key of 1 head × 16/],
  [{ layers: 1 }, /one of layer 0 alone/],
  [{ parallel: { pipeline: 2, pipelineRank: 1 } }, /one of layer 1 alone/],
  [{ layers: 6, parallel: { pipeline: 2, pipelineRank: 1 } }, /one of layers 3 to 5/],
  [{ dtype: 'int8' }, /one of int8/],
  [{ attention: 'latent', latentDim: 64 }, /latent attention \(MLA\), 64 elements/],
];

for (const on of ['host', 'mock'] as const) {
  test(`an engine refuses a cache of another shape than its model's, by the numbers, and acquires nothing (${on})`, (t) => {
    const device = on === 'mock' ? new MockDevice({ granularityBytes: 2 ** 16, memoryBytes: 2 ** 26 }) : undefined;
    for (const [shape, message] of otherShapes) {
      const cache = open(shape, device?.driver ?? 'host');
      const before = device?.leaks();
      t.throws(() => new LlamaEngine({ model, cache }), { code: 'KV_INVALID_OPTION', instanceOf: RangeError, message }, JSON.stringify(shape));
      if (device === undefined) t.is(cache.driver.acquireStream(), 1n, 'no stream is lent');
      t.deepEqual(device?.leaks(), before);
      cache.close();
    }
    device?.assertNoLeaks();
    device?.close();
  });
}

test('a cache of more layers, or of K and V in another type that attention reads, is accepted', async (t) => {
  const caches = [open({}, 'host'), open({ layers: 5 }, 'host'), open({ dtype: 'bfloat16' }, 'host'), open({ dtype: 'float16' }, 'host')];
  const [expected, ...others] = await Promise.all(caches.map(answer));
  t.deepEqual(others[0], expected);
  for (const other of others) t.true(other.every((logit, index) => Math.abs(logit - expected![index]!) < 0.1));
  for (const cache of caches) cache.close();
});

test('an engine refuses options that are wrong or that it does not know', (t) => {
  const cache = open({}, 'host');
  for (const options of [
    undefined, null, 7, 'x', [], {}, { model }, { cache }, { model: {}, cache }, { model, cache: {} }, { model, cache: null },
    { model: Object.create(LlamaModel.prototype) as unknown, cache }, { model, cache, decoding: 'x' }, { model, cache, passes: 'x' },
    { model, cache, results: 7 }, { model, cache, hidden: 7 }, { model, cache, hidden: '' },
  ]) {
    t.throws(() => new LlamaEngine(options as unknown as LlamaEngineOptions), { code: 'KV_INVALID_OPTION' });
  }
  t.throws(() => new LlamaEngine({ model, cache, pass: 'blocking' } as LlamaEngineOptions), { code: 'KV_UNKNOWN_OPTION', message: /`passes`/ });
  cache.close();
  t.throws(() => new LlamaEngine({ model, cache }), { code: 'KV_CLOSED' });
});

test('a model refuses options that are wrong or that it does not know, also where it is loaded beside', async (t) => {
  for (const options of [null, 7, 'x', { weights: 'int4' }, { threads: -1 }, { threads: '1' }, { instructions: 'avx9' }]) {
    t.throws(() => new LlamaModel(folder, options as never), { code: 'KV_INVALID_OPTION' });
    await t.throwsAsync(LlamaModel.load(folder, options as never), { code: 'KV_INVALID_OPTION' });
  }
  await t.throwsAsync(LlamaModel.load(folder, { signal: 7 } as never), { code: 'KV_INVALID_OPTION' });
  t.throws(() => new LlamaModel(folder, { thread: 1 } as never), { code: 'KV_UNKNOWN_OPTION', message: /`threads`/ });
  t.throws(() => new LlamaModel(folder, { driver: 'host' } as never), { code: 'KV_UNKNOWN_OPTION' });
  await t.throwsAsync(LlamaModel.load(folder, { weight: 'int8' } as never), { code: 'KV_UNKNOWN_OPTION', message: /`weights`/ });
  t.throws(() => model.shape('int4' as 'int8'), { code: 'KV_INVALID_OPTION' });
});

const rows = (tokens: number): Float32Array => new Float32Array(tokens * hidden);
const given = (...list: unknown[]): object => ({ inputs: [list] });

/** What is wrong, and how the message begins. */
const wrongPasses: readonly (readonly [unknown, RegExp])[] = [
  [null, /^`pass` must be a pass: an object, got null/],
  [7, /^`pass` must be/],
  [passOf({ length: -1 }), /^`pass\.length` must be an integer from 1 to 3/],
  [passOf({ length: 0 }), /^`pass\.length`/],
  [passOf({ length: 2 }), /^`pass\.slots\.length` must be an integer, at least 2, got 1/],
  [passOf({ slots: [0] }), /^`pass\.slots` must be an Int32Array/],
  [passOf({ slots: Int32Array.of(3) }), /^`pass\.slots\[0\]` must be an integer from 0 to 2, got 3/],
  [passOf({ positions: Int32Array.of(-7) }), /^`pass\.positions\[0\]` must be an integer from 0 to 64, got -7/],
  [passOf({ tokenCounts: Int32Array.of(1e9) }), /^`pass\.tokenCounts\[0\]` must be an integer from 1 to 64, got 1,000,000,000/],
  [passOf({ tokenCounts: Int32Array.of(-3) }), /^`pass\.tokenCounts\[0\]`/],
  [passOf({ tokenCounts: Int32Array.of(0) }), /^`pass\.tokenCounts\[0\]`/],
  [passOf({ tokenCounts: Int32Array.of(4) }), /^`pass\.tokens\.length` must be an integer, at least 4, got 3/],
  [passOf({ wantsLogits: [1] }), /^`pass\.wantsLogits` must be a Uint8Array/],
  [passOf({ wantsLogits: new Uint8Array(0) }), /^`pass\.wantsLogits\.length`/],
  [passOf({ sequences: 7 }), /^`pass\.sequences` must be an array/],
  [passOf({ inputs: 'x' }), /^`pass\.inputs` must be an array/],
  [passOf({ inputs: ['x'] }), /^`pass\.inputs\[0\]` must be an array/],
  [passOf(given(7)), /^`pass\.inputs\[0\]\[0\]` must be rows/],
  [passOf(given({ at: 0, rows: [1, 2] })), /^`pass\.inputs\[0\]\[0\]\.rows` must be a Float32Array of whole rows of 64 floats/],
  [passOf(given({ at: 0, rows: rows(1) }, { at: 1, rows: new Float32Array(65) })), /^`pass\.inputs\[0\]\[1\]\.rows` must be .*one of 65/],
  [passOf(given({ at: 0, rows: new Float32Array(0) })), /^`pass\.inputs\[0\]\[0\]\.rows`/],
  [passOf(given({ at: 0.5, rows: rows(1) })), /^`pass\.inputs\[0\]\[0\]\.at` must be an integer from 0 to 63, got 0\.5/],
  [passOf(given({ at: -5, rows: rows(1) })), /^`pass\.inputs\[0\]\[0\]\.at`/],
  [passOf(given({ at: 1e12, rows: rows(1) })), /^`pass\.inputs\[0\]\[0\]\.at`/],
  [passOf(given({ at: '0', rows: rows(1) })), /^`pass\.inputs\[0\]\[0\]\.at`/],
  [passOf(given({ at: 63, rows: rows(2) })), /^`pass\.inputs\[0\]\[0\]\.rows\.length`/],
];

async function refuses(t: ExecutionContext, passes: 'awaited' | 'blocking'): Promise<void> {
  const cache = open({}, 'host');
  const engine = new LlamaEngine({ model, cache, passes });
  const sequence = cache.acquire();
  const batch = cache.createBatch();
  batch.add(sequence, 3);
  cache.prepare(batch);
  for (const call of ['prefill', 'decode'] as const) {
    for (const [pass, message] of wrongPasses) {
      const compute = (): unknown => engine[call](pass as LlamaPass);
      if (passes === 'blocking') t.throws(compute, { code: 'KV_INVALID_OPTION', message }, String(message));
      else await t.throwsAsync(compute() as Promise<unknown>, { code: 'KV_INVALID_OPTION', message }, String(message)); // and does not throw
    }
    const far = passOf({ positions: Int32Array.of(62) });
    if (passes === 'awaited') await t.throwsAsync(engine[call](far) as Promise<unknown>, { code: 'KV_LENGTH_OUT_OF_RANGE' });
  }
  const { logits } = await engine.prefill(passOf({ inputs: [[{ at: 1, rows: rows(1).fill(0.5) }], 'beyond its length'] })); // and goes on
  t.true(logits.subarray(0, engine.vocabularyTokens).every(Number.isFinite));
  cache.discard(batch);
  sequence.release();
  engine.close();
  cache.verify();
  cache.close();
}

test('a pass of wrong numbers or rows is refused by what is wrong with it (awaited)', (t) => refuses(t, 'awaited'));
test('a pass of wrong numbers or rows is refused by what is wrong with it (blocking)', (t) => refuses(t, 'blocking'));

test('a pass is read once: what its getters say later does not count', async (t) => {
  const cache = open({}, 'host');
  const engine = new LlamaEngine({ model, cache });
  const sequence = cache.acquire();
  const batch = cache.createBatch();
  batch.add(sequence, 3);
  cache.prepare(batch);
  let reads = 0;
  const pass = Object.defineProperty({ ...passOf({}) }, 'length', { enumerable: true, get: () => (reads += 1) > 1 ? 1e9 : 1 });
  const { logits } = await engine.prefill(pass);
  t.is(reads, 1);
  t.true(logits.subarray(0, engine.vocabularyTokens).every(Number.isFinite));
  cache.discard(batch);
  engine.close();
  cache.close();
});
