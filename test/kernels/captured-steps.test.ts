// Captured decoding steps: the same results as steps that are queued call by call, whatever was mapped or unmapped between them; on
// the simulated device a replay is one launch, whose every range is checked anew.

import test from 'ava';

import {
  DenseKernels, DeviceMemory, Driver, Kernels, KvCache, onDemand, type Batch, type CapturedSteps, type RecordedStep, type Sequence,
} from 'virtual-kv';
import { MockDevice } from 'virtual-kv/testing';

import { Random } from '#internal/base/random.js';
import { nativeOf } from '../helpers/native-of.js';
import { refuses } from '../helpers/refuses.js';
import { seedOf } from '../helpers/seed.js';
import { scale } from '../runner/tier.js';

const pageBytes = 65_536;
const shape = { layers: 2, kvHeads: 2, headDim: 64, dtype: 'float16' } as const;
const queryHeads = 8;
const vocabulary = 50;
const width = queryHeads * shape.headDim;
const kvWidth = shape.kvHeads * shape.headDim;

type Floats = Float32Array | bigint;

/** A toy of an engine: tokens become rows of a table, which are queries, keys and values of every layer. */
class Toy {
  readonly cache: KvCache;
  readonly kernels: Kernels;
  readonly dense: DenseKernels;
  readonly stream: bigint;
  readonly #driver: Driver;
  readonly #memory: DeviceMemory | undefined;
  readonly #buffers: { readonly [name in 'embedding' | 'rotary' | 'hidden' | 'keys' | 'output']: Floats };

