// Contracts of exported calls: what is refused, by the place of the wrong value in arguments that are right otherwise
// (those of the hostile table), and by which code. contracts.test.ts asserts that, that the error names the place, and
// that nothing has changed.

import * as kv from 'virtual-kv';
import type { ErrorCode } from 'virtual-kv';

import { PlainTier } from '../cache/tiers/plain-tier.js';

/**
 * Values that are wrong at a place: the index of an argument, then names of members; an index of 0 may be left out
 * before a name, and '' is the first argument. Then the code, KV_INVALID_OPTION unless another is given, and what tells
 * the cause from others of that code by more than the place: fields of the details, or a word of the message.
 */
export type Contract =
  readonly [place: string, values: readonly unknown[], code?: ErrorCode, tells?: RegExp | Readonly<Record<string, unknown>>];

const invalid = 'KV_INVALID_OPTION';
const unknown = 'KV_UNKNOWN_OPTION';
const floats = (length: number): Float32Array => new Float32Array(length);
const ints = (...numbers: readonly number[]): Int32Array => Int32Array.from(numbers);
const prototypeOf = (of: { readonly prototype: unknown }): unknown => Object.create(of.prototype as object);
/** Of one token of a text of three. */
const item = { at: 0, length: 1, kind: 'item', hash: 'image' };
const noNumbers = [0, -1, 1.5, '5', undefined];
const detached = ints(1, 2, 3, 4);
structuredClone(detached, { transfer: [detached.buffer as ArrayBuffer] });
const tierWith = (chunkBytes: unknown): unknown => [Object.assign(new PlainTier('mine'), { chunkBytes })];

const engines: readonly Contract[] = [
  ['engine', [null, undefined, 3]], ['engine.decode', [undefined, 3]], ['engine.prefill', [undefined]],
  ['engine.reads', [null, 3, 'items', ['item'], [undefined]]],
  ['engine.vocabularyTokens', [undefined, ...noNumbers]],
  ['order', [kv.byTenantShare], invalid, /`order: byTenantShare\(\)`/],
];
/** Options of samplers and of other libraries, and what is meant. */
const misspelt: readonly Contract[] = Object.entries({
  maxTokens: [3, 'maxNewTokens'], max_tokens: [3, 'maxNewTokens'], stopToken: [[3], 'stopTokens'], token: [[3], 'tokens'],
  temperature: [0.7, 'sampler: randomSampler({ temperature })'], topK: [3, 'sampler: randomSampler({ topK })'],
  top_p: [0.9, 'sampler: randomSampler({ topP })'], seed: [1, 'sampler: randomSampler({ seed })'],
}).map(([name, [value, suggestion]]) => [name, [value], unknown, { suggestion }]);
const waits: readonly Contract[] = [['timeoutMs', [-1]], ['signal', [{}]], ['timeout', [1], unknown]];
/** What a sequence takes along to other sequences and hands over: names of tensors that the cache has, and that it carries. */
const carried: readonly (readonly [string, readonly unknown[]])[] = [
  ['needs', [['hiden'], 'hidden']], ['handOver', [['x'], ['hidden', 'x'], [], 3]],
];
/** What is handed over without being carried. */
const notCarried = [true, ['hidden']].map((handOver) => ({ tokens: [1], maxNewTokens: 1, needs: [], handOver }));
const lists: readonly Contract[] = [
  ['', [undefined, 3, { tokens: [1], maxNewTokens: 1 }]], ['0.0', [null, undefined, 'text']],
  ['0.0.tokens', [[], [1, 7]]], ['0.0.maxNewTokens', [0]],
  ['0.0.urgency', [256]], ...carried.map(([name, values]): Contract => [`0.0.${name}`, values]), ['0.0', notCarried],
  ['0.0.temperature', [1], unknown, { suggestion: 'requests[0].sampler: randomSampler({ temperature })' }],
];
const shape = 'KV_INVALID_SHAPE';
const window = (...layers: readonly number[]): unknown => ({ kind: 'window', layers, windowTokens: 2 });
const state = (layers: readonly number[], shape: readonly number[]): unknown =>
  ({ kind: 'state', layers, tensors: [{ name: 's', shape, dtype: 'int8' }] });
