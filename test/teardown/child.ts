// What the teardown tests run in processes and threads of their own: `node child.js <scenario> <driver>`, or a worker of this
// file with workerData { scenario, on }. Each scenario leaves its process in some untidy state; none closes more than it says.

import { once } from 'node:events';
import { isMainThread, parentPort, Worker, workerData } from 'node:worker_threads';

import { DenseKernels, DeviceMemory, Driver, Kernels, KvCache } from 'virtual-kv';
import { MockDevice } from 'virtual-kv/testing';

import { Random } from '#internal/base/random.js';
import { seedOf } from '../helpers/seed.js';
import { hostOnly, table } from '../hostile/table.js';
import { World } from '../hostile/world.js';
import { collectedScenarios } from './collected-scenarios.js';
import {
  collectGarbage, expect, kept, model, openCache, openDriver, pageBytes, slowDriver, start, startWorkers, scenarioFile, type DriverName, type Scenarios,
} from './untidy-process.js';
import { streamScenarios } from './stream-scenarios.js';
import { viewScenarios } from './view-scenarios.js';

const scenarios: Scenarios = {
  'open': (on) => {
    const cache = openCache(openDriver(on));
    const sequence = start(cache);
    kept.push(cache, sequence, sequence.view(0), cache.tensors, sequence.fork());
    start(cache).release();
    start(cache).release({ fence: { step: 9 } });
    start(cache).release({ fence: { stream: 0n } });
    const batch = cache.createBatch();
    batch.add(sequence, 1);
    cache.prepare(batch);
  },
  'mapping': (on) => {
    const cache = openCache(slowDriver(on));
    for (let slot = 0; slot < 8; slot += 1) start(cache);
    kept.push(cache);
    parentPort?.postMessage('mapping');
  },
  'mapping and busy': async (on) => {
    scenarios['mapping']!(on);
    for (;;) await new Promise((resolve) => setImmediate(resolve));
  },
  'calling and busy': (on) => {
    const cache = openCache(openDriver(on));
    const sequence = start(cache);
    parentPort?.postMessage('calling');
    for (;;) {
      expect(cache.metrics.acquired === 1 && cache.pool.counts().createdPages > 0, 'no counts');
      expect(cache.verifyStamp(sequence, 0, 1, 1) === 0 && cache.driver.memory().livePages > 0, 'no bytes');
    }
  },
  'exit while mapping': (on) => {
    scenarios['mapping']!(on);
    process.exit(0);
  },
  'exit inside a promise': async (on) => {
    const cache = openCache(slowDriver(on));
    start(cache);
    void cache.settled().then(() => process.exit(1));
    await Promise.resolve();
    process.exit(0);
  },
  'throw while mapping': (on) => {
    scenarios['mapping']!(on);
    throw new Error('on purpose');
  },
  'lost device': () => {
    const device = new MockDevice({ granularityBytes: pageBytes });
    const cache = openCache(device.driver);
    start(cache);
    device.loseDevice();
    kept.push(cache, device);
  },
  'half closed': () => {
    const device = new MockDevice({ granularityBytes: pageBytes });
    const cache = openCache(device.driver);
    start(cache);
    device.failCall('cuMemUnmap', { times: 1000 });
    try {
      cache.close();
    } catch {
      kept.push(cache);
    }
  },
  'views of everything': (on) => {
    const driver = openDriver(on);
    for (let index = 0; index < 3; index += 1) {
      const cache = openCache(driver);
      for (let slot = 0; slot < 8; slot += 1) {
        const sequence = start(cache);
        kept.push(...cache.tensors.map((tensor) => sequence.view(tensor.index)));
      }
    }
  },
  ...collectedScenarios,
  ...viewScenarios,
  ...streamScenarios,
  'a sequence keeps its cache': async (on) => {
    const driver = openDriver(on);
    const sequence = start(openCache(driver));
    await collectGarbage();
    expect(sequence.length === 100 && driver.memory().livePages > 0, 'the cache went');
    sequence.release();
  },
  'workers are terminated while mapping': async (on) => {
    for (let round = 0; round < 3; round += 1) {
      const workers = await startWorkers(3, 'mapping and busy', on);
      await Promise.all(workers.map((worker) => worker.terminate()));
    }
  },
  'workers are terminated in the middle of calls': async (on) => {
    for (let round = 0; round < 4; round += 1) {
      const workers = await startWorkers(3, 'calling and busy', on);
      await Promise.all(workers.map((worker) => worker.terminate()));
    }
  },
  'every call and busy': () => {
    // Every constructor and every method of the package, again and again, until the thread is ended somewhere in one of them.
    const rows = Object.entries(table).flatMap(([name, methods]) => Object.values(methods).flatMap((row) => (row === null ? [] : [{ name, row }])));
    for (let round = 0; ; round += 1) {
      const world = new World(round % 2 === 0 ? 'host' : 'mock');
      if (round === 0) parentPort?.postMessage('calling');
      for (const { name, row } of rows) {
        if (world.on === 'mock' && hostOnly.has(name)) continue;
        try {
          const { run, meant } = row(world);
          const answer: unknown = run(...meant as never[]);
          if (answer instanceof Promise) answer.catch(() => {});
        } catch { // refused, since calls before it have used things up
        }
        void [world.driver.memory(), world.cache.isClosed || [world.cache.metrics, world.cache.inspect()]];
      }
      world.close().catch(() => {});
    }
  },
  'workers are terminated in every call': async () => {
    const seed = seedOf('workers are terminated in every call');
    const random = new Random(seed);
    for (let round = 0; round < Number(process.env['VKV_TERMINATIONS'] ?? 20); round += 1) {
      const workers = await startWorkers(2, 'every call and busy', 'host');
      const spins = random.integer(300_000); // a moment that has to do with nothing
      for (let spin = 0; spin < spins; spin += 1) Math.sqrt(spin);
      await Promise.all(workers.map((worker) => worker.terminate()));
    }
  },
  'workers are terminated while they open': async () => {
    const random = new Random(seedOf('workers are terminated while they open'));
    for (let round = 0; round < Number(process.env['VKV_TERMINATIONS'] ?? 20); round += 1) {
      const workers = await startWorkers(2, 'opening and busy', 'host');
      const spins = random.integer(300_000);
      for (let spin = 0; spin < spins; spin += 1) Math.sqrt(spin);
      await Promise.all(workers.map((worker) => worker.terminate()));
    }
  },
  'opening and busy': () => {
    parentPort?.postMessage('opening');
    for (;;) {
      const device = new MockDevice({ granularityBytes: pageBytes });
      const driver = Driver.open('host');
      for (const used of [driver, device.driver]) {
        const cache = new KvCache({ model, slots: 2, maxTokens: 64, driver: used, pageBytes, memoryBudgetBytes: 8 * pageBytes, mapper: 'off' });
        if (used === driver) new Kernels({ cache, threads: 1 }).close();
        new DeviceMemory({ driver: used, bytes: 8 }).close();
        cache.close();
      }
      new DenseKernels({ threads: 1 }).close();
      driver.close();
      device.close();
    }
  },
  'workers end with open caches': async (on) => {
    const workers = Array.from({ length: 3 }, () => new Worker(scenarioFile, { workerData: { scenario: 'open', on } }));
    const exits = await Promise.all(workers.map((worker) => once(worker, 'exit')));
    for (const [code] of exits) expect(code === 0, `a worker exited with ${code}`);
  },
  'the process exits with workers mapping': async (on) => {
    await startWorkers(3, 'mapping and busy', on);
    process.exit(0);
  },
  'environments at once': async (on) => {
    const workers = Array.from({ length: 4 }, () => new Worker(scenarioFile, { workerData: { scenario: 'tidy', on } }));
    const exits = workers.map((worker) => once(worker, 'exit'));
    await scenarios['tidy']!(on);
    for (const [code] of await Promise.all(exits)) expect(code === 0, `a worker exited with ${code}`);
  },
  'tidy': async (on) => {
    const driver = openDriver(on);
    for (let round = 0; round < 5; round += 1) {
      const cache = openCache(driver);
      const sequences = Array.from({ length: 8 }, () => start(cache));
      await cache.settled();
      for (const sequence of sequences) expect(cache.verifyStamp(sequence, 0, 100, 1) === 0, 'another sequence wrote here');
      cache.verify();
      cache.close();
    }
    const { livePages, liveReservations } = driver.memory();
    expect(livePages === 0 && liveReservations === 0, 'something is left');
    driver.close();
  },
};

const { scenario, on } = isMainThread
  ? { scenario: process.argv[2] ?? '', on: process.argv[3] as DriverName }
  : workerData as { scenario: string; on: DriverName };
void scenarios[scenario]!(on);
