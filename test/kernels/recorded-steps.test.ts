// What a captured step may touch, and when: replays keep memory as queued work does, write only what is the sequence's alone, and a
// recorded step is of use only where it was recorded.

import test from 'ava';

import { Driver, Kernels, KvCache, onDemand, type RecordedStep, type Sequence } from 'virtual-kv';
import { MockDevice } from 'virtual-kv/testing';

import { nativeOf } from '../helpers/native-of.js';
import { refuses } from '../helpers/refuses.js';

const pageBytes = 65_536;
const model = { layers: 1, kvHeads: 2, headDim: 64, dtype: 'float16' } as const;
const rowBytes = model.kvHeads * model.headDim * Float32Array.BYTES_PER_ELEMENT;

class Scene {
  readonly device: MockDevice | undefined;
  readonly driver: Driver;
  readonly stream: bigint;
  readonly cache: KvCache;
  readonly kernels: Kernels;
  /** K and V of as many rows as there are slots: an array, or where the device has them. */
  readonly rows: Float32Array | bigint;
  readonly #rowCache: KvCache | undefined;

  constructor(on: 'host' | 'mock') {
    this.device = on === 'host' ? undefined : new MockDevice({ granularityBytes: pageBytes, streams: 'manual' });
    this.driver = this.device?.driver ?? Driver.open('host');
    this.stream = on === 'host' ? 0n : nativeOf(this.driver).createStream();
    const options = { model, driver: this.driver, pageBytes, growth: onDemand(), mapper: 'off' } as const;
    this.cache = new KvCache({ ...options, slots: 4, maxTokens: 512, memoryBudgetBytes: 16 * pageBytes });
    this.kernels = new Kernels({ cache: this.cache, stream: this.stream, threads: 1, workspaceBytes: 0 });
    if (on === 'host') this.rows = new Float32Array(4 * rowBytes / 4);
    else {
      this.#rowCache = new KvCache({ ...options, slots: 1, maxTokens: 64, memoryBudgetBytes: 4 * pageBytes });
      this.rows = this.sequenceOf(20, this.#rowCache).address(0);
    }
  }

  sequenceOf(tokens: number, cache = this.cache): Sequence {
    const sequence = cache.acquire();
    const batch = cache.createBatch();
    batch.add(sequence, tokens);
    cache.prepare(batch);
    cache.commit(batch);
    return sequence;
  }

  readonly append = (step: RecordedStep): void => { this.kernels.append(0, step, this.rows, this.rows); };

  close(): void {
    this.device?.completeAll();
    this.kernels.close();
    this.cache.close();
    this.#rowCache?.close();
    if (this.stream !== 0n) nativeOf(this.driver).destroyStream(this.stream);
    this.device?.assertNoLeaks();
    if (this.device === undefined) this.driver.close();
    else this.device.close();
  }
}

const spans = (slot: number, length: number) => ({ slots: Int32Array.of(slot), lengths: Int32Array.of(length), tokens: Int32Array.of(1) });

test('a sequence that ends right behind a replay keeps its rows until the replay is done', (t) => {
  const scene = new Scene('mock');
  const { cache, device, kernels } = scene;
  const steps = kernels.captureSteps({ record: scene.append, sizes: [1] });
  const sequence = scene.sequenceOf(5);
  const batch = cache.createBatch();
  batch.add(sequence, 1);
  cache.prepare(batch);
  steps.replay(batch, Int32Array.of(1));
  cache.commit(batch);
  sequence.release();
  const mapped = cache.pool.counts().mappedPages;
  cache.pool.setBudget(cache.pool.pageBytes); // takes back all unused rows
  t.is(cache.pool.counts().mappedPages, mapped);
  t.deepEqual(device!.misuses(), []);
  device!.completeAll();
  cache.acquire().release(); // hears that it is done
  cache.pool.setBudget(16 * cache.pool.pageBytes);
  cache.pool.setBudget(cache.pool.pageBytes);
  t.is(cache.pool.counts().mappedPages, 0);
  scene.close();
});

for (const on of ['mock', 'host'] as const) {
  test(`a replay writes no token that is not the sequence's alone (${on})`, (t) => {
    const scene = new Scene(on);
    const steps = scene.kernels.captureSteps({ record: scene.append, sizes: [1] });
    const parent = scene.sequenceOf(5);
    const fork = parent.fork();
    t.throws(() => steps.replay(spans(fork.slot, 2), Int32Array.of(1)), { code: 'KV_ROW_SHARED' });
    t.is(scene.device?.pendingWork ?? 0, 0);
    fork.release();
    parent.release();
    scene.close();
  });

  test(`a recorded step is valid only while it is recorded, for the kernels that record it (${on})`, (t) => {
    const scene = new Scene(on);
    const others = new Kernels({ cache: scene.cache, stream: scene.stream, threads: 1, workspaceBytes: 0 });
    const seen: RecordedStep[] = [];
    const steps = scene.kernels.captureSteps({
      sizes: [1],
      record: (step) => {
        seen.push(step);
        scene.append(step);
        refuses(t, () => { others.append(0, step, scene.rows, scene.rows); },
          'KV_INVALID_OPTION', { received: 'another' });
        const forged = Object.create(Object.getPrototypeOf(step) as object, { size: { value: 1 } }) as RecordedStep;
        t.throws(() => { scene.append(forged); }, { code: 'KV_INVALID_OPTION' });
        t.throws(() => { (step as { size: number }).size = 1000; }, { instanceOf: TypeError });
      },
    });
    const sequence = scene.sequenceOf(5);
    t.is(steps.replay(spans(sequence.slot, 4), Int32Array.of(1)), 1);
    t.is(seen.length, 1);
    refuses(t, () => { scene.append(seen[0]!); }, 'KV_INVALID_OPTION', { received: 'another' });
    scene.device?.completeAll();
    sequence.release();
    others.close();
    scene.close();
  });

  test(`slots in a recorded step are those of each replay: others are refused where it is recorded (${on})`, (t) => {
    const scene = new Scene(on);
    const { kernels, cache } = scene;
    const sequence = scene.sequenceOf(5);
    const batch = cache.createBatch();
    batch.add(sequence, 1);
    cache.prepare(batch);
    const wrong: Readonly<Record<string, () => void>> = {
      batch: () => { kernels.append(0, batch, scene.rows, scene.rows); },
      spans: () => { kernels.decodeAttention(0, spans(sequence.slot, 5), scene.rows, scene.rows); },
      prefill: () => { kernels.prefillAttention(0, batch, scene.rows, scene.rows); },
      copies: () => { kernels.copyTokens([{ fromSlot: sequence.slot, fromToken: 0, toSlot: sequence.slot, toToken: 5, tokens: 1 }]); },
    };
    for (const [name, call] of Object.entries(wrong)) {
      const capture = (): unknown => kernels.captureSteps({ sizes: [1], record: (step) => { scene.append(step); call(); } })
        .replay(batch, Int32Array.of(1));
      refuses(t, capture, 'KV_INVALID_OPTION', { received: 'slots of its own' }, name);
      t.notThrows(call, `${name}, outside`);
    }
    let steps: ReturnType<Kernels['captureSteps']> | undefined = kernels.captureSteps({ sizes: [1], record: scene.append });
    const nested = (): unknown => kernels.captureSteps({ sizes: [1], record: () => { steps!.replay(batch, Int32Array.of(1)); } })
      .replay(batch, Int32Array.of(1));
    refuses(t, nested, 'KV_INVALID_OPTION', { received: 'slots of its own' }, 'another step');
    t.is(steps.replay(batch, Int32Array.of(1)), 1);
    steps = undefined;
    scene.device?.completeAll();
    cache.discard(batch);
    sequence.release();
    scene.close();
  });

  test(`functions that go on when they return record nothing (${on})`, async (t) => {
    const scene = new Scene(on);
    const { kernels, cache } = scene;
    const sequence = scene.sequenceOf(5);
    const batch = cache.createBatch();
    batch.add(sequence, 1);
    cache.prepare(batch);
    const goesOn = async (step: RecordedStep): Promise<void> => {
      scene.append(step);
      await Promise.resolve();
      scene.append(step); // rejects: it is not being recorded any more
    };
    refuses(t, () => kernels.captureSteps({ sizes: [1], record: (step) => goesOn(step) as never }).replay(batch, Int32Array.of(1)),
      'KV_INVALID_OPTION', { option: 'record', reason: 'type' });
    refuses(t, () => kernels.step(async () => { await Promise.reject(new Error('mine')); }),
      'KV_INVALID_OPTION', { option: 'body', reason: 'type' });
    await new Promise(setImmediate); // no rejection is unhandled
    t.is(kernels.step(() => 7), 7);
    if (scene.device !== undefined) t.like(scene.device.leaks(), { graphs: 0, pushedContexts: 0 });
    scene.device?.completeAll();
    cache.discard(batch);
    sequence.release();
    scene.close();
  });

  test(`kernels that are closed while they record leave nothing behind (${on})`, (t) => {
    const scene = new Scene(on);
    const kernels = new Kernels({ cache: scene.cache, stream: scene.stream, threads: 1, workspaceBytes: 0 });
    const sequence = scene.sequenceOf(5);
    const record = (step: RecordedStep): void => {
      kernels.close();
      kernels.append(0, step, scene.rows, scene.rows);
    };
    t.throws(() => { kernels.captureSteps({ record, sizes: [1] }).replay(spans(sequence.slot, 4), Int32Array.of(1)); }, { code: 'KV_CLOSED' });
    sequence.release();
    if (scene.device !== undefined) t.like(scene.device.leaks(), { graphs: 0, pushedContexts: 0 });
    t.notThrows(() => { scene.kernels.captureSteps({ record: scene.append, sizes: [1] }); }, 'the stream is captured no more');
    scene.close();
  });
}
