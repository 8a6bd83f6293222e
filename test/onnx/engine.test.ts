// What an engine over an ONNX decoder promises beside its answers: caches of another shape are refused, K and V are not copied,
// JavaScript goes on while it computes, and passes end where they are given up.

import { closeSync, openSync, readFileSync, readSync } from 'node:fs';

import { Driver, KvCache, OfflineScheduler, OnlineScheduler, onDemand, type EnginePass, type Sequence } from 'virtual-kv';
import { OnnxDecoder } from 'virtual-kv/onnx';
import { MockDevice } from 'virtual-kv/testing';

import { planDecoder, writeDecoder } from '#internal/onnx/decoder-graph.js';
import { OnnxEngine } from '#internal/onnx/engine.js';
import { buildFakeLibcuda, fakeLibcuda } from '../helpers/fake-libcuda.js';
import { slow } from '../runner/slow.js';
import { madeDecoder } from './made-decoder.js';
import { libraryFile, madeFile, onnxTest, openOnnxWorld, type OnnxWorld } from './onnx-world.js';

onnxTest('a cache of another shape, or of more tokens, is refused', async (t) => {
  const world = await openOnnxWorld(t);
  const refuse = (message: RegExp, options: Parameters<OnnxWorld['cache']>[0]): void => {
    t.throws(() => world.decoder.engine(world.cache(options)), { code: 'KV_INVALID_OPTION', message });
  };
  const { identity, ...shape } = world.decoder.model();
  t.regex(identity!, /^[0-9a-f]{64}$/);
  t.deepEqual(shape, { layers: 2, kvHeads: 2, headDim: 16, valueHeadDim: 16, dtype: 'float32' });
  refuse(/layer 0 with a key of 4 × 16/, { model: { ...world.decoder.model(), kvHeads: 4 } });
  refuse(/one of 2 tensors/, { model: { ...world.decoder.model(), layers: 1 } });
  refuse(/at most 512 tokens/, { maxTokens: 1024 });
  const layerSets = [{ kind: 'full', layers: [0] }, { kind: 'window', layers: [1], windowTokens: 8 }] as const;
  refuse(/all tokens of layer 1.*a layer set of kind window/, { model: { ...world.decoder.model(), layerSets }, prefixCache: 'off' });
  t.deepEqual(world.decoder.model({ slides: true }), world.decoder.model(), 'no layer of it has a window');
  t.throws(() => world.decoder.model({ slides: 1 as never }), { code: 'KV_INVALID_OPTION' });
  t.throws(() => world.decoder.model({ dtype: 'int8' as never }), { code: 'KV_INVALID_OPTION' });
  t.throws(() => world.decoder.engine({} as never), { code: 'KV_INVALID_OPTION' });
});

slow('opens the simulated driver')('a cache is refused where the decoder does not compute: on a device, beside it, on another one', (t) => {
  buildFakeLibcuda();
  const graph = writeDecoder(planDecoder(madeDecoder().bytes, 'model.onnx'), new Map());
  const device = new MockDevice();
  t.teardown(() => { device.close(); });
  using cuda = Driver.open('cuda', { libraryPath: fakeLibcuda() });
  const model = { layers: 2, kvHeads: 2, headDim: 16, dtype: 'float32' } as const;
  const places = { host: Driver.open('host'), device: device.driver, cuda } as const;
  const refusalOf = (own: Driver, driver: Driver | undefined): string | undefined => {
    using cache = new KvCache({ model, driver: own, slots: 1, maxTokens: 64, memoryBudgetBytes: 2 ** 24, work: 'awaited' });
    const Engine = OnnxEngine as unknown as new (parts: object) => OnnxEngine; // its constructor is not in the types
    const error = t.throws(() => new Engine({ graph, driver, cache }));
    t.like(error, { code: 'KV_INVALID_OPTION', details: { option: 'cache', reason: 'range' } });
    return (error as unknown as { details: { expected: string } }).details.expected;
  };
  t.is(refusalOf(places.device, undefined), "one in the CPU's memory");
  t.is(refusalOf(places.cuda, undefined), "one in the CPU's memory");
  t.is(refusalOf(places.host, cuda), 'one on device 0');
  t.is(refusalOf(places.device, cuda), 'one on device 0');
});

onnxTest('a cache is not closed while a pass computes on it, and no pass on one that is closed', async (t) => {
  const { decoder, cache, stock } = await openOnnxWorld(t);
  const own = cache();
  const engine = decoder.engine(own);
  const [pass, , text] = passOf(own, 40);
  const answer = engine.prefill(pass);
  t.throws(() => { own.close(); }, { code: 'KV_DRIVER_IN_USE' });
  const { logits } = await answer;
  const wanted = await stock.logits(text);
  t.true(logits.every((value, at) => Math.abs(value - wanted[at]!) < 1e-4));
  own.close();
  await t.throwsAsync(engine.prefill(pass), { code: 'KV_CLOSED' });
});

