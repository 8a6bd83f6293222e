// What the kernels refuse: nothing wrong reaches native code, and every refusal says what to do.

import test, { type ExecutionContext } from 'ava';

import { Driver, Kernels, KvCache, onDemand, type KernelsOptions, type KvCacheOptions, type TokenCopy } from 'virtual-kv';

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
const spans = (slots: number[], lengths: number[], tokens: number[]) => ({
  slots: Int32Array.from(slots), lengths: Int32Array.from(lengths), tokens: Int32Array.from(tokens),
});

const options: Readonly<Record<string, [Partial<KernelsOptions> | Record<string, unknown>, RegExp]>> = {
  'query heads that KV heads do not divide': [{ queryHeads: 3 }, /`queryHeads` must be a multiple of the layer's 2 KV heads/],
  'query heads of too few layers': [{ queryHeads: [2] }, /one number per layer \(2\)/],
  'a layer\'s query heads that its KV heads do not divide': [{ queryHeads: [2, 5] }, /`queryHeads\[1\]`/],
  'no threads at all': [{ threads: 0 }, /`threads` must be an integer from 1/],
  'an unknown type of rows': [{ rowDtype: 'float8' }, /`rowDtype` must be/],
  'vector instructions that do not exist': [{ instructions: 'avx1024' }, /Did you mean|`instructions` must be/],
  'an option that is not there': [{ thread: 2 }, /Unknown option `thread` for Kernels. Did you mean `threads`\?/],
  'something that is no cache': [{ cache: {} }, /`cache` must be a KvCache/],
};
for (const [title, [given, message]] of Object.entries(options)) {
  test(`opening refuses ${title}`, (t) => {
    t.throws(() => withKernels(given, {}, () => t.fail()), { message });
  });
}

const calls: Readonly<Record<string, [(world: World) => void, { code: string; message: RegExp }]>> = {
  'a batch that is not prepared': [({ cache, kernels }) => {
    const batch = cache.createBatch();
    batch.add(cache.acquire(), 1);
    kernels.append(0, batch, rows(8), rows(8));
  }, { code: 'KV_BATCH_STATE', message: /not prepared/ }],
  'a layer that is not there': [({ kernels }) => kernels.append(2, spans([], [], []), rows(0), rows(0)),
    { code: 'KV_INVALID_OPTION', message: /`layer` must be an integer from 0 to 1, got 2/ }],
  'keys that are too short': [({ cache, kernels }) => kernels.append(0, prepared(cache, 3), rows(23), rows(24)),
    { code: 'KV_INVALID_OPTION', message: /`keys.length` must be an integer, at least 24, got 23/ }],
  'an output that is too short': [
    ({ cache, kernels }) => kernels.decodeAttention(0, prepared(cache, 1), rows(8), rows(7)),
    { code: 'KV_INVALID_OPTION', message: /`output.length` must be an integer, at least 8, got 7/ }],
  'rows of another type': [
    ({ cache, kernels }) => kernels.append(0, prepared(cache, 1), new Uint16Array(8), rows(8)),
    { code: 'KV_INVALID_OPTION', message: /`keys` must be a Float32Array or an address/ }],
  'a null address': [({ cache, kernels }) => kernels.append(0, prepared(cache, 1), 0n, rows(8)),
    { code: 'KV_INVALID_OPTION', message: /`keys` must be/ }],
  'several new tokens of a decoding sequence': [
    ({ cache, kernels }) => kernels.decodeAttention(0, prepared(cache, 2), rows(16), rows(16)),
    { code: 'KV_INVALID_OPTION', message: /one new token per sequence at most, got 2\. Use `prefillAttention`/ }],
  'plain arrays of numbers': [
    ({ kernels }) => kernels.append(0, { slots: [0], lengths: [0], tokens: [1] } as never, rows(8), rows(8)),
    { code: 'KV_INVALID_OPTION', message: /each an Int32Array/ }],
  'a slot that is not there': [({ kernels }) => kernels.append(0, spans([3], [0], [1]), rows(8), rows(8)),
    { code: 'KV_INVALID_OPTION', message: /`sequences.slots`/ }],
  'the same slot twice': [({ kernels }) => kernels.append(0, spans([1, 1], [0, 0], [0, 0]), rows(8), rows(8)),
    { code: 'KV_INVALID_OPTION', message: /different slots/ }],
  'arrays of different lengths': [({ kernels }) => kernels.append(0, spans([1, 2], [0], [1]), rows(8), rows(8)),
    { code: 'KV_INVALID_OPTION', message: /`sequences.count`/ }],
  'more tokens than a slot can hold': [({ kernels }) => kernels.append(0, spans([1], [9_999], [2]), rows(16), rows(16)),
    { code: 'KV_LENGTH_OUT_OF_RANGE', message: /Slot 1 cannot hold 10,001 tokens/ }],
  'tokens without memory': [({ cache, kernels }) => {
    const { slot } = cache.acquire();
    kernels.append(0, spans([slot], [0], [1]), rows(8), rows(8));
  }, { code: 'KV_COPY_OUT_OF_RANGE', message: /not all of it is mapped/ }],
  'a batch of another cache': [({ kernels }) => {
    withKernels({}, {}, ({ cache }) => kernels.append(0, prepared(cache, 1), rows(8), rows(8)));
  }, { code: 'KV_INVALID_OPTION', message: /a batch of the same cache/ }],
  'copies that are no array': [({ kernels }) => kernels.copyTokens({} as never),
    { code: 'KV_INVALID_OPTION', message: /`copies` must be an array/ }],
  'a copy from where there is no memory': [
    ({ kernels }) => kernels.copyTokens([{ fromSlot: 2, fromToken: 0, toSlot: 0, toToken: 0, tokens: 1 }]),
    { code: 'KV_COPY_OUT_OF_RANGE', message: /Cannot copy/ }],
  'a copy onto itself': [({ cache, kernels }) => {
    prepared(cache, 10);
    kernels.copyTokens([{ fromSlot: 0, fromToken: 0, toSlot: 0, toToken: 3, tokens: 4 }]);
  }, { code: 'KV_INVALID_OPTION', message: /`toToken` must be outside the copied tokens/ }],
  'a copy with a part missing': [({ kernels }) => kernels.copyTokens([{ fromSlot: 2, fromToken: 0 } as TokenCopy]),
    { code: 'KV_INVALID_OPTION', message: /`toSlot` must be/ }],
};

function prepared(cache: KvCache, tokens: number) {
  const batch = cache.createBatch();
  batch.add(cache.acquire(), tokens);
  cache.prepare(batch);
  return batch;
}

for (const [title, [call, expected]] of Object.entries(calls)) {
  test(`a call refuses ${title}`, (t: ExecutionContext) => {
    withKernels({}, {}, (world) => {
      t.throws(() => call(world), expected as { code: string; message: RegExp });
    });
  });
}

for (const [kind, model] of [
  ['int8', { layers: 1, kvHeads: 1, headDim: 8, dtype: 'int8' }],
  ['latent attention', { layers: 1, attention: 'latent', latentDim: 8, dtype: 'float16' }],
] as const) {
  test(`a cache of ${kind} is copied, but not attended to`, (t) => {
    withKernels({}, { model }, ({ cache, kernels }) => {
      t.throws(() => kernels.append(0, prepared(cache, 1), rows(8), rows(8)), {
        code: 'KV_INVALID_OPTION', message: new RegExp(`got '${kind}'. Kernels can only copy tokens of other caches.`),
      });
      t.notThrows(() => kernels.copyTokens([]));
    });
  });
}

test('closed kernels, and kernels of a closed cache, refuse every call; closing twice is fine', (t) => {
  withKernels({}, {}, ({ cache, kernels }) => {
    const batch = prepared(cache, 1);
    kernels.close();
    kernels.close();
    t.throws(() => kernels.append(0, batch, rows(8), rows(8)), { code: 'KV_CLOSED', message: /the kernel set was closed/ });
    const others = new Kernels({ cache });
    cache.close();
    t.throws(() => others.copyTokens([]), { code: 'KV_CLOSED', message: /the cache was closed/ });
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
    t.throws(() => kernels.decodeAttention(1, batch, rows(63), rows(16)), { message: /at least 64/ });
  });
});
