// The table: every exported function, constructor and method, with arguments that are right. hostile.test.ts fails for an export or a
// public method without a row. A row makes its call in a world; each argument, and each member of one, is then replaced in turn.

import * as kv from 'virtual-kv';
import { MockDevice } from 'virtual-kv/testing';

import { llamaRows } from './llama-rows.js';
import { onnxRows } from './onnx-rows.js';
import { metricsRows } from './metrics-rows.js';
import { serverRows } from './server-rows.js';
import { sideRows } from './side-rows.js';
import { tierRows } from './tier-rows.js';
import { cacheOptions, model, pageBytes, vocabularyTokens, type World } from './world.js';

export interface Call {
  readonly run: (...given: never[]) => unknown;
  readonly meant: readonly unknown[];
}

export type Row = (world: World) => Call;

/** Methods by class, `new` for the constructor, `call` for a function. `null`: takes no arguments, or `why` it has no row. */
export type Rows = Readonly<Record<string, Row | null>>;

const call = (run: (...given: never[]) => unknown, ...meant: readonly unknown[]): Call => ({ run, meant });
const close = { close: null };
const request = { tokens: Int32Array.of(1, 2, 3), maxNewTokens: 2, stopTokens: [5], sampler: kv.greedy, tenant: 'a', caching: 'read-write' };
const pieces = () => ({ push: () => 'a', end: () => '' });
const prompt = { tokens: Int32Array.of(1, 2, 3), items: [{ at: 0, length: 1, kind: 'item', hash: 'h', indivisible: true }], tenant: 'a', salt: 's', adapter: 'l' };
const spans = () => ({ slots: Int32Array.of(0), lengths: Int32Array.of(3), tokens: Int32Array.of(1), count: 1 });
const floats = (length: number): Float32Array => new Float32Array(length);
const width = 8;
const weight = () => ({ data: floats(width * width), dtype: 'float32', outputs: width, inputs: width });
const product = (dtype: 'float32' | 'int8', data: Float32Array | Uint8Array) =>
  ({ weight: { data, dtype, outputs: width, inputs: 32 }, bias: floats(width), output: floats(2 * width), mode: 'add' });
const schedulerOptions = (world: World) => ({
  cache: world.cache, engine: world.engine(), maxBatch: 2, prefillTokensPerStep: 8, shortPromptShare: 0.5, watermarkRows: 1, minPendingTokens: 1,
  order: kv.byArrival(), stream: 0n, now: () => 0,
});
const layout = () => kv.computeLayout({ model, layout: 'per-layer', slots: 2, maxTokens: 16, pageBytes });

/** One of each kind. */
const layerSets = [
  { kind: 'full', layers: [0], layout: 'sliced', headDim: 32 }, { kind: 'window', layers: [1], windowTokens: 4, layout: 'auto' },
  { kind: 'chunk', layers: [2], chunkTokens: 4, kvHeads: 1 }, { kind: 'shared', layers: [3], of: 1 }, { kind: 'fixed', layers: [4], tokens: 3 },
  { kind: 'state', layers: [5], tensors: [{ name: 'conv', shape: [3, 4], dtype: 'float32' }], faces: 2 },
];

/** What was opened goes with the world. */
function opened<T extends { close(): unknown }>(world: World, one: T): T {
  world.closable.push(one);
  return one;
}

/** Rows that need kernels of the CPU, or no driver. */
export const hostOnly: ReadonlySet<string> = new Set(['Kernels', 'CapturedSteps', 'DenseKernels', ...Object.keys(llamaRows), ...Object.keys(onnxRows)]);

/** Classes of errors, which the package alone makes. */
const makes = (errorClass: unknown): Rows => ({
  new: () => call((...given: never[]) => new (errorClass as new (...given: unknown[]) => unknown)(...given),
    'text', { code: 'KV_CLOSED', recovery: 'fix', details: {}, cause: 1 }),
});