onnxTest('closing the decoder ends what it computes, which rejects; then it is closed', async (t) => {
  const { decoder, cache } = await openOnnxWorld(t);
  const own = cache();
  const engine = decoder.engine(own);
  const [pass] = passOf(own, 40);
  const answer = engine.prefill(pass);
  decoder.close();
  await t.throwsAsync(answer, { code: 'KV_CLOSED' });
  await t.throwsAsync(engine.prefill(pass), { code: 'KV_CLOSED' });
  t.throws(() => decoder.engine(own), { code: 'KV_CLOSED' });
  decoder.close();
});

onnxTest('a pass that is given up rejects with KV_ABORTED, under way or waiting, and the next is right', async (t) => {
  const { decoder, cache, stock } = await openOnnxWorld(t);
  const own = cache();
  const engine = decoder.engine(own);
  const [pass, sequence, text] = passOf(own, 300);
  const giveUp = new AbortController();
  const answers = [1, 2].map(() => engine.prefill({ ...pass, signal: giveUp.signal }));
  giveUp.abort();
  for (const answer of answers) await t.throwsAsync(answer, { code: 'KV_ABORTED' });
  await t.throwsAsync(engine.prefill({ ...pass, signal: giveUp.signal }), { code: 'KV_ABORTED' });
  const { logits } = await engine.prefill(pass);
  const wanted = await stock.logits(text);
  t.true(logits.every((value, at) => Math.abs(value - wanted[at]!) < 1e-4));
  sequence.release();
});

onnxTest('numbers of a pass that the cache does not have are refused, not computed', async (t) => {
  const { decoder, cache } = await openOnnxWorld(t);
  const own = cache();
  const engine = decoder.engine(own);
  const [pass] = passOf(own, 8);
  await t.throwsAsync(engine.prefill({ ...pass, slots: Int32Array.of(4) }), { code: 'KV_INTERNAL' });
  await t.throwsAsync(engine.prefill({ ...pass, positions: Int32Array.of(510) }), { code: 'KV_INTERNAL' });
});

onnxTest('K and V are not copied: a past of 64 MiB is attended to in no more memory than a short one', async (t) => {
  const form = { layers: 2, heads: 8, kvHeads: 8, dim: 128, positions: 8_192 }; // 16 KiB a token
  const { decoder } = await openOnnxWorld(t, form);
  const cache = new KvCache({ model: decoder.model(), driver: 'host', slots: 1, maxTokens: 4_200, memoryBudgetBytes: 2 ** 27, pageBytes: 65_536 });
  t.teardown(() => { cache.close(); });
  const engine = decoder.engine(cache);
  const [long, sequence] = passOf(cache, 4_096); // what is behind a prompt does not matter here: it is not computed
  const decode = (position: number): Promise<unknown> => engine.decode({
    ...long, positions: Int32Array.of(position), tokenCounts: Int32Array.of(1), tokens: Int32Array.of(7),
  });
  const prefill = (position: number): Promise<unknown> => engine.prefill({
    ...long, positions: Int32Array.of(position), tokenCounts: Int32Array.of(16), tokens: long.tokens.subarray(0, 16),
  });
  await decode(10);
  await prefill(10);
  const before = privateBytes();
  for (let step = 0; step < 4; step += 1) await decode(4_095);
  await prefill(4_080);
  const more = privateBytes() - before;
  t.true(more < 8 * 2 ** 20, `${more} bytes`);
  t.log(`${(more / 2 ** 20).toFixed(1)} MiB`);
  sequence.release();
});

onnxTest('weights are not read into memory of the program when a decoder is opened', async (t) => {
  const file = madeFile(t, madeDecoder({ hidden: 512, vocabulary: 8_192 })); // 40 MB
  const before = process.memoryUsage().arrayBuffers;
  const decoder = await OnnxDecoder.open(file, { threads: 1, library: libraryFile() });
  t.teardown(() => { decoder.close(); });
  const more = process.memoryUsage().arrayBuffers - before;
  t.true(more < 2 ** 22, `${more} bytes`);
}, slow('makes a model of 40 MB'));

