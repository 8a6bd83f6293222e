// What limits.test.ts runs in processes and threads of their own: `node limits-child.js <scenario> [argument]`, or a worker of this
// file. It drives the process to a limit of the machine and prints, as JSON, what it was told there.

import { strictEqual } from 'node:assert';
import { once } from 'node:events';
import { readFileSync } from 'node:fs';
import { isMainThread, parentPort, Worker, workerData } from 'node:worker_threads';

import { Driver, KvCache, onDemand, type DriverMemory, type DriverOptions } from 'virtual-kv';

import { isKvError } from '#internal/base/errors.js';

const MiB = 2 ** 20;
const pageBytes = 65_536;

/** 64 tensors, so that a slot in use costs 128 kernel mappings. */
const manyLayers = { layers: 32, kvHeads: 8, headDim: 64, dtype: 'float16' } as const;

/** What is left to a process that is at a limit: memory of many kinds. */
function allocate(): void {
  const buffers = Array.from({ length: 32 }, () => Buffer.alloc(MiB, 1));
  const text = JSON.stringify(Array.from({ length: 100_000 }, (_, index) => ({ index, name: `number ${index}` })));
  strictEqual((JSON.parse(text) as unknown[]).length, 100_000);
  strictEqual(buffers.reduce((sum, buffer) => sum + buffer[MiB - 1]!, 0), 32);
  strictEqual(new SharedArrayBuffer(MiB).byteLength, MiB);
}

interface Refusal {
  readonly code: string;
  readonly message: string;
  readonly details: unknown;
  readonly memory: DriverMemory;
}

/** Takes slots until the driver refuses. */
function fillMappings(driver: Driver): Refusal {
  const slots = 4096;
  const cache = new KvCache({
    model: manyLayers, slots, maxTokens: 1024, pageBytes, memoryBudgetBytes: 2 ** 40, driver, growth: onDemand(), mapper: 'off',
  });
  const batch = cache.createBatch(1);
  for (let slot = 0; slot < slots; slot += 1) {
    batch.clear();
    batch.add(cache.acquire(), 1);
    try {
      cache.prepare(batch);
    } catch (error) {
      if (!isKvError(error)) throw error;
      const { code, message, details } = error;
      return { code, message, details, memory: driver.memory() };
    }
    cache.commit(batch);
  }
  throw new Error('nothing was refused');
}

/** Runs in a worker: fills, says so, waits until all have, allocates, ends with all of it open. */
async function workAtTheLimit(drivers: number): Promise<void> {
  const opened = Array.from({ length: drivers }, () => Driver.open('host', { memoryBytes: 2 ** 40 }));
  const refusals = opened.map((driver) => {
    try {
      return fillMappings(driver);
    } catch (error) {
      if (!isKvError(error, 'KV_OUT_OF_MAPPINGS')) throw error; // not even the reservations
      return { code: error.code, message: error.message, details: error.details, memory: driver.memory() };
    }
  });
  parentPort!.postMessage(refusals);
  await once(parentPort!, 'message');
  allocate();
  parentPort!.postMessage('alive');
}

const scenarios: Readonly<Record<string, (argument: string) => void | Promise<void>>> = {
  'mappings': async () => {
    const workers = Array.from({ length: 8 }, (_, index) => new Worker(__filename, { workerData: index < 4 ? 3 : 2 }));
    const ends = workers.map((worker) => once(worker, 'exit'));
    const refusals = (await Promise.all(workers.map((worker) => once(worker, 'message')))).flat(2) as Refusal[];
    const mappings = readFileSync('/proc/self/maps', 'utf8').split('\n').length;
    allocate();
    const more = new Worker('require("node:worker_threads").parentPort.postMessage(1)', { eval: true });
    await once(more, 'message');
    const alive = workers.map((worker) => once(worker, 'message'));
    for (const worker of workers) worker.postMessage('go on');
    await Promise.all(alive);
    await Promise.all(ends);
    using driver = Driver.open('host');
    console.log(JSON.stringify({ refusals, mappings, left: driver.memory().processMappings }));
  },
  'memory': (options) => {
    const driver = Driver.open('host', JSON.parse(options) as DriverOptions);
    const { totalBytes } = driver.memory();
    const ballast = Buffer.alloc(64 * MiB, 1); // the rest of the process grows after the driver was opened
    const cache = new KvCache({
      model: { layers: 2, kvHeads: 8, headDim: 128, dtype: 'float16' }, slots: 64, maxTokens: 65_536, driver,
      memoryBudgetBytes: Math.min(totalBytes, 2 ** 34), growth: onDemand(),
    });
    const batch = cache.createBatch(1);
    let bytes = 0;
    try {
      for (;;) {
        const sequence = cache.acquire();
        batch.clear();
        batch.add(sequence, 4096);
        cache.prepare(batch);
        bytes += cache.stamp(sequence, 0, 4096, 1);
        cache.commit(batch);
      }
    } catch (error) {
      if (!isKvError(error)) throw error;
      allocate();
      console.log(JSON.stringify({ code: error.code, message: error.message, bytes, ballast: ballast.length }));
    }
    cache.close();
    driver.close();
  },
};

if (isMainThread) void scenarios[process.argv[2]!]!(process.argv[3] ?? '');
else void workAtTheLimit(workerData as number);