  constructor(driver: Driver, { slots = 6, maxTokens = 900, workspaceBytes = 2 ** 20 } = {}) {
    this.#driver = driver;
    const isHost = driver.kind === 'host';
    this.stream = isHost ? 0n : nativeOf(driver).createStream();
    this.cache = new KvCache({
      model: shape, slots, maxTokens, driver, pageBytes, memoryBudgetBytes: 64 * 2 ** 20, growth: onDemand(), mapper: 'off',
    });
    const attention = [{ windowTokens: 30, softcap: 1 }, { chunkTokens: 150 }]; // the second is split
    this.kernels = new Kernels({ cache: this.cache, queryHeads, attention, stream: this.stream, workspaceBytes, threads: 1 });
    this.dense = new DenseKernels(isHost ? { threads: 1 } : { driver, stream: this.stream, cublas: 'off' });
    const random = new Random(3);
    const fill = (length: number): Float32Array => Float32Array.from({ length }, () => random.next() - 0.5);
    const arrays = {
      embedding: fill(vocabulary * width), rotary: fill(maxTokens * shape.headDim), hidden: new Float32Array(slots * width),
      keys: new Float32Array(slots * kvWidth), output: new Float32Array(slots * width),
    };
    if (isHost) {
      this.#buffers = arrays;
      return;
    }
    const bytes = Object.values(arrays).reduce((sum, array) => sum + array.byteLength, 0);
    this.#memory = new DeviceMemory({ driver, bytes });
    let at = 0;
    this.#buffers = Object.fromEntries(Object.entries(arrays).map(([name, array]) => {
      this.#memory!.write(array, at);
      at += array.byteLength;
      return [name, this.#memory!.address + BigInt(at - array.byteLength)];
    })) as never;
  }

  /** One step over `rows` rows, queued. */
  readonly queue = (sequences: Batch | RecordedStep, rows: number, tokens: Int32Array | bigint, positions: Int32Array | bigint): void => {
    const { embedding, rotary, hidden, keys, output } = this.#buffers;
    const heads = { heads: queryHeads, dim: shape.headDim };
    this.dense.gather({ data: embedding, dtype: 'float32', outputs: vocabulary, inputs: width }, tokens, rows, hidden);
    this.dense.rotate(hidden, rows, heads, positions, rotary);
    for (let layer = 0; layer < shape.layers; layer += 1) {
      this.dense.gather({ data: embedding, dtype: 'float32', outputs: vocabulary * 4, inputs: kvWidth }, tokens, rows, keys);
      this.kernels.append(layer, sequences, keys, keys);
      this.kernels.decodeAttention(layer, sequences, hidden, output);
      this.dense.gate(output, hidden, rows * width, hidden);
    }
  };

  capture(sizes?: readonly number[]): CapturedSteps {
    return this.kernels.captureSteps({ sizes, record: (step) => { this.queue(step, step.size, step.tokens, step.positions); } });
  }

  /** What the last step gave, its first rows. */
  results(rows: number): Float32Array {
    const floats = rows * width;
    if (this.#memory === undefined) return (this.#buffers.hidden as Float32Array).slice(0, floats);
    const into = new Float32Array(floats);
    this.#memory.read(into, Number((this.#buffers.hidden as bigint) - this.#memory.address), this.stream);
    return into;
  }

  close(device?: MockDevice): void {
    this.kernels.close();
    this.dense.close();
    this.#memory?.close();
    this.cache.close();
    if (this.stream !== 0n) nativeOf(this.#driver).destroyStream(this.stream);
    device?.assertNoLeaks();
    if (device === undefined) this.#driver.close();
    else device.close();
  }
}

const openers = {
  host: () => ({ driver: Driver.open('host'), device: undefined }),
  mock: () => open('immediate'),
  'mock, manual streams': () => open('manual'),
} as const;

function open(streams: 'immediate' | 'manual'): { driver: Driver; device: MockDevice } {
  const device = new MockDevice({ granularityBytes: pageBytes, memoryBytes: 2 ** 28, hasGarbage: true, streams });
  return { driver: device.driver, device };
}

for (const [name, opener] of Object.entries(openers)) {
  const seed = seedOf(`captured steps ${name}`);
  test(`replays give what queued steps give while sequences grow, end and move (${name}, seed ${seed})`, (t) => {
    const random = new Random(seed);
    const [first, second] = [opener(), opener()];
    const replayed = new Toy(first.driver);
    const queued = new Toy(second.driver);
    const steps = replayed.capture();
    t.deepEqual(steps.sizes, [1, 2, 4, 6]);
    const live: { a: Sequence; b: Sequence }[] = [];
    for (let round = 0; round < 30 * scale; round += 1) {
      if (live.length === 0 || (live.length < 6 && random.chance(0.3))) {
        const pair = { a: replayed.cache.acquire(), b: queued.cache.acquire() };
        live.push(pair);
        const tokens = 1 + random.integer(random.chance(0.2) ? 300 : 20);
        for (const [toy, sequence] of [[replayed, pair.a], [queued, pair.b]] as const) { // the same K and V in both
          const batch = toy.cache.createBatch();
          batch.add(sequence, tokens);
          toy.cache.prepare(batch);
          const ids = Int32Array.from({ length: 1 }, () => 0);
          for (let token = 0; token < tokens; token += 1) {
            const spans = { slots: Int32Array.of(sequence.slot), lengths: Int32Array.of(token), tokens: Int32Array.of(1) };
            ids[0] = (token * 7 + round) % vocabulary;
            toy.queue(spans as never, 1, ids, Int32Array.of(token));
          }
          toy.cache.commit(batch);
        }
      } else if (random.chance(0.15)) {
        const [pair] = live.splice(random.integer(live.length), 1);
        if (first.device !== undefined) for (const { device } of [first, second]) device!.completeAll();
        pair!.a.release();
        pair!.b.release();
        if (random.chance(0.5)) for (const toy of [replayed, queued]) shrink(toy.cache);
        continue;
      }
      const ids = Int32Array.from(live, () => random.integer(vocabulary));
      const positions = Int32Array.from(live, ({ a }) => a.length);
      const [mine, theirs] = [replayed.cache.createBatch(), queued.cache.createBatch()];
      for (const { a, b } of live) {
        mine.add(a, 1);
        theirs.add(b, 1);
      }
      replayed.cache.prepare(mine);
      queued.cache.prepare(theirs);
      const size = steps.replay(mine, ids);
      t.true(size >= live.length && steps.sizes.includes(size));
      queued.queue(theirs, live.length, ids, positions);
      const [actual, expected] = [replayed.results(live.length), queued.results(live.length)];
      const off = expected.findIndex((value, index) => !(Math.abs(value - actual[index]!) <= 2e-6));
      t.is(off, -1, `round ${round}, ${live.length} rows: ${actual[off]}, expected ${expected[off]}`);
      replayed.cache.commit(mine);
      queued.cache.commit(theirs);
    }
    for (const { a, b } of live) {
      a.release();
      b.release();
    }
    replayed.close(first.device);
    queued.close(second.device);
  });
}

/** Takes what idle slots have, so that their rows are unmapped. */
function shrink(cache: KvCache): void {
  const { pool } = cache;
  const bytes = pool.memoryBudgetBytes;
  pool.setBudget(pool.pageBytes);
  pool.setBudget(bytes);
}

/** One sequence with a prepared token, in a toy on the simulated device. */
function scene(): { toy: Toy; device: MockDevice; sequence: Sequence; batch: Batch; done: () => void } {
  const { driver, device } = open('immediate');
  const toy = new Toy(driver, { slots: 3 });
  const sequence = toy.cache.acquire();
  const batch = toy.cache.createBatch();
  batch.add(sequence, 1);
  toy.cache.prepare(batch);
  return {
    toy, device, sequence, batch,
    done: () => {
      toy.cache.discard(batch);
      sequence.release();
      toy.close(device);
    },
  };
}

test('a replay is one small copy and one launch, with the context made current once', (t) => {
  const { toy, device, batch, done } = scene();
  const steps = toy.capture();
  steps.replay(batch, Int32Array.of(1)); // the first names the stream to the cache, which records an event there
  device.resetCallCounts();
  t.is(steps.replay(batch, Int32Array.of(1)), 1);
  const calls = Object.fromEntries(Object.entries(device.callCounts()).filter(([, count]) => count > 0));
  t.deepEqual(calls, {
    cuCtxPushCurrent: 1, cuCtxPopCurrent: 1, cuThreadExchangeStreamCaptureMode: 2, cuMemcpyHtoDAsync: 1, cuGraphLaunch: 1,
  });
  done();
});

test('a step within `step` makes the context current once for all its launches', (t) => {
  const { toy, device, batch, done } = scene();
  const queue = (): void => { toy.queue(batch, 1, Int32Array.of(1), Int32Array.of(0)); };
  const pushes = (body: () => void): readonly number[] => {
    device.resetCallCounts();
    body();
    const { cuCtxPushCurrent, cuCtxPopCurrent, cuThreadExchangeStreamCaptureMode, cuLaunchKernel } = device.callCounts();
    return [cuCtxPushCurrent, cuCtxPopCurrent, cuThreadExchangeStreamCaptureMode, cuLaunchKernel];
  };
  const [alone, , , launches] = pushes(queue);
  t.true(alone! >= 10);
  t.deepEqual(pushes(() => toy.kernels.step(queue)), [1, 1, 2, launches!]);
  t.throws(() => toy.kernels.step(() => { throw new Error('mine'); }), { message: 'mine' });
  t.is(device.leaks().pushedContexts, 0);
  done();
});

test('sequences beyond the largest size, or without memory, are refused before anything is queued', (t) => {
  const { toy, device, sequence, batch } = scene();
  const steps = toy.capture([1]);
  const other = toy.cache.acquire();
  const both = toy.cache.createBatch();
  toy.cache.discard(batch);
  both.add(sequence, 1);
  both.add(other, 1);
  toy.cache.prepare(both);
  device.resetCallCounts();
  refuses(t, () => steps.replay(both, Int32Array.of(1, 2)), 'KV_INVALID_OPTION', { option: 'sequences.length' });
  const spans = (slot: number, length: number, tokens = 1) =>
    ({ slots: Int32Array.of(slot), lengths: Int32Array.of(length), tokens: Int32Array.of(tokens) });
  t.throws(() => steps.replay(spans(2, 5), Int32Array.of(1)), { code: 'KV_COPY_OUT_OF_RANGE' });
  refuses(t, () => steps.replay(spans(sequence.slot, 0, 2), Int32Array.of(1)),
    'KV_INVALID_OPTION', { option: 'sequences.tokens' });
  refuses(t, () => steps.replay(spans(sequence.slot, 0), new Int32Array(0)),
    'KV_INVALID_OPTION', { option: 'tokens.length' });
  t.is(steps.replay(spans(sequence.slot, 0, 0), new Int32Array(0)), 0);
  t.is(device.callCounts().cuGraphLaunch, 0);
  toy.cache.discard(both);
  other.release();
  sequence.release();
  toy.close(device);
});

test('a replay over a row that is not mapped any more ends the device, as it would a GPU\'s context', (t) => {
  const { toy, device, sequence, batch } = scene();
  const steps = toy.capture([1]);
  t.is(steps.replay(batch, Int32Array.of(1)), 1);
  nativeOf(device.driver).unmap(sequence.address(0), pageBytes); // behind the cache, whose own checks let nothing go wrong
  t.throws(() => steps.replay(batch, Int32Array.of(1)), { code: 'KV_DRIVER_LOST' });
  t.like(device.misuses()[0], { call: 'cuGraphLaunch', rule: 'a kernel may use only memory that is mapped and accessible' });
});

test('a failed capture leaves nothing behind', (t) => {
  const { toy, device, done } = scene();
  const before = device.leaks();
  const record = (step: RecordedStep): void => { toy.queue(step, step.size, step.tokens, step.positions); };
  t.throws(() => toy.kernels.captureSteps({ record: () => { throw new Error('mine'); } }), { message: 'mine' });
  t.deepEqual(device.leaks(), before);
  t.throws(() => toy.kernels.captureSteps({ record: () => { toy.results(1); } }), { code: 'KV_DRIVER_CALL_FAILED' }, 'a wait');
  t.regex(device.misuses()[0]!.rule, /nothing may wait for a stream that is being captured/);
  device.clearMisuses();
  for (const call of ['cuStreamBeginCapture', 'cuStreamEndCapture', 'cuGraphInstantiateWithFlags', 'cuMemCreate'] as const) {
    device.failCall(call);
    t.throws(() => toy.kernels.captureSteps({ record, sizes: [1, 2] }), { code: 'KV_DRIVER_CALL_FAILED' }, call);
    device.clearFailures();
    t.deepEqual(device.leaks(), before, call);
  }
  refuses(t, () => toy.kernels.captureSteps({ record: (step) => { toy.kernels.prefillAttention(0, step, 1n, 1n); } }),
    'KV_INVALID_OPTION', { owner: 'Kernels.prefillAttention', received: 'a recorded step' });
  t.deepEqual(device.leaks(), before);
  const onDefault = new Kernels({ cache: toy.cache, queryHeads });
  refuses(t, () => onDefault.captureSteps({ record }), 'KV_INVALID_OPTION', { option: 'stream', received: 0n });
  onDefault.close();
  toy.capture([1]).close();
  t.deepEqual(device.leaks(), before);
  done();
});

test('captured steps end with their kernels, and refuse to replay from then on', (t) => {
  const { toy, device, batch, sequence } = scene();
  const steps = toy.capture([1, 2]);
  t.is(device.leaks().graphs, 2);
  toy.kernels.close();
  t.is(device.leaks().graphs, 0);
  t.true(steps.isClosed);
  t.throws(() => steps.replay(batch, Int32Array.of(1)), { code: 'KV_CLOSED' });
  toy.cache.discard(batch);
  sequence.release();
  toy.close(device);
});

test('replays that are still queued keep their rows from being unmapped', (t) => {
  const { driver, device } = open('manual');
  const toy = new Toy(driver, { slots: 2 });
  const steps = toy.capture([1]);
  const sequence = toy.cache.acquire();
  const batch = toy.cache.createBatch();
  batch.add(sequence, 1);
  toy.cache.prepare(batch);
  steps.replay(batch, Int32Array.of(4));
  toy.cache.commit(batch);
  t.true(device.pendingWork > 2);
  t.throws(() => nativeOf(driver).unmap(sequence.address(0), pageBytes), { code: 'KV_DRIVER_LOST' });
  t.regex(device.misuses()[0]!.rule, /memory that queued work uses must not be unmapped/);
});
