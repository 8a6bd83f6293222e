// What the scenarios of the teardown tests have in common: drivers and caches of one small shape, sequences that share rows,
// workers that run a scenario, and checks that end the process with an error.

import { once } from 'node:events';
import * as path from 'node:path';
import { Worker } from 'node:worker_threads';

import { ahead, Driver, KvCache, type PagePool, type Sequence } from 'virtual-kv';
import { MockDevice } from 'virtual-kv/testing';

/** Runs a scenario by its name. */
export const scenarioFile = path.join(__dirname, 'child.js');

export type DriverName = 'mock' | 'host';

export type Scenarios = Readonly<Record<string, (on: DriverName) => void | Promise<void>>>;

export const pageBytes = 65_536;
export const model = { layers: 2, kvHeads: 4, headDim: 128, dtype: 'float16' } as const;
/** What a scenario wants alive at the end of its process. */
export const kept: unknown[] = [];

export function openDriver(on: DriverName): Driver {
  if (on === 'host') return Driver.open('host');
  const device = new MockDevice({ granularityBytes: pageBytes });
  kept.push(device);
  return device.driver;
}

/** On the mock every map takes a millisecond, so that the mapper is always in the middle of one. */
export function slowDriver(on: DriverName): Driver {
  if (on === 'host') return Driver.open('host');
  const device = new MockDevice({ granularityBytes: pageBytes });
  device.setLatencyNs('cuMemMap', 1_000_000);
  kept.push(device);
  return device.driver;
}

export function openCache(driver: Driver, pool?: PagePool): KvCache {
  const place = pool === undefined ? { driver, pageBytes, memoryBudgetBytes: 400 * pageBytes } : { pool };
  return new KvCache({ model, slots: 8, maxTokens: 4096, growth: ahead(2000), eagerRows: 4, ...place });
}

/** A sequence with tokens, the same for all, so that they share rows; the mapper has work for a while. */
export function start(cache: KvCache, tokens = 100): Sequence {
  const sequence = cache.acquire({ tokens: Int32Array.from({ length: tokens }, (_, index) => index) });
  const { length } = sequence;
  const batch = cache.createBatch();
  batch.add(sequence, tokens - length);
  cache.prepare(batch);
  cache.stamp(sequence, length, tokens - length, 1);
  cache.commit(batch);
  return sequence;
}

export async function collectGarbage(): Promise<void> {
  for (let round = 0; round < 6; round += 1) {
    globalThis.gc!();
    await new Promise((resolve) => setImmediate(resolve));
  }
}

/** Workers that run a scenario; resolves when each has said that it is in the middle of it. */
export async function startWorkers(count: number, scenario: string, on: DriverName): Promise<Worker[]> {
  const workers = Array.from({ length: count }, () => new Worker(scenarioFile, { workerData: { scenario, on } }));
  await Promise.all(workers.map((worker) => once(worker, 'message')));
  return workers;
}

export function warningsOfThisProcess(): string[] {
  const codes: string[] = [];
  process.on('warning', (warning) => codes.push((warning as { code?: string }).code ?? warning.message));
  return codes;
}

export function expect(holds: boolean, otherwise: string): void {
  if (!holds) throw new Error(otherwise);
}
