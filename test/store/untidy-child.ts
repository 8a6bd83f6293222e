// A process, or workers of it, that end in the middle of a store's work: `node untidy-child.js SCENARIO DIRECTORY`.

import { once } from 'node:events';
import { readdirSync } from 'node:fs';
import * as path from 'node:path';
import { isMainThread, parentPort, Worker, workerData } from 'node:worker_threads';

import { DiskStore } from '#internal/store/disk-store.js';
import { StoreFaults } from '#internal/store/store-faults.js';
import { keyOf, MiB, options, recordOf } from './store-world.js';

async function busyStore(directory: string): Promise<DiskStore> {
  const store = await DiskStore.open(options(directory, { bytes: 64 * MiB, segmentBytes: 2 * MiB, durability: 'interval', threads: 4 }));
  const parts = store as unknown as { getTokens(...values: unknown[]): Promise<unknown> }; // internal
  for (let number = 0; number < 200; number += 1) {
    void store.put(recordOf(number, 0, [20_000, 3_200]));
    void store.get(keyOf(number - 9), [{ stripe: 1, target: new Uint8Array(20_000) }]);
    void parts.getTokens(keyOf(number - 9), { stripes: Float64Array.of(1), counts: Float64Array.of(2), tokens: Int32Array.of(3, 9) }, new Uint8Array(2 * 20_000 / 16));
    if (number % 10 === 0) void store.reorder(keyOf(number - 20), Int32Array.from({ length: 16 }, (_, token) => 15 - token));
  }
  void store.gc();
  void store.verify().catch(() => {}); // it may be closed before that ends
  return store;
}

/** A store whose collection has come to the first of more than a hundred records that it copies out of the first of its files. */
async function collectingStore(directory: string): Promise<void> {
  const faults = new StoreFaults();
  const store = await faults.open(options(directory, { bytes: 64 * MiB, segmentBytes: 4 * MiB, durability: 'none', threads: 1 }));
  const numbers = Array.from({ length: 500 }, (_, number) => number);
  for (const number of numbers) await store.put(recordOf(number, 0, [6_000]));
  await store.remove(numbers.filter((number) => number % 5 > 1).map(keyOf));
  faults.add({ call: 'write', holds: true });
  void store.gc();
  while (faults.held === 0) await new Promise((resolve) => setImmediate(resolve));
}

const scenarios: Readonly<Record<string, (directory: string) => Promise<void>>> = {
  /** Promises that wait keep the process alive; the store that is left open does not. */
  async 'left open'(directory) {
    const store = await busyStore(directory);
    await store.put(recordOf(1_000));
  },
  async exit(directory) {
    await busyStore(directory);
    process.exit(0);
  },
  async 'exit while opening'(directory) {
    void DiskStore.open(options(directory));
    process.exit(0);
  },
  async closing(directory) {
    void (await busyStore(directory)).close();
  },
  async workers(directory) {
    for (let turn = 0; turn < 6; turn += 1) {
      const worker = new Worker(__filename, { workerData: path.join(directory, String(turn)) });
      await once(worker, 'message');
      await worker.terminate();
      const store = await DiskStore.open(options(path.join(directory, String(turn))));
      await store.verify();
      await store.close();
    }
  },
  /** The worker does not wait until everything is copied, so that no file goes. */
  async collecting(directory) {
    const worker = new Worker(__filename, { workerData: { collecting: directory } });
    await once(worker, 'message');
    const files = (): string[] => readdirSync(directory, { recursive: true, encoding: 'utf8' });
    const before = files();
    await worker.terminate();
    const left = new Set(files());
    const gone = before.filter((file) => !left.has(file));
    if (gone.length > 0) throw new Error(`the collection went on to its end: ${gone.join(', ')}`);
  },
  async collected(directory) {
    for (let turn = 0; turn < 5; turn += 1) {
      await (async () => { await (await DiskStore.open(options(path.join(directory, String(turn))))).put(recordOf(1)); })();
      for (let wait = 0; wait < 5; wait += 1) {
        globalThis.gc!();
        await new Promise((resolve) => setImmediate(resolve));
      }
    }
    const store = await DiskStore.open(options(path.join(directory, '0'))); // unlocked by its collection
    await store.close();
  },
};

async function main(): Promise<void> {
  if (isMainThread) return scenarios[process.argv[2]!]!(process.argv[3]!);
  if (typeof workerData === 'string') await busyStore(workerData);
  else await collectingStore((workerData as { readonly collecting: string }).collecting);
  parentPort!.postMessage('busy');
}

void main();
