// What the kernels refuse: nothing wrong reaches native code, and every refusal says what to do.

import test, { type ExecutionContext } from 'ava';

import {
  Driver, Kernels, KvCache, onDemand, type ErrorCode, type ErrorDetails, type KernelsOptions, type KvCacheOptions,
} from 'virtual-kv';

import { refuses } from '../helpers/refuses.js';

interface World {
  readonly cache: KvCache;
  readonly kernels: Kernels;
}

function withKernels(
  options: Partial<KernelsOptions>, cacheOptions: Partial<KvCacheOptions>, body: (world: World) => void,
): void {
  const driver = Driver.open('host');
  const cache = new KvCache({
    model: { layers: 2, kvHeads: 2, headDim: 4, dtype: 'float16' }, slots: 3, maxTokens: 10_000, driver,
    memoryBudgetBytes: 64 * 2 ** 20, pageBytes: 65_536, growth: onDemand(), mapper: 'off', ...cacheOptions,
  });
  try {
    const kernels = new Kernels({ cache, ...options });
    body({ cache, kernels });
    kernels.close();
  } finally {
    cache.close();
    driver.close();
  }
}

const rows = (length: number): Float32Array => new Float32Array(length);

const calls: Readonly<Record<string, [(world: World) => void, ErrorCode, Partial<ErrorDetails[ErrorCode]>]>> = {
  'a batch that is not prepared': [({ cache, kernels }) => {
    const batch = cache.createBatch();
    batch.add(cache.acquire(), 1);
    kernels.append(0, batch, rows(8), rows(8));
  }, 'KV_BATCH_STATE', { problem: 'is not prepared' }],
  'several new tokens of a decoding sequence': [
    ({ cache, kernels }) => kernels.decodeAttention(0, prepared(cache, 2), rows(16), rows(16)),
    'KV_INVALID_OPTION', { owner: 'Kernels.decodeAttention', option: 'sequences', received: 2 }],
  'a batch of another cache': [({ kernels }) => {
    withKernels({}, {}, ({ cache }) => kernels.append(0, prepared(cache, 1), rows(8), rows(8)));
  }, 'KV_INVALID_OPTION', { owner: 'Kernels.append', expected: 'a batch of the same cache' }],
};

function prepared(cache: KvCache, tokens: number) {
  const batch = cache.createBatch();
  batch.add(cache.acquire(), tokens);
  cache.prepare(batch);
  return batch;
}

for (const [title, [call, code, details]] of Object.entries(calls)) {
  test(`a call refuses ${title}`, (t: ExecutionContext) => {
    withKernels({}, {}, (world) => {
      refuses(t, () => call(world), code, details);
    });
  });
}

for (const [kind, model] of [
  ['int8', { layers: 1, kvHeads: 1, headDim: 8, dtype: 'int8' }],
  ['latent attention', { layers: 1, attention: 'latent', latentDim: 8, dtype: 'float16' }],
] as const) {
  test(`a cache of ${kind} is copied, but not attended to`, (t) => {
    withKernels({}, { model }, ({ cache, kernels }) => {
      refuses(t, () => kernels.append(0, prepared(cache, 1), rows(8), rows(8)),
        'KV_INVALID_OPTION', { option: 'cache', received: kind });
      t.notThrows(() => kernels.copyTokens([]));
    });
  });
}

test('closed kernels, and kernels of a closed cache, refuse every call; closing twice is fine', (t) => {
  withKernels({}, {}, ({ cache, kernels }) => {
    const batch = prepared(cache, 1);
    kernels.close();
    kernels.close();
    refuses(t, () => kernels.append(0, batch, rows(8), rows(8)), 'KV_CLOSED', { owner: 'Kernels' });
    const others = new Kernels({ cache });
    cache.close();
    refuses(t, () => others.copyTokens([]), 'KV_CLOSED', { owner: 'KvCache' });
    others.close();
  });
});

test('layers that differ have their own heads, dims and query heads', (t) => {
  const model = {
    layers: 2, dtype: 'float32', layerShapes: [{ kvHeads: 1, headDim: 8 }, { kvHeads: 2, headDim: 16, valueHeadDim: 4 }],
  } as const;
  withKernels({ queryHeads: [3, 4] }, { model }, ({ cache, kernels }) => {
    const batch = prepared(cache, 1);
    // With one token attention gives its value, to each query head that of its KV head.
    const first = Float32Array.from({ length: 8 }, (_, i) => i);
    const second = Float32Array.from({ length: 2 * 4 }, (_, i) => -i - 1);
    kernels.append(0, batch, rows(8), first);
    kernels.append(1, batch, rows(32), second);
    const [short, long] = [rows(3 * 8), rows(4 * 4)];
    kernels.decodeAttention(0, batch, rows(3 * 8), short);
    kernels.prefillAttention(1, batch, rows(4 * 16), long);
    t.deepEqual([...short], [...first, ...first, ...first]);
    t.deepEqual([...long], [0, 0].flatMap(() => [...second.subarray(0, 4)]).concat([0, 0].flatMap(() => [...second.subarray(4)])));
    refuses(t, () => kernels.decodeAttention(1, batch, rows(63), rows(16)),
      'KV_INVALID_OPTION', { option: 'queries.length', received: 63 });
  });
});

test('behind a layer of a shared set the numbers of layers stay those of the model; it has no K and V to compute on', (t) => {
  const model = {
    layers: 3, kvHeads: 1, headDim: 8, dtype: 'float32', layerSets: [{ kind: 'full', layers: [0, 2] }, { kind: 'shared', layers: [1], of: 0 }],
  } as const;
  withKernels({}, { model }, ({ cache, kernels }) => {
    const batch = prepared(cache, 1);
    kernels.append(0, batch, rows(8), rows(8).fill(5));
    kernels.append(2, batch, rows(8), rows(8).fill(7));
    for (const [layer, value] of [[0, 5], [2, 7]] as const) {
      const output = rows(8);
      kernels.decodeAttention(layer, batch, rows(8), output);
      t.deepEqual([...output], [...rows(8).fill(value)]);
    }
    for (const layer of [1, 3]) {
      refuses(t, () => kernels.append(layer, batch, rows(8), rows(8)), 'KV_INVALID_OPTION', { option: 'layer', received: layer });
    }
    t.regex(t.throws(() => kernels.append(1, batch, rows(8), rows(8))).message, /layer 0|such as 0/);
  });
});