const alone = (set: object): unknown => [{ layers: [0, 1, 2], ...set }];
const models: readonly Contract[] = [
  ['kvHeads', [undefined, 2 ** 31]], ['headDim', [undefined, 2 ** 40]], ['layers', [0, 2 ** 31]],
  ['parallel.tensor', [2 ** 53]], ['parallel', [{ pipeline: 2, pipelineRank: 2 }], invalid, { option: 'parallel.pipelineRank' }],
  ['parallel', [{ pipeline: 4 }, { tensor: 3 }], shape], ['kvHead', [8], unknown, { suggestion: 'kvHeads' }],
  ['layerShapes', [[{}]], shape],
  ['dtype', ['float-16', undefined]], ['indexDim', [4], shape],
  ['layerSets', [[], [window(0, 2)]], shape, /in none/],
  ['layerSets', [[window(0, 1), { kind: 'full', layers: [2, 1] }], [window(0, 1, 2, 2)]], shape, /already/],
  ['layerSets', [[window(0, 1, 3)], [{ kind: 'full', layers: [0] }, { kind: 'full', layers: [1, 2] }], [window()]]],
  ['layerSets', [[state([0, 1, 2], [3])]], shape, /keeps tokens/],
  ['layerSets', [[{ kind: 'shared', layers: [2], of: 2 }, window(0, 1)]], shape, { option: 'layerSets[0].of' }],
  ['layerSets', [[{ kind: 'shared', layers: [2], of: 3 }, window(0, 1)]]],
  ['layerSets', [[{ kind: 'shared', layers: [2], of: [0, 1] }, window(0, 1)]], shape, { option: 'layerSets[0].of.length' }],
  ['layerSets', [5, [5], alone({ kind: 'windows' }), alone({ kind: 'window' }), alone({ kind: 'window', windowTokens: 0 }),
    alone({ kind: 'full', layout: 'round' }), alone({ kind: 'state', tensors: [] })]],
  ['layerSets', [alone({ kind: 'chunk', windowTokens: 4 })], unknown],
];
const rowsOfKernels: readonly Contract[] = [
  ['0', [1, -1]], ['1', [{ slots: [0], lengths: [0], tokens: [1] }]], ['1.slots', [ints(4), ints(-1)]],
  ['1.count', [2]],
  ['1', [{ slots: ints(1, 1), lengths: ints(0, 0), tokens: ints(0, 0) }], invalid, { option: 'sequences.slots', received: 1 }],
  ['1.lengths', [ints(512)], 'KV_LENGTH_OUT_OF_RANGE'], ['1.slots', [ints(3)], 'KV_COPY_OUT_OF_RANGE'],
  ['2', [floats(127), new Uint16Array(384), 0n]], ['3', [floats(127)]],
];
const passes: readonly Contract[] = [
  ['', [null, 7]], ['length', [-1, 0, 2]], ['slots', [[0], ints(2)]], ['positions', [ints(-7)]],
  ['tokenCounts', [ints(1e9), ints(-3), ints(0)]], ['tokens', [ints()]],
  ['wantsLogits', [[1], new Uint8Array(0)]], ['sequences', [7]], ['inputs', ['x', ['x'], [[7]]]],
  ['inputs.0.0.rows', [[1, 2], floats(65), floats(0)]],
  ['inputs.0.0.at', [0.5, -5, 1e12, '0', 64]], ['positions', [ints(64)], 'KV_LENGTH_OUT_OF_RANGE'],
];

