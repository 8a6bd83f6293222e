// What the teardown tests run in processes and threads of their own: `node child.js <scenario> <driver>`, or a worker of this
// file with workerData { scenario, on }. Each scenario leaves its process in some untidy state; none closes more than it says.

import { once } from 'node:events';
import { isMainThread, parentPort, Worker, workerData } from 'node:worker_threads';

import { ahead, DenseKernels, DeviceMemory, Driver, isKvError, Kernels, KvCache, PagePool, type Sequence } from 'virtual-kv';
import { MockDevice } from 'virtual-kv/testing';

import { Random } from '../../dist/random.js';
import { seedOf } from '../helpers/seed.js';
import { hostOnly, table } from '../hostile/table.js';
import { World } from '../hostile/world.js';

type DriverName = 'mock' | 'host';

const pageBytes = 65_536;
const model = { layers: 2, kvHeads: 4, headDim: 128, dtype: 'float16' } as const;
/** What a scenario wants alive at the end of its process. */
const kept: unknown[] = [];

function openDriver(on: DriverName): Driver {
  if (on === 'host') return Driver.open('host');
  const device = new MockDevice({ granularityBytes: pageBytes });
  kept.push(device);
  return device.driver;
}

/** On the mock every map takes a millisecond, so that the mapper is always in the middle of one. */
function slowDriver(on: DriverName): Driver {
  if (on === 'host') return Driver.open('host');
  const device = new MockDevice({ granularityBytes: pageBytes });
  device.setLatencyNs('cuMemMap', 1_000_000);
  kept.push(device);
  return device.driver;
}

function openCache(driver: Driver, pool?: PagePool): KvCache {
  const place = pool === undefined ? { driver, pageBytes, memoryBudgetBytes: 400 * pageBytes } : { pool };
  return new KvCache({ model, slots: 8, maxTokens: 4096, growth: ahead(2000), eagerRows: 4, ...place });
}

/** A sequence with tokens, the same for all, so that they share rows; the mapper has work for a while. */
function start(cache: KvCache, tokens = 100): Sequence {
  const sequence = cache.acquire({ tokens: Int32Array.from({ length: tokens }, (_, index) => index) });
  const { length } = sequence;
  const batch = cache.createBatch();
  batch.add(sequence, tokens - length);
  cache.prepare(batch);
  cache.stamp(sequence, length, tokens - length, 1);
  cache.commit(batch);
  return sequence;
}

async function collectGarbage(): Promise<void> {
  for (let round = 0; round < 6; round += 1) {
    globalThis.gc!();
    await new Promise((resolve) => setImmediate(resolve));
  }
}

/** Workers that run a scenario; resolves when each has said that it is in the middle of it. */
async function startWorkers(count: number, scenario: string, on: DriverName): Promise<Worker[]> {
  const workers = Array.from({ length: count }, () => new Worker(__filename, { workerData: { scenario, on } }));
  await Promise.all(workers.map((worker) => once(worker, 'message')));
  return workers;
}

