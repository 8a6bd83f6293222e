// Teardown scenarios with views: of collected caches, transferred to threads, as many as the kernel has mappings for.

import { parentPort, Worker } from 'node:worker_threads';

import { isKvError, KvCache, type Sequence } from 'virtual-kv';

import {
  collectGarbage, expect, kept, model, openCache, openDriver, pageBytes, start, scenarioFile, warningsOfThisProcess, type Scenarios,
} from './untidy-process.js';

export const viewScenarios: Scenarios = {
  'a view keeps its memory': async (on) => {
    const driver = openDriver(on);
    const warnings = warningsOfThisProcess();
    let view: ReturnType<Sequence['view']> | undefined = start(openCache(driver)).view(0);
    const first = view[0];
    await collectGarbage();
    expect(warnings.length === 0 && view.length > 0 && view[0] === first, 'the memory went');
    view[0] = 7;
    view = undefined;
    await collectGarbage();
    expect(warnings.length === 1 && driver.memory().livePages === 0, 'the memory stays');
  },
  'a thread keeps writing to views that were transferred': async (on) => {
    const cache = openCache(openDriver(on));
    const turns = new Int32Array(new SharedArrayBuffer(4));
    const viewed = [start(cache), start(cache), start(cache)];
    const buffers = viewed.flatMap((sequence) => [0, 1, 2, 3].map((tensor) =>
      (sequence.view(tensor).buffer as ArrayBuffer & { transfer(): ArrayBuffer }).transfer()));
    const worker = new Worker(scenarioFile, { workerData: { scenario: 'writes until it is ended', on } });
    worker.postMessage({ turns, buffers }, buffers);
    const waitForTurns = (): void => {
      const from = Atomics.load(turns, 0);
      while (Atomics.load(turns, 0) < from + 3) Atomics.wait(turns, 0, Atomics.load(turns, 0));
    };
    waitForTurns();
    viewed[0]!.truncate(10);
    viewed[1]!.fork().release();
    for (const sequence of viewed) sequence.release();
    waitForTurns();
    for (let key = 0; key < 40; key += 1) {
      const sequence = cache.acquire();
      const batch = cache.createBatch();
      batch.add(sequence, 300);
      cache.prepare(batch);
      cache.stamp(sequence, 0, 300, key);
      cache.commit(batch);
      waitForTurns();
      expect(cache.verifyStamp(sequence, 0, 300, key) === 0, 'another thread wrote to a sequence');
      sequence.release();
      if (key % 10 === 0) cache.pool.setBudget((400 - key) * pageBytes);
    }
    expect(cache.metrics.lateErrors === 3, 'not every sequence told of its views');
    cache.close();
    waitForTurns();
    await worker.terminate();
  },
  'writes until it is ended': () => {
    parentPort!.once('message', ({ turns, buffers }: { readonly turns: Int32Array; readonly buffers: readonly ArrayBuffer[] }) => {
      for (;;) {
        for (const buffer of buffers) new Uint8Array(buffer).fill(0xff);
        Atomics.add(turns, 0, 1);
        Atomics.notify(turns, 0);
      }
    });
  },
  'views are taken until mappings run out': (on) => {
    const cache = new KvCache({
      model: { ...model, layers: 64 }, slots: 240, maxTokens: 4096, driver: openDriver(on), pageBytes, memoryBudgetBytes: 2 ** 33,
    });
    let refusal: unknown;
    const views: unknown[] = [];
    try {
      for (let slot = 0; slot < 110; slot += 1) {
        const sequence = cache.acquire();
        const batch = cache.createBatch();
        batch.add(sequence, 1);
        cache.prepare(batch);
        cache.commit(batch);
        for (const { index } of cache.tensors) views.push(sequence.view(index));
      }
    } catch (error) {
      refusal = error;
    }
    expect(isKvError(refusal, 'KV_OUT_OF_MAPPINGS') && refusal.details.isForView === true, `it was ${String(refusal)}`);
    kept.push(Array.from({ length: 1000 }, () => new ArrayBuffer(2 ** 20)), new Worker('', { eval: true }));
    cache.close();
  },
};