export const contracts: Readonly<Record<string, readonly Contract[]>> = {
  'KvCache.new': [
    ['growth', [kv.ahead, 'onDemand'], invalid, /`growth: \w+\(\)`/], ['growth', [5, {}, null]],
    ['prefixCache.policy', [kv.lru], invalid, /`policy: lru\(\)`/], ['prefixCache.policy', [() => undefined]],
    ['prefixCache.tiers', [Number.NaN, 0, -1, 0.5, Infinity, '4096', 4096n, null].map(tierWith), invalid, /chunkBytes/],
    ['model', [null, 5, undefined]],
    ['paged', [true], unknown],
    ['sideTensors', [7, null, [], 'hidden', { '': { width: 1, dtype: 'int8' } },
      Object.fromEntries(Array.from({ length: 32 }, (_, at) => [`t${at}`, { width: 1, dtype: 'int8' }]))]],
    ['sideTensors.hidden', [{}, null]], ['sideTensors.hidden.width', [0, 1.5]],
    ['sideTensors.hidden.dtype', ['int4']], ['sideTensors.hidden.place', ['disk']],
    ['sideTensors.hidden.wide', [1], unknown], ['sideTensors.hidden.pageBytes', [1000]], ['sideBudgetBytes', [1000]],
    ['handOverSlots', [-1]],
    ['prefixCache.policy', [kv.adaptive, kv.lfu, kv.priority, kv.slru, 'lru', 'lfu'], invalid, /`policy: \w+\(\)`/],
    ['prefixCache.events', [true]], ['prefixCache.events.blockTokens', [0]], ['prefixCache.events.label', ['']],
    ['prefixCache.events.includesTokens', [1]],
    ['prefixCache.tiers', [[Object.assign(new PlainTier('mine'), { tenantBytes: -1 })]], invalid, /tenantBytes/],
  ],
  'hostTier.call': [['tenantBytes', [0]]], 'diskTier.call': [['tenantBytes', [4096.5]]],
  'redisTier.call': [
    ['', [{}, { url: 'redis://a', nodes: ['redis://b'] }], invalid, { option: 'client', reason: 'range' }], ['', [{ nodes: [] }], invalid, { option: 'nodes' }],
    ['', [{ client: {} }], invalid, { option: 'client', reason: 'type' }],
    ['', [{ nodes: ['redis://a', 'ftp://secret@b'] }], invalid, /`nodes\[1\]`(?!.*secret)/],
    ['', [{ nodes: ['redis://a', 'redis://:secret@b/3'] }], invalid, /`nodes`(?!.*secret)/],
    ['url', ['http://:secret@host', 'redis://:secret@host/x', 'redis://:secret@host?maxRetries=1', 'redis://', 'redis://:%secret@host'],
      invalid, /`url`(?!.*secret)/],
    ['ttlSecond', [1], unknown, { suggestion: 'ttlSeconds' }], ['breaker.failures', [0]], ['damaged', ['remove']],
  ],
  'registerMetrics.call': [
    ['0', [{}]], ['1.prefix', ['1']], ['1.labels', [{ worker: 1 }, { state: 'a' }]], ['1.register', [{}]], ['1.registr', [1], unknown],
  ],
  'computeLayout.call': [['slots', [0]], ['pageByte', [1], unknown]],
  'tensorsOf.call': models,
  'Layout.rowsFor': [['0', [-1, 1.5]], ['0', [17], 'KV_LENGTH_OUT_OF_RANGE']],
  'Layout.usedBytes': [['0', [17], 'KV_LENGTH_OUT_OF_RANGE']],
  'Layout.pagesFor': [['0', [1e6]]], 'Layout.pagesIn': [['0', [2]]],
  'prefixBlockKeys.call': [['tokens', [undefined]], ['blockTokens', [0]], ['blokTokens', [4], unknown]],
  'KvCache.slotFree': waits, 'KvCache.settled': waits,
  'KvCache.acquire': [['promptTokens', [-1, 1.5, 4]], ['reserve', ['all']],
    ['tokens', ['abc', [1, 1.5], [1, -1], [1, 2 ** 31], [1, Number.NaN], [1, '1'], {}, detached]],
    ['tokens', [new Int32Array(513)], 'KV_LENGTH_OUT_OF_RANGE'],
    ['items', [[{ ...item, length: 5 }], [item, item]]]],
  'KvCache.acquire with needs': [['needs', [7, 'hidden', [7], [''], null]],
    ['needs', [['hiden']], invalid, { option: 'needs[0]' }]],
  'KvCache.writeSide': [
    ['1', [7, null, undefined, [floats(6)], { hidden: floats(5) }, { hidden: new Float64Array(6) }, { hidden: [] },
      { hiden: floats(6) },
      { hidden: floats(6), other: undefined }, { hidden: new DataView(new ArrayBuffer(24)) },
      { hidden: new Uint8Array(24) }]],
  ],
  'Sequence.release': [
    ['fence.step', [-1, 1n]], ['fence', [{ stream: 5 }, { stream: -1n }, {}, null, 5, []]],
    ['fence.stpe', [1], unknown],
    ['fence.stream', [1n], invalid, { option: 'fence', received: 'both' }],
  ],
  'Sequence.append': [
    ['0', [-1, 1.5, 2 ** 31, '1', detached, undefined, null, 'ab', {}, { length: Number.NaN }, { length: -2 },
      { length: 1.5, 0: 1, 1: 1 }, new DataView(new ArrayBuffer(8)), [1, -1]]],
  ],
  'Sequence.truncate': [['0', [-1, 1]]],
  'Sequence.view': [['0', [{}, -1, 2]]], 'Sequence.address': [['0', ['K', 2]]], 'Batch.slotAt': [['0', [1]]],
  'Batch.add': [['1', [0, -1, 1.5, Number.NaN]]], 'KvCache.createBatch': [['0', [-1, 1.5, Number.NaN]]],
  'KvCache.completeStep': [['0', [-1, 0.5, Number.NaN]]],
  'Driver.open': [['0', ['mock']], ['1.dev', [1], unknown]],
  'Driver.synchronize': [['0', [7]], ['1.sinal', [undefined], unknown]],
  'DeviceMemory.new': [['bytes', [0]], ['driver', ['host']], ['byte', [1], unknown]],
  'DeviceMemory.write': [['0', [[1], 'text', undefined, detached]], ['0', [new Uint8Array(4089)], invalid, { option: 'atByte + byteLength' }]],
  'DeviceMemory.read': [['1', [4081, -1]], ['2', [1], invalid, { option: 'stream' }]],
  'DenseKernels.new': [['thread', [2], unknown, { suggestion: 'threads' }]],
  'DenseKernels.multiply': [
    ['0', [floats(63)]], ['1', [3, -1]], ['2.output', [floats(15)]], ['2.weight.outputs', [9]], ['2.weight.dtype', ['float16']],
    ['3.weight.inputs', [31, 33]], ['3.weight.data', [new Uint8Array(8 * 34 - 1), new Uint16Array(8 * 34)]],
  ],
  'DenseKernels.gather': [['1', [ints(0, 8), ints(-1, 0)]], ['3', [floats(15)]], ['4', [Infinity], invalid, { option: 'factor' }]],
  'DenseKernels.rotate': [
    ['2', [{ heads: 1, dim: 1026, pairs: 'neighbours' }], invalid, { option: 'dim' }], ['2.pairs', ['turns']], ['3', [ints(0, 4), ints(-1, 0)]],
  ],
  'DenseKernels.normalize': [['2.mode', ['sum']]],
  'DenseKernels.gate': [['4', ['gelu'], invalid, { option: 'activation' }]],
  'DenseKernels.cap': [['1', [9]], ['2', [0, -1, Number.NaN], invalid, { option: 'cap' }]],
  'Sequence.handOver': [['0', ['hidden', ['hiden']]], ['0', [[]], 'KV_SIDE_STATE']],
  'Sequence.sideTokens': [['0', [undefined, 'code']]],
  'HandOver.new': [['0', [{}]]],
  'HandOver.rows': [['0', ['other']], ['1', [-1, 0.5, '0', 4]], ['2', [0, 4]]],
  'Prefixes.lookup': [['tokens', [undefined]]], 'Prefixes.setNamespace': [['0', [4]]],
  'Prefixes.externalKeys': [['tokens', [undefined, [1, -1]]], ['1', [0]]],
  'Prefixes.promote': [
    ['selection', [{}, null, [], 5, 'all', () => {}]], ['selection.selecter', [kv.firstAndLast()], unknown, { suggestion: 'selection.selector' }],
    ['selection.ratio', [Number.NaN, 0, -0.5, 2, 1.000_000_1, 1 + 2 ** -52, -1e-300, Infinity, '0.5', null, undefined,
      [0.5], 1n]],
    ['selection.selector',
      [null, 5, 'probe-heads', {}, kv.firstAndLast, { ...kv.firstAndLast(), looksAt: 'values' },
        { ...kv.firstAndLast(), name: 5 }, { name: 'a', looksAt: 'keys' }]],
    ['selection.layerTimeoutMs', [0, -1, 0.5, 5.5, Number.NaN, Infinity, 2 ** 31, '10']],
  ],
  'EncoderCache.new': [
    ['', [undefined]], ['budgetBytes', [0, '1']], ['budgetByte', [1], unknown], ['kinds', [undefined, {}, []]],
    ['kinds.image', [2]],
    ['kinds.image.width', [0]], ['kinds.image.dtype', ['float64']], ['kinds.image.rows', [1], unknown],
  ],
  'EncoderCache.acquire': [
    ['', [undefined]], ['kind', ['imag'], invalid, /'image'\?/],
    ['hash', ['', 5, 'x'.repeat(1025), new Uint8Array(0)]], ['compute', [undefined, floats(2)]],
    ['tokens', [0, 1.5]], ['domain', ['a']], ['domain.tenant', [5]], ['domain.tenants', ['a'], unknown],
    ['whenFull', ['throw']], ['signal', [{}]],
    ['timeoutMs', [-1]], ['tenant', ['a'], unknown],
  ],
  'EncoderCache.has': [['kind', ['video']]],
  'EncoderCache.clear': [['tenantt', ['a'], unknown, { suggestion: 'domain.tenant' }]],
  'EncoderCache.setBudget': [['0', noNumbers]],
  'EncoderCache.range': [['0', [undefined, null, {}, 'x', prototypeOf(kv.EncoderHold)]], ['1', [-1, 2, 0.5, '0']],
    ['2', [null, 3, -1]]],
  'EncoderHold.new': [['0', [{}]]],
  'NaiveScheduler.new': engines, 'OfflineScheduler.new': engines, 'OnlineScheduler.new': engines,
  'NaiveScheduler.run': lists, 'OfflineScheduler.run': lists,
  'OnlineScheduler.submit with side tensors': [...carried, ['', notCarried]],
  'OnlineScheduler.submit': [
    ...misspelt, ['temperature', [0], unknown, { suggestion: 'sampler: greedy' }],
    ['tokens', [[1, 2, 7]], invalid, { option: 'tokens[2]' }],
    ['items', [[{ ...item, at: 2, length: 2 }], [item, item]]],
    ['stopTokens', [['</s>'], [-1], [1.5], [undefined]]],
    ['signal', [prototypeOf(AbortSignal)]], ['logProbabilities', [-1, 1.5, 1_001, true]], ['tokenizer', [undefined, {}]],
    ['stopStrings', [['a', '']], invalid, { option: 'stopStrings[1]' }],
    ['selection', [{}, null, { ratio: 2 }, { ratio: 0.5, selector: 5 }, { ratio: 0.5, layerTimeoutMs: 0 }],
      invalid, /^(?!.*canSelect)/],
  ],
  'BackgroundTokenizer.new': [['tokenizer', [undefined, {}]], ['minBackgroundCharacters', [0]], ['least', [1], unknown]],
  'BackgroundTokenizer.encode': [['1.signal', [{}]], ['1.specialTokens', ['drop']]],
  'OnnxDecoder.open': [['0', [7, undefined, null]], ['1.threads', [0, 1025]], ['1.library', [7]], ['1.driver', [7, {}]], ['1.thread', [2], unknown, { suggestion: 'threads' }]],
  'install.call': [
    ['memoryBudgetBytes', noNumbers], ['slots', [0, 2 ** 20 + 1]], ['maxTokens', [0, 2 ** 31]], ['dtype', ['int8', null]], ['threads', [-1, 1025]],
    ['prefillTokensPerStep', [0]], ['waitMs', [-1]], ['pageBytes', [0]], ['from', [7]], ['slot', [2], unknown, { suggestion: 'slots' }],
  ],
  'suggestSideTensors.call': [
    ['0', [undefined, null, 5, [], floats(4)], invalid, { option: 'outputs' }], ['1', [0, -1, 1.5, '5', undefined], invalid, { option: 'tokens' }],
  ],
  'randomSampler.call': [['topK', [0]], ['topP', [1.1]], ['seed', [0.5]], ['topq', [1], unknown], ['temperature', [-1]], ['temperature', [0], invalid, /`greedy`/]],
  'Kernels.new': [
    ['queryHeads', [3, [2, 2], [5]]], ['threads', [0]], ['rowDtype', ['float8']], ['instructions', ['avx1024']],
    ['attention', [7, null, [], [{}, {}], { windowTokens: 0 }, [{ windowTokens: 2, chunkTokens: 2 }],
      { chunkTokens: 2 ** 31 }]],
    ['attention', [{ softcap: 0 }, { softcap: Infinity }, { softcap: '30' }, { sinks: floats(3) }, [{ sinks: floats(2).fill(NaN) }]]],
    ['attention', [{ windowToken: 2 }], unknown, { suggestion: 'attention.windowTokens' }],
    ['thread', [2], unknown, { suggestion: 'threads' }], ['cache', [{}]],
  ],
  'Kernels.append': rowsOfKernels, 'Kernels.decodeAttention': rowsOfKernels,
  'Kernels.copyTokens': [
    ['0', [{}, [{ fromSlot: 2, fromToken: 0 }], [{ fromSlot: 0, fromToken: 0, toSlot: 0, toToken: 1, tokens: 2 }]]],
    ['0.0.fromSlot', [3], 'KV_COPY_OUT_OF_RANGE'],
  ],
  'LlamaModel.new': [
    ['1', [null, 7, 'x']], ['1.weights', ['int4']], ['1.threads', [-1, '1']], ['1.instructions', ['avx9']],
    ['1.thread', [1], unknown, { suggestion: 'threads' }], ['1.signal', [undefined], unknown],
  ],
  'LlamaModel.load': [
    ['0', [5, undefined, Symbol('path')]],
    ['1', [null, 7, 'x']], ['1.weights', ['int4']], ['1.threads', [-1, 0, '1']], ['1.instructions', ['avx9']],
    ['1.signal', [7, true, {}]], ['1.weight', ['int8'], unknown, { suggestion: 'weights' }],
  ],
  'LlamaModel.shape': [['0', ['int4']]],
  'LlamaEngine.new': [
    ['', [undefined, null, 7, 'x', [], {}]], ['cache', [undefined, {}, null]], ['model', [undefined, {}]],
    ['decoding', ['x']], ['passes', ['x']], ['results', [7]], ['hidden', [7, '']],
    ['pass', ['blocking'], unknown],
  ],
  'LlamaEngine.prefill': passes, 'LlamaEngine.decode': passes,
  'MockDevice.new': [
    ['memorybytes', [1], unknown, { suggestion: 'memoryBytes' }], ['granularityBytes', [5000]],
    ['backing', ['reel'], invalid, /'real'\?/], ['streams', ['slow']], ['memoryBytes', [0]],
  ],
  'MockDevice.failCall': [['0', ['cuMemMapp']], ['1.result', ['CUDA_ERROR_OUT_OF_MEMERY', 'CUDA_SUCCESS']],
    ['1.nth', [0]]],
  'MockDevice.setLatencyNs': [['1', [-1, 1e9 + 1]]],
  'MockDevice.completeStream': [['0', [0, 77n]]],
  'MockDevice.queueWork': [['0', [77n]], ['1', [[{ address: 1n, bytes: 0, access: 'read' }]]]],
  'ModelServer.new': [
    ['scheduler', [{}]], ['tokenizer', [{}]], ['modelName', ['']], ['maxTokens', [0]], ['apiKeys', [['']]],
    ['graceMs', [-1, 2 ** 31]], ['stallTimeoutMs', [2 ** 31]],
    ['requestTimeoutMs', [2 ** 31]], ['maxBodyBytes', [0]], ['maxToken', [1], unknown],
  ],
};