const scenarios: Readonly<Record<string, (on: DriverName) => void | Promise<void>>> = {
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
  'collected': async (on) => {
    const driver = openDriver(on);
    const warnings = warningsOfThisProcess();
    for (let index = 0; index < 3; index += 1) start(openCache(driver));
    await collectGarbage();
    expect(warnings.join() === 'KV_NOT_CLOSED', `warned of ${warnings.join()}`);
    const { livePages, liveReservations } = driver.memory();
    expect(livePages === 0 && liveReservations === 0, `${livePages} pages and ${liveReservations} reservations are left`);
  },
  'collected while mapping': async (on) => {
    const driver = slowDriver(on);
    for (let index = 0; index < 3; index += 1) start(openCache(driver));
    await collectGarbage();
    expect(driver.memory().livePages === 0, 'pages are left');
  },
  'collected with a shared pool': async (on) => {
    const driver = openDriver(on);
    (() => {
      const pool = new PagePool({ driver, pageBytes, memoryBudgetBytes: 400 * pageBytes });
      for (let index = 0; index < 3; index += 1) start(openCache(driver, pool));
    })();
    await collectGarbage();
    expect(driver.memory().livePages === 0, 'pages are left');
  },
  'collected while their pool lives on': async (on) => {
    const driver = openDriver(on);
    const pool = new PagePool({ driver, pageBytes, memoryBudgetBytes: 400 * pageBytes });
    for (let index = 0; index < 3; index += 1) start(openCache(driver, pool));
    await collectGarbage();
    expect(pool.counts().mappedPages === 0, 'pages are mapped');
    expect(driver.memory().liveReservations === 0, 'addresses are reserved');
    pool.close();
    driver.close();
  },
  'closed in one job': (on) => {
    const driver = openDriver(on);
    const pool = new PagePool({ driver, pageBytes, memoryBudgetBytes: 400 * pageBytes });
    const held = (): number => {
      for (let round = 0; round < 3; round += 1) globalThis.gc!(); // what one collection finds, the next one has given back
      return process.memoryUsage().arrayBuffers;
    };
    for (const shared of [undefined, pool]) {
      const openAndClose = (look = (): number => 0): number => {
        const cache = openCache(driver, shared);
        start(cache);
        const seen = look();
        cache.close();
        return seen;
      };
      openAndClose(); // what is made once
      const before = held();
      const each = openAndClose(held) - before;
      expect(each > 50_000, `a cache has arrays of ${each} bytes`);
      for (let index = 0; index < 50; index += 1) openAndClose();
      const left = held() - before;
      expect(left < 10 * each, `${left} bytes of arrays are held by 51 closed caches, of ${each} each`);
    }
    pool.close();
    driver.close();
  },
  'collected users of a driver': async (on) => {
    const leave: Readonly<Record<string, (driver: Driver) => void>> = {
      'a cache': (driver) => { start(openCache(driver)); },
      'a cache of a shared pool': (driver) => {
        start(openCache(driver, new PagePool({ driver, pageBytes, memoryBudgetBytes: 400 * pageBytes })));
      },
      'a pool': (driver) => { new PagePool({ driver, pageBytes, memoryBudgetBytes: 400 * pageBytes }); },
      'device memory': (driver) => { new DeviceMemory({ driver, bytes: 100 }); },
      'dense kernels': (driver) => { if (driver.info.hasStreams) new DenseKernels({ driver }); },
    };
    for (const [what, open] of Object.entries(leave)) {
      const driver = openDriver(on);
      open(driver);
      await collectGarbage();
      const { livePages, liveReservations } = driver.memory();
      expect(livePages === 0 && liveReservations === 0, `${what} left ${livePages} pages and ${liveReservations} reservations`);
      driver.close();
    }
  },
  'collected users whose driver refuses': async () => {
    const device = new MockDevice({ granularityBytes: pageBytes });
    const { driver } = device;
    start(openCache(driver));
    device.failCall('cuMemRelease', { times: 1000 });
    await collectGarbage();
    device.clearFailures();
    await collectGarbage();
    driver.close();
    device.assertNoLeaks();
  },
  'closed caches are collected quietly': async (on) => {
    const driver = openDriver(on);
    const warnings = warningsOfThisProcess();
    for (let index = 0; index < 3; index += 1) {
      const cache = openCache(driver);
      start(cache).view(0);
      cache.close();
    }
    await collectGarbage();
    expect(warnings.length === 0, warnings.join());
    driver.close();
  },
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
    const worker = new Worker(__filename, { workerData: { scenario: 'writes until it is ended', on } });
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
    const workers = Array.from({ length: 3 }, () => new Worker(__filename, { workerData: { scenario: 'open', on } }));
    const exits = await Promise.all(workers.map((worker) => once(worker, 'exit')));
    for (const [code] of exits) expect(code === 0, `a worker exited with ${code}`);
  },
  'the process exits with workers mapping': async (on) => {
    await startWorkers(3, 'mapping and busy', on);
    process.exit(0);
  },
  'environments at once': async (on) => {
    const workers = Array.from({ length: 4 }, () => new Worker(__filename, { workerData: { scenario: 'tidy', on } }));
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
      for (const sequence of sequences) expect(cache.verifyStamp(sequence, 0, 100, 1) === 0, 'somebody else wrote here');
      cache.verify();
      cache.close();
    }
    const { livePages, liveReservations } = driver.memory();
    expect(livePages === 0 && liveReservations === 0, 'something is left');
    driver.close();
  },
};

function warningsOfThisProcess(): string[] {
  const codes: string[] = [];
  process.on('warning', (warning) => codes.push((warning as { code?: string }).code ?? warning.message));
  return codes;
}

function expect(holds: boolean, otherwise: string): void {
  if (!holds) throw new Error(otherwise);
}

const { scenario, on } = isMainThread
  ? { scenario: process.argv[2] ?? '', on: process.argv[3] as DriverName }
  : workerData as { scenario: string; on: DriverName };
void scenarios[scenario]!(on);
