// A process, or workers of it, that end in the middle of a store's work: `node untidy-child.js SCENARIO DIRECTORY`.

import { once } from 'node:events';
import * as path from 'node:path';
import { isMainThread, parentPort, Worker, workerData } from 'node:worker_threads';

import { DiskStore } from '#internal/store/disk-store.js';
import { keyOf, MiB, options, put } from './store-world.js';

async function busyStore(directory: string): Promise<DiskStore> {
  const store = await DiskStore.open(options(directory, { bytes: 64 * MiB, durability: 'interval', threads: 4 }));
  for (let number = 0; number < 200; number += 1) {
    void put(store, number, 0, [20_000, 3_200]);
    void store.get(keyOf(number - 9), new Uint8Array(23_200));
    void store.getTokens(keyOf(number - 9), { stripes: Float64Array.of(0), counts: Float64Array.of(2), tokens: Int32Array.of(3, 9) }, new Uint8Array(2 * 20_000 / 16));
    if (number % 10 === 0) void store.reorder(keyOf(number - 20), Int32Array.from({ length: 16 }, (_, token) => 15 - token));
  }
  void store.verify().catch(() => {}); // it may be closed before that ends
  return store;
}

const scenarios: Readonly<Record<string, (directory: string) => Promise<void>>> = {
  /** Promises that wait keep the process alive; the store that is left open does not. */
  async 'left open'(directory) {
    const store = await busyStore(directory);
    await put(store, 1_000);
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
  async collected(directory) {
    for (let turn = 0; turn < 5; turn += 1) {
      await (async () => { await put(await DiskStore.open(options(path.join(directory, String(turn)))), 1); })();
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
  await busyStore(workerData as string);
  parentPort!.postMessage('busy');
}

void main();
