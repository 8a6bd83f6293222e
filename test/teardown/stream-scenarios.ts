// Teardown scenarios in which commands are queued on a stream of the host driver, or run, when a thread, a process or an object ends.

import { parentPort } from 'node:worker_threads';

import { DenseKernels, Driver, Kernels, type KvCache } from 'virtual-kv';

import { nativeOf } from '../helpers/native-of.js';
import { sharedFloats } from '../helpers/shared-floats.js';
import { collectGarbage, expect, kept, openCache, startWorkers, type Scenarios } from './untidy-process.js';

const [rows, width] = [256, 1_024];

/** Queues products and attention that take a while, on the memory of a cache. */
function queueWork(
  driver: Driver, count: number, stream = driver.acquireStream(),
): { readonly cache: KvCache; readonly stream: bigint; readonly output: Float32Array } {
  const cache = openCache(driver);
  const [dense, kernels] = [new DenseKernels({ driver, stream, threads: 2 }), new Kernels({ cache, stream, threads: 2 })];
  const weight = { data: sharedFloats(width * width), dtype: 'float32', outputs: width, inputs: width } as const;
  const [input, output] = [sharedFloats(rows * width), sharedFloats(rows * width)];
  const batch = cache.createBatch();
  batch.add(cache.acquire(), rows);
  cache.prepare(batch);
  for (let index = 0; index < count; index += 1) {
    dense.multiply(input, rows, { weight, output });
    kernels.append(0, batch, output, output);
    kernels.prefillAttention(0, batch, output, output);
  }
  return { cache, stream, output };
}

/** Queues thousands of commands that use the same three arrays; returns one of them. */
function queueManyCommands(driver: Driver, stream: bigint): Float32Array {
  const dense = new DenseKernels({ driver, stream, threads: 1 });
  const [input, weight, output] = [sharedFloats(8), sharedFloats(8), sharedFloats(8)];
  for (let index = 0; index < 5_000; index += 1) dense.normalize(input, 1, { weight, width: 8, epsilon: 1 }, output);
  return output;
}

export const streamScenarios: Scenarios = {
  'commands are left': () => {
    const driver = Driver.open('host');
    kept.push(driver, queueWork(driver, 30));
  },
  'exit while commands run': () => {
    const driver = Driver.open('host');
    kept.push(queueWork(driver, 2_000));
    process.exit(0);
  },
  'exit while a stream is awaited': () => {
    const driver = Driver.open('host');
    const { stream } = queueWork(driver, 2_000);
    void driver.synchronize(stream);
    setImmediate(() => process.exit(0));
  },
  'commands run and busy': async () => {
    const driver = Driver.open('host');
    const { stream } = queueWork(driver, 2_000);
    parentPort?.postMessage('computing');
    await driver.synchronize(stream);
  },
  'workers are terminated while commands run': async (on) => {
    for (let round = 0; round < 3; round += 1) {
      const workers = await startWorkers(2, 'commands run and busy', on);
      await Promise.all(workers.map((worker) => worker.terminate()));
    }
  },
  'commands keep what they use': async () => {
    const driver = Driver.open('host');
    const collected: string[] = [];
    const registry = new FinalizationRegistry<string>((what) => { collected.push(what); });
    const stream = driver.acquireStream();
    nativeOf(driver).failCall('hold', 1, 0);
    (() => {
      const { cache, output } = queueWork(driver, 3, stream);
      registry.register(cache, 'cache');
      registry.register(output, 'output');
      registry.register(queueManyCommands(driver, stream), 'output of many');
    })();
    await collectGarbage();
    expect(collected.length === 0, `collected: ${collected.join()}`);
    nativeOf(driver).failCall('hold', 0, 0);
    await driver.synchronize(stream);
    await collectGarbage();
    expect(collected.length === 3, `collected: ${collected.join()}`);
    expect(driver.memory().livePages === 0, 'pages are left');
    driver.close();
  },
};
