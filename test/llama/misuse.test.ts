// What the reference engine refuses: caches of another shape than its model, options that do not exist or are wrong, passes with numbers and
// rows that do not fit. By name, before anything is acquired or computed.

import test, { type ExecutionContext } from 'ava';

import { KvCache, OnlineScheduler, type Driver, type KvCacheOptions, type ModelShape } from 'virtual-kv';
import { LlamaEngine, LlamaModel, type LlamaPass } from 'virtual-kv/llama';
import { MockDevice } from 'virtual-kv/testing';

import { Random } from '#internal/base/random.js';
import { layerKinds } from '../helpers/layer-kinds.js';
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
  [{ kvHeads: 4, headDim: 8 }, / 2 heads × 16 .*layer 0 with a key of 4 heads × 8/],
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
  [{ attention: 'latent', latentDim: 64 }, /latent attention .*64/],
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

const rows = (tokens: number): Float32Array => new Float32Array(tokens * hidden);
async function refuses(t: ExecutionContext, passes: 'awaited' | 'blocking'): Promise<void> {
  const cache = open({}, 'host');
  const engine = new LlamaEngine({ model, cache, passes });
  const sequence = cache.acquire();
  const batch = cache.createBatch();
  batch.add(sequence, 3);
  cache.prepare(batch);
  const wrong: readonly (readonly [unknown, string])[] = [
    [null, 'KV_INVALID_OPTION'], [passOf({ slots: Int32Array.of(3) }), 'KV_INVALID_OPTION'],
    [passOf({ positions: Int32Array.of(62) }), 'KV_LENGTH_OUT_OF_RANGE'],
  ];
  for (const [pass, code] of wrong) {
    for (const call of ['prefill', 'decode'] as const) {
      const compute = (): unknown => engine[call](pass as LlamaPass);
      if (passes === 'blocking') t.throws(compute, { code });
      else await t.throwsAsync(compute() as Promise<unknown>, { code }); // and does not throw
    }
  }
  const { logits } = await engine.prefill(passOf({ inputs: [[{ at: 1, rows: rows(1).fill(0.5) }], 'beyond its length'] })); // and goes on
  t.true(logits.subarray(0, engine.vocabularyTokens).every(Number.isFinite));
  cache.discard(batch);
  sequence.release();
  engine.close();
  cache.verify();
  cache.close();
}

test('a refused pass rejects, and the engine goes on (awaited)', (t) => refuses(t, 'awaited'));
test('a refused pass throws, and the engine goes on (blocking)', (t) => refuses(t, 'blocking'));

test('where layers do not see all tokens, selected ones are not computed, and a cache may have more layers', (t) => {
  const place = writeLlama(randomLlama(new Random(1), { layers: 6, hidden, intermediate: 96, queryHeads: 4, kvHeads: 2, headDim: 16, vocabularyTokens: 60 }, layerKinds['Gemma 3'].more));
  const windowed = new LlamaModel(place, { threads: 1 });
  removeFolder(place);
  const cache = open({ ...windowed.shape(), layers: 9 }, 'host');
  const engine = new LlamaEngine({ model: windowed, cache });
  t.false(engine.canSelect);
  engine.close();
  cache.close();
});

test('an adapter, which the model does not have, is refused, and not an answer without it', (t) => {
  const cache = open({}, 'host');
  const engine = new LlamaEngine({ model, cache });
  const scheduler = new OnlineScheduler({ cache, engine });
  t.throws(() => scheduler.submit({ tokens: [1, 2], maxNewTokens: 1, adapter: 'lora' }), { code: 'KV_INVALID_OPTION', message: /adapter/ });
  engine.close();
  cache.close();
});

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