onnxTest('nothing but the rows is read or written: behind them nothing may be written, and the answer is right', async (t) => {
  const { decoder, cache, stock } = await openOnnxWorld(t, { heads: 8, kvHeads: 4, dim: 128 }); // 32 tokens a row
  const own = cache({ mapper: 'off', growth: onDemand() });
  const [pass, sequence, text] = passOf(own, 40);
  const { pageBytes } = own.pool;
  const { logits } = await decoder.engine(own).prefill(pass);
  const wanted = await stock.logits(text);
  t.true(logits.every((value, at) => Math.abs(value - wanted[at]!) < 1e-4));
  for (const tensor of own.tensors.keys()) {
    const rowsBytes = sequence.mappedRows * pageBytes;
    t.is(touchedPages(sequence.address(tensor), rowsBytes), 40 * 2_048 / 4_096, 'its tokens');
    const behind = sequence.address(tensor) + BigInt(rowsBytes);
    t.is(touchedPages(behind, 10 * pageBytes), 0);
    t.is(protectionAt(behind), 'r--', 'a write would end the process, and a read would show');
  }
});

onnxTest('a pass is computed on another thread, while JavaScript has the processor', async (t) => {
  const { decoder, cache } = await openOnnxWorld(t);
  const own = cache();
  const [pass, sequence] = passOf(own, 40);
  const lastValues = sequence.view(own.tensors.length - 1) as Float32Array;
  const written = 39 * 32; // the last token's
  const answer = decoder.engine(own).prefill(pass);
  const end = performance.now() + 300_000;
  while (lastValues[written] === 0 && performance.now() < end) { /* no turn of the event loop */ }
  t.not(lastValues[written], 0);
  await answer;
});

onnxTest('what the graph is not given of a request is refused', async (t) => {
  const { decoder, cache } = await openOnnxWorld(t);
  const own = cache();
  const scheduler = new OnlineScheduler({ cache: own, engine: decoder.engine(own) });
  const items = [{ at: 1, length: 1, kind: 'item', hash: 'image' } as const];
  for (const more of [{ adapter: 'lora' }, { items }, { input: 1 }]) {
    t.throws(() => scheduler.submit({ tokens: [1, 2, 3], maxNewTokens: 1, ...more }), { code: 'KV_INVALID_OPTION', message: /does not read it/ });
  }
});

onnxTest('engines over several caches share a decoder', async (t) => {
  const { decoder, cache, stock } = await openOnnxWorld(t);
  const text = Array.from({ length: 50 }, (_, at) => at);
  const wanted = await stock.greedy(text, 6);
  const answers = await Promise.all([1, 2].map(async () => {
    const own = cache();
    const tokens: number[][] = [];
    for await (const outcome of new OfflineScheduler({ cache: own, engine: decoder.engine(own) }).run([{ tokens: text, maxNewTokens: 6 }])) {
      if (outcome.status === 'fulfilled') tokens.push([...outcome.value.tokens]);
    }
    return tokens;
  }));
  t.deepEqual(answers, [[wanted], [wanted]]);
});

function passOf(cache: KvCache, tokens: number): [EnginePass, Sequence, number[]] {
  const text = Array.from({ length: tokens }, (_, at) => at * 7 % 96);
  const sequence = cache.acquire({ tokens: text });
  const batch = cache.createBatch();
  batch.add(sequence, tokens);
  cache.prepare(batch);
  return [{
    length: 1, slots: Int32Array.of(sequence.slot), positions: Int32Array.of(0), tokenCounts: Int32Array.of(tokens), starts: Int32Array.of(0),
    tokens: Int32Array.from(text), wantsLogits: Uint8Array.of(1), sequences: [sequence], contextTokens: [Int32Array.from(text)], inputs: [undefined],
    items: [[]], adapters: [undefined],
    signal: new AbortController().signal,
  }, sequence, text];
}

/** Pages of 4 KiB of an address range that were read or written. */
function touchedPages(address: bigint, bytes: number): number {
  const pages = new BigUint64Array(bytes / 4_096);
  const file = openSync('/proc/self/pagemap', 'r');
  readSync(file, new Uint8Array(pages.buffer), 0, pages.byteLength, Number(address / 4_096n) * 8);
  closeSync(file);
  return pages.filter((page) => page >> 63n === 1n).length;
}

/** `rwx` of the mapping that an address is in; `-` for what is not allowed. */
function protectionAt(address: bigint): string {
  for (const line of readFileSync('/proc/self/maps', 'latin1').split('\n')) {
    const [, start, end, protection] = /^([0-9a-f]+)-([0-9a-f]+) (\S{3})/.exec(line) ?? [];
    if (start !== undefined && BigInt(`0x${start}`) <= address && address < BigInt(`0x${end!}`)) return protection!;
  }
  return 'none';
}

/** Memory of this process alone, in bytes: the cache's own pages are shared ones. */
function privateBytes(): number {
  const anonymous = /^RssAnon:\s+(\d+) kB$/m.exec(readFileSync('/proc/self/status', 'utf8'));
  return 1024 * Number(anonymous![1]);
}