export const table: Readonly<Record<string, Rows>> = {
  adaptive: { call: null }, byArrival: { call: null }, byTenantShare: { call: null },
  lru: { call: null }, onDemand: { call: null },
  ahead: { call: () => call(kv.ahead, 16) },
  byteOffset: { call: () => call(kv.byteOffset, layout().tensors[0], 1, 2) },
  computeLayout: { call: () => call(kv.computeLayout, { model: { ...model, layers: 6, layerSets }, layout: 'auto', slots: 2, maxTokens: 16, pageBytes, memoryBudgetBytes: 8 * pageBytes }) },
  contentHash: { call: () => call(kv.contentHash, Uint8Array.of(1)) },
  dtypeBytes: { call: () => call(kv.dtypeBytes, 'float16') },
  greedy: { call: () => call(kv.greedy, floats(4), 0) },
  isKvError: { call: () => call(kv.isKvError, new Error('x'), 'KV_CLOSED') },
  loadKernels: { call: ({ driver }) => call(kv.loadKernels, driver, { signal: new AbortController().signal }) },
  importance: { call: () => call(kv.importance, { extentTokens: 3, importantTokens: () => 1 }) },
  lfu: { call: () => call(kv.lfu, { countedUses: 3 }) },
  prefixBlockKeys: { call: () => call(kv.prefixBlockKeys, { ...prompt, namespace: 'n', blockTokens: 2 }) },
  priority: { call: () => call(kv.priority, { pinnedLevel: 3, pinnedShare: 0.5, lifetimeMs: () => 1, now: () => 0 }) },
  randomSampler: { call: () => call((options: kv.SamplerOptions) => kv.randomSampler(options)(floats(8), 0, { tokens: Int32Array.of(1, 2), length: 2, promptTokens: 1 }), {
    temperature: 1, topK: 2, topP: 0.5, minP: 0.1, repetitionPenalty: 1.1, presencePenalty: 0.1, frequencyPenalty: 0.1, logitBias: [[1, 2]], seed: 1,
  }) },
  ...tierRows, ...llamaRows, ...onnxRows,
  slru: { call: () => call(kv.slru, { protectedShare: 0.5 }) },
  suggestSideTensors: { call: () => call(kv.suggestSideTensors, { hidden: { shape: [3, 2], dtype: 'float32', data: floats(6) } }, 3) },
  tensorsOf: { call: () => call(kv.tensorsOf, { ...model, layers: 3, layerShapes: [{ kvHeads: 2 }, {}, {}], parallel: { tensor: 1 } }) },
  ...metricsRows, ...serverRows,
  // Made by the package alone.
  KvError: makes(kv.KvError), KvStateError: makes(kv.KvStateError), KvCapacityError: makes(kv.KvCapacityError),
  KvDriverError: makes(kv.KvDriverError), KvAbortError: makes(kv.KvAbortError),
  Batch: {
    new: () => call((...given: never[]) => new (kv.Batch as unknown as new (...given: unknown[]) => unknown)(...given), {}, 1, 1),
    add: ({ cache, sequence }) => {
      const batch = cache.createBatch();
      return call(batch.add.bind(batch), sequence, 1);
    },
    clear: null,
    slotAt: ({ batch }) => call(batch.slotAt.bind(batch), 0),
    tokensAt: ({ batch }) => call(batch.tokensAt.bind(batch), 0),
  },
  HandOver: sideRows.HandOver,
  Sequence: {
    ...close, ...sideRows.Sequence,
    new: () => call((...given: never[]) => new (kv.Sequence as unknown as new (...given: unknown[]) => unknown)(...given), {}, {}),
    fork: null,
    address: ({ sequence }) => call(sequence.address.bind(sequence), 0),
    append: ({ sequence }) => call(sequence.append.bind(sequence), [4, 5]),
    keepValue: ({ sequence }) => call(sequence.keepValue.bind(sequence), 1),
    release: ({ cache }) => {
      const sequence = cache.acquire({ tokens: [9] });
      return call(sequence.release.bind(sequence), { fence: { step: 3 } });
    },
    truncate: ({ cache }) => {
      const sequence = cache.acquire({ tokens: [9] });
      return call(sequence.truncate.bind(sequence), 0);
    },
    view: ({ sequence }) => call(sequence.view.bind(sequence), 0),
    firstToken: ({ sequence }) => call(sequence.firstToken.bind(sequence), 0),
  },
  KvCache: {
    ...close, ...sideRows.KvCache,
    new: (world) => call((options: kv.KvCacheOptions) => opened(world, new kv.KvCache(options)), {
      ...cacheOptions, model: { ...model, layerShapes: [{ headDim: 64 }], parallel: { tensor: 1 } }, driver: world.driver, pageBytes,
      memoryBudgetBytes: 8 * pageBytes, headroomBytes: 1, readyBytes: pageBytes, layout: 'fused', eagerRows: 0,
      idleRowsLimit: 4, scrub: 'between-tenants', work: 'queued', prefixCache: { poolRows: 4, policy: kv.lru(), events: { blockTokens: 4, label: 'l' }, tiers: [kv.hostTier({ bytes: 2 ** 20 })], modelId: 'm', tierBlockTokens: 4 },
      sideTensors: { hidden: { width: 2, dtype: 'float32', place: 'host', pageBytes } }, sideBudgetBytes: 8 * pageBytes, handOverSlots: 2,
    }),
    acquire: ({ cache }) => call(cache.acquire.bind(cache), { ...prompt, reserve: 'none', caching: 'read', priority: 1, stream: 0n }),
    commit: ({ cache, batch }) => call(cache.commit.bind(cache), batch),
    completeStep: ({ cache }) => call(cache.completeStep.bind(cache), 1),
    counts: null, verify: null, inspect: null,
    createBatch: ({ cache }) => call(cache.createBatch.bind(cache), 2),
    discard: ({ cache, batch }) => call(cache.discard.bind(cache), batch),
    layer: ({ cache }) => call((layer: number) => cache.layer(layer).key, 0),
    prepare: ({ cache }) => call(cache.prepare.bind(cache), cache.createBatch()),
    step: ({ cache }) => call((entries: never, compute: never, options: never) => cache.step(entries, compute, options), [[cache.acquire(), 1]], () => 1, {}),
    writeTensors: ({ cache }) => call(cache.writeTensors.bind(cache), new BigInt64Array(8 * cache.tensors.length)),
    writeSequences: ({ cache }) => call(cache.writeSequences.bind(cache), {
      length: 1, slots: Int32Array.of(0), positions: Int32Array.of(3), tokenCounts: Int32Array.of(1), starts: Int32Array.of(0),
    }, new Int32Array(4)),
    shutdown: ({ cache }) => call(cache.shutdown.bind(cache), { timeoutMs: 1, signal: new AbortController().signal }),
    settled: ({ cache }) => call(cache.settled.bind(cache), { timeoutMs: 1, signal: new AbortController().signal }),
    slotFree: ({ cache }) => call(cache.slotFree.bind(cache), { timeoutMs: 1, signal: new AbortController().signal }),
    stamp: ({ cache, sequence }) => call(cache.stamp.bind(cache), sequence, 0, 3, 7n),
    verifyStamp: ({ cache, sequence }) => call(cache.verifyStamp.bind(cache), sequence, 0, 3, 7n),
  },
  Prefixes: {
    new: () => call((...given: never[]) => new (kv.Prefixes as unknown as new (...given: unknown[]) => unknown)(...given), {}),
    publishAll: null,
    drop: ({ cache: { prefixes } }) => call(prefixes.drop.bind(prefixes), { ...prompt, namespace: 'n', encoders: [] }),
    explain: ({ cache: { prefixes } }) => call(prefixes.explain.bind(prefixes), prompt),
    externalKeys: ({ cache: { prefixes } }) => call(prefixes.externalKeys.bind(prefixes), prompt, 2),
    lookup: ({ cache: { prefixes } }) => call(prefixes.lookup.bind(prefixes), prompt),
    promote: ({ cache: { prefixes } }) => call(prefixes.promote.bind(prefixes), { ...prompt, deadlineMs: 1, priority: 1, signal: new AbortController().signal, selection: { ratio: 1, selector: kv.firstAndLast(), layerTimeoutMs: 1 } }),
    prefetch: ({ cache: { prefixes } }) => call(prefixes.prefetch.bind(prefixes), { ...prompt, priority: 1, signal: new AbortController().signal }),
    reset: ({ cache: { prefixes } }) => call(prefixes.reset.bind(prefixes), { preempt: true }),
    setNamespace: ({ cache: { prefixes } }) => call(prefixes.setNamespace.bind(prefixes), 'n'),
  },
  PagePool: {
    ...close, counts: null, trim: null,
    new: (world) => call((options: kv.PagePoolOptions) => opened(world, new kv.PagePool(options)),
      { driver: world.driver, pageBytes, memoryBudgetBytes: pageBytes, headroomBytes: 1, readyBytes: pageBytes }),
    setBudget: (world) => {
      const pool = world.pool();
      return call(pool.setBudget.bind(pool), 2 * pageBytes);
    },
  },
  Driver: {
    ...close, memory: null, acquireStream: null,
    releaseStream: ({ driver, closable }) => {
      const stream = driver.acquireStream();
      closable.push({ close: () => { try { driver.releaseStream(stream); } catch { /* it was the call that did */ } } });
      return call(driver.releaseStream.bind(driver), stream);
    },
    synchronize: ({ driver }) => call(driver.synchronize.bind(driver), 0n, { signal: new AbortController().signal }),
    new: (world) => call((...given: never[]) => opened(world, new (kv.Driver as unknown as new (...given: unknown[]) => kv.Driver)(...given)), {}),
    open: (world) => call((...given: Parameters<typeof kv.Driver.open>) => opened(world, kv.Driver.open(...given)), 'host', {
      device: 0, libraryPath: '/nowhere', memoryBytes: 2 ** 24, populate: false, hugePages: false, mappingLimit: 100,
    }),
  },
  DeviceMemory: {
    ...close,
    new: (world) => call((options: kv.DeviceMemoryOptions) => opened(world, new kv.DeviceMemory(options)), { driver: world.driver, bytes: 100 }),
    read: (world) => {
      const memory = world.memory();
      return call(memory.read.bind(memory), new Uint8Array(16), 8, 0n);
    },
    write: (world) => {
      const memory = world.memory();
      return call(memory.write.bind(memory), new Float32Array(4), 8, 0n);
    },
  },
  Kernels: {
    ...close,
    new: (world) => call((options: kv.KernelsOptions) => opened(world, new kv.Kernels(options)), {
      cache: world.cache, queryHeads: [4], scale: 1, attention: [{ windowTokens: 2, softcap: 30, sinks: floats(4) }], rowDtype: 'float32', threads: 1, instructions: 'auto', stream: 0n, workspaceBytes: 0,
    }),
    append: (world) => kernelCall(world, 'append', spans()),
    copyTokens: (world) => {
      const kernels = world.kernels();
      return call(kernels.copyTokens.bind(kernels), [{ fromSlot: 0, fromToken: 0, toSlot: 0, toToken: 3, tokens: 1 }]);
    },
    decodeAttention: (world) => kernelCall(world, 'decodeAttention', spans()),
    prefillAttention: (world) => kernelCall(world, 'prefillAttention', world.batch),
    captureSteps: (world) => {
      const kernels = world.kernels();
      return call(kernels.captureSteps.bind(kernels), { record: () => {}, sizes: [1, 2] });
    },
    step: (world) => {
      const kernels = world.kernels();
      return call(kernels.step.bind(kernels), () => 1);
    },
  },
  CapturedSteps: {
    ...close,
    replay: (world) => {
      const kernels = world.kernels();
      const rows = floats(4 * model.kvHeads * model.headDim);
      const steps = kernels.captureSteps({
        record: (step) => {
          kernels.append(0, step, rows, rows);
          kernels.decodeAttention(0, step, rows, rows.slice());
        },
      });
      return call(steps.replay.bind(steps), spans(), Int32Array.of(1));
    },
  },
  DenseKernels: {
    ...close,
    new: (world) => call((options: kv.DenseKernelsOptions) => opened(world, new kv.DenseKernels(options)), {
      driver: world.driver, threads: 1, instructions: 'auto', stream: 0n, cublas: 'off', workspaceBytes: 1,
    }),
    gate: (world) => {
      const dense = world.dense();
      return call(dense.gate.bind(dense), floats(8), floats(8), 8, floats(8), 'gelu-tanh');
    },
    cap: (world) => {
      const dense = world.dense();
      return call(dense.cap.bind(dense), floats(8), 8, 30);
    },
    gather: (world) => {
      const dense = world.dense();
      return call(dense.gather.bind(dense), weight(), Int32Array.of(0, 7), 2, floats(2 * width), 5.5);
    },
    multiply: (world) => {
      const dense = world.dense();
      return call(dense.multiply.bind(dense), floats(2 * 32), 2, product('float32', floats(width * 32)), product('int8', new Uint8Array(width * 34)));
    },
    normalize: (world) => {
      const dense = world.dense();
      return call(dense.normalize.bind(dense), floats(2 * width), 2, { weight: floats(width), width, epsilon: 1e-5, mode: 'add' }, floats(2 * width));
    },
    rotate: (world) => {
      const dense = world.dense();
      return call(dense.rotate.bind(dense), floats(2 * width), 2, { heads: 2, dim: 4 }, Int32Array.of(0, 3), floats(16));
    },
  },
  EncoderCache: {
    ...close, counts: null,
    new: (world) => call((options: kv.EncoderCacheOptions) => opened(world, new kv.EncoderCache(options)), {
      budgetBytes: 64, kinds: { image: { width: 2, dtype: 'float32' } },
    }),
    acquire: (world) => {
      const encoder = world.encoder();
      return call(encoder.acquire.bind(encoder), {
        domain: { tenant: 'a', salt: 's', adapter: 'l', namespace: 'n' }, kind: 'image', hash: 'h', compute: () => floats(4), tokens: 2,
        whenFull: 'wait', signal: new AbortController().signal, timeoutMs: 60_000,
      });
    },
    'compute answers': (world) => call((answer: unknown) => world.encoder().acquire({ kind: 'image', hash: 'h', compute: () => answer as never }), floats(4)),
    clear: (world) => {
      const encoder = world.encoder();
      return call(encoder.clear.bind(encoder), { tenant: 'a', salt: 's', adapter: 'l', namespace: 'n' });
    },
    has: (world) => {
      const encoder = world.encoder();
      return call(encoder.has.bind(encoder), { domain: { tenant: 'a' }, kind: 'image', hash: Uint8Array.of(1) });
    },
    range: (world) => {
      const encoder = world.encoder();
      const held = {}; // stands for a hold, which takes time to get
      return call(async (hold: unknown, from: number, to: number) => encoder.range(
        hold === held ? await encoder.acquire({ kind: 'image', hash: 'h', compute: () => floats(4) }) : hold as kv.EncoderHold, from, to,
      ), held, 0, 1);
    },
    setBudget: (world) => {
      const encoder = world.encoder();
      return call(encoder.setBudget.bind(encoder), 8);
    },
  },
  EncoderHold: {
    new: () => call((...given: never[]) => new (kv.EncoderHold as unknown as new (...given: unknown[]) => unknown)(...given), {}, {}),
    release: null,
  },
  SideTensorSuggestion: {
    new: null,
    observe: () => {
      const suggestion = new kv.SideTensorSuggestion();
      return call(suggestion.observe.bind(suggestion), { hidden: { shape: [3, 2], dtype: 'float32' }, other: { dims: [3, 2], data: floats(6) } }, 3);
    },
  },
  NaiveScheduler: {
    new: (world) => call((options: kv.SchedulerOptions) => new kv.NaiveScheduler(options), schedulerOptions(world)),
    run: (world) => call((requests: never) => world.naive().run(requests), [request]),
  },
  OfflineScheduler: {
    new: (world) => call((options: kv.SchedulerOptions) => new kv.OfflineScheduler(options), { ...schedulerOptions(world), arrangement: 'given' }),
    run: (world) => call((requests: never) => world.offline().run(requests), [request]),
  },
  OnlineScheduler: {
    ...close, ...sideRows.OnlineScheduler,
    new: (world) => call((options: kv.SchedulerOptions) => opened(world, new kv.OnlineScheduler(options)), { ...schedulerOptions(world), maxWaiting: 3 }),
    idle: (world) => {
      const online = world.online();
      return call(online.idle.bind(online), { timeoutMs: 1, signal: new AbortController().signal });
    },
    pause: (world) => {
      const online = world.online();
      return call(online.pause.bind(online), { timeoutMs: 1, signal: new AbortController().signal });
    },
    resume: null,
    queueFree: (world) => {
      const online = world.online();
      return call(online.queueFree.bind(online), { timeoutMs: 1, signal: new AbortController().signal });
    },
    submit: (world) => call((options: never) => world.online().submit(options), { ...request, priority: 1, urgency: 1, deadlineMs: 60_000,
      signal: new AbortController().signal, stopStrings: ['end'], tokenizer: { pieces }, logProbabilities: 2 }),
    submitAnswers: (world) => call((options: never, answers: number) => world.online().submitAnswers(options, answers), request, 2),
    'tokenizer answers': (world) => call((answer: unknown) => world.online().submit({ ...request, tokenizer: { pieces: () => answer } } as never), pieces()),
    'engine answers logits': (world) => call((answer: unknown) => world.online(answer).submit(request as never),
      { logits: floats(8 * vocabularyTokens) }),
    'engine answers tokens': (world) => call((answer: unknown) => world.online(answer).submit(request as never), { tokens: Int32Array.of(1, 1) }),
    'sampler answers': (world) => call((answer: unknown) => world.online().submit({ ...request, sampler: () => answer } as never), 1),
  },
  TokenStream: {
    new: () => call((...given: never[]) => new (kv.TokenStream as unknown as new (...given: unknown[]) => unknown)(...given), () => {}),
    next: null, return: null, cancel: null, finish: null, pieces: null,
  },
  Layout: {
    pagesFor: () => call(layout().pagesFor, 1), pagesIn: () => call(layout().pagesIn, 0, 1), rowsFor: () => call(layout().rowsFor, 1),
    tokensIn: () => call(layout().tokensIn, 1), usedBytes: () => call(layout().usedBytes, 1),
  },
  MockDevice: {
    ...close, assertNoLeaks: null, callCounts: null, clearFailures: null, clearJournal: null, clearMisuses: null, completeAll: null,
    journal: null, leaks: null, misuses: null, openDriver: null, resetCallCounts: null,
    new: (world) => call((options: never) => opened(world, new MockDevice(options)), {
      memoryBytes: 2 ** 24, addressSpaceBytes: 2 ** 30, granularityBytes: pageBytes, backing: 'none', streams: 'manual', hasGarbage: false,
      contextBytes: 1, moduleBytes: 1, unmap: 'waits',
      hasVirtualMemory: true, name: 'n', driverVersion: 13_000, computeCapability: 90, journalEntries: 10,
    }),
    completeStream: ({ device }) => call(device.completeStream.bind(device), 0n),
    failCall: ({ device }) => call((...given: Parameters<MockDevice['failCall']>) => {
      device.failCall(...given);
      device.clearFailures();
    }, 'cuMemcpyDtoHAsync', { nth: 1, result: 'CUDA_ERROR_UNKNOWN', times: 1 }),
    loseDevice: (world) => {
      const device = opened(world, new MockDevice({ granularityBytes: pageBytes }));
      return call(device.loseDevice.bind(device), 700);
    },
    queueWork: ({ device }) => call(device.queueWork.bind(device), 0n, []),
    setLatencyNs: (world) => {
      const device = opened(world, new MockDevice({ granularityBytes: pageBytes }));
      return call(device.setLatencyNs.bind(device), 'cuMemMap', 1);
    },
  },
};

function kernelCall(world: World, method: 'append' | 'decodeAttention' | 'prefillAttention', sequences: unknown): Call {
  const kernels = world.kernels();
  const rows = floats(3 * model.kvHeads * model.headDim);
  return call(kernels[method].bind(kernels), 0, sequences, rows, rows.slice());
}
