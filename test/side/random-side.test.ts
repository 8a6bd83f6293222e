// Side tensors against a model: seeded random operations, with and without shortage, on host and mock: cover is a prefix of what was
// written, every row that can be read is that of its text, nothing leaks. A new page holds NaN on the mock and zeros on host, which no row
// has; one that was freed and taken again holds rows of another text, and they are other numbers. VKV_TEST_SCALE makes runs longer.

import test from 'ava';

import { Random } from '#internal/base/random.js';
import { Driver, KvCache } from 'virtual-kv';
import { MockDevice } from 'virtual-kv/testing';
import { assertNothingHeld } from '../helpers/nothing-held.js';
import { seedOf } from '../helpers/seed.js';
import { DeviceSource } from './device-source.js';
import { SideWorld } from './side-world.js';
import { scale } from '../runner/tier.js';

const KiB = 1024;
const MiB = KiB * KiB;

interface Setting {
  readonly name: string;
  readonly isLossless?: boolean;
  readonly memoryBudgetBytes: number;
  readonly budgets: readonly number[];
  readonly mappingLimit?: number;
  readonly scrub?: boolean;
  readonly tenantRows?: number;
  /** Instead of one of the run. */
  readonly seed?: number;
  /** Default 1,500. */
  readonly operations?: number;
  readonly isMock?: boolean;
  /** On the mock: rows come from the device, into the CPU's memory, by copies that take their time. */
  readonly isCopied?: boolean;
}

const settings: readonly Setting[] = [
  { name: 'nothing lost', isLossless: true, memoryBudgetBytes: 512 * MiB, budgets: [1024 * MiB] },
  { name: 'few side pages', memoryBudgetBytes: 512 * MiB, budgets: [3 * MiB, 6 * MiB, 12 * MiB] },
  // At operation 117 room is made by the end of the text that is being admitted.
  { name: 'few side pages, the text that is found goes', memoryBudgetBytes: 512 * MiB, budgets: [3 * MiB, 6 * MiB, 12 * MiB], seed: 256634117, operations: 150 },
  { name: 'few pages of K and V', memoryBudgetBytes: 4 * MiB, budgets: [64 * MiB, 8 * MiB] },
  { name: 'scrubbed between tenants', scrub: true, memoryBudgetBytes: 8 * MiB, budgets: [6 * MiB, 20 * MiB] },
  { name: 'a quota of rows for each tenant', tenantRows: 14, memoryBudgetBytes: 32 * MiB, budgets: [32 * MiB] },
  { name: 'few mappings', memoryBudgetBytes: 32 * MiB, budgets: [32 * MiB], mappingLimit: 260 },
  // At operation 4,178 a page is exchanged beyond the limit, to which unmapping leads: were the undo refused too, its rows would be lost.
  { name: 'few mappings, all taken', memoryBudgetBytes: 32 * MiB, budgets: [32 * MiB], mappingLimit: 200, seed: 1, operations: 4_500 },
  { name: 'from the device', isMock: true, isCopied: true, memoryBudgetBytes: 8 * MiB, budgets: [6 * MiB, 20 * MiB] },
  { name: 'from the device, nothing lost', isMock: true, isCopied: true, isLossless: true, memoryBudgetBytes: 512 * MiB, budgets: [1024 * MiB] },
  { name: 'on the device', isMock: true, memoryBudgetBytes: 8 * MiB, budgets: [6 * MiB, 20 * MiB] },
];

for (const setting of settings) {
  const seed = setting.seed ?? seedOf(`side ${setting.name}`);
  test(`${setting.name}: each row that can be read is that of its text (seed ${seed})`, (t) => {
    const isCopied = setting.isCopied === true;
    const device = setting.isMock === true
      ? new MockDevice({ granularityBytes: 64 * KiB, memoryBytes: 1024 * MiB, backing: 'real', hasGarbage: true, streams: isCopied ? 'manual' : 'immediate' }) : undefined;
    const host = device === undefined ? Driver.open('host', { memoryBytes: 2048 * MiB, mappingLimit: setting.mappingLimit }) : undefined;
    const place = (device !== undefined && !isCopied) || setting.mappingLimit !== undefined ? 'device' : 'host';
    const cache = new KvCache({
      model: { layers: 1, kvHeads: 16, headDim: 256, dtype: 'float32' }, slots: 6, maxTokens: 48, pageBytes: 64 * KiB,
      memoryBudgetBytes: setting.memoryBudgetBytes, driver: device?.driver ?? host!, mapper: 'off', scrub: setting.scrub === true ? 'between-tenants' : 'off',
      prefixCache: { tenantRows: setting.tenantRows },
      sideTensors: {
        whole: { width: 4096, dtype: 'float32', pageBytes: 64 * KiB, place }, // 4 tokens a page
        odd: { width: 5000, dtype: 'float32', pageBytes: 64 * KiB, place }, // a page ends inside a token
        large: { width: 20_000, dtype: 'float32', pageBytes: 64 * KiB, place }, // a token has more than a page
        narrow: { width: 16, dtype: 'float32', pageBytes: 64 * KiB, place }, // a text has less than a page
      },
      sideBudgetBytes: setting.budgets[0], handOverSlots: 4,
    });
    const source = isCopied ? new DeviceSource(device!.driver) : undefined;
    const world = new SideWorld(cache, {
      random: new Random(seed), maxTokens: 48, isLossless: setting.isLossless ?? false, budgets: setting.budgets, source,
      advance: isCopied ? () => advance(device!, source!, cache) : undefined,
    });
    // More text than that is evicted, however much memory there is.
    const operations = Math.ceil((setting.operations ?? 1500) * (setting.isLossless === true ? Math.min(scale, 2) : scale));
    for (let operation = 0; operation < operations; operation += 1) {
      try {
        world.step();
        if (operation % 50 === 0) world.verify();
      } catch (error) {
        throw new Error(`operation ${operation}: ${error instanceof Error ? (error.stack ?? '') : String(error)}`, { cause: error });
      }
    }
    world.verify();
    t.true(world.hits > 0);
    world.finish();
    device?.completeAll();
    assertNothingHeld(t, cache);
    cache.close();
    source?.free();
    if (device !== undefined) {
      t.deepEqual(device.misuses(), []);
      device.driver.close();
      device.assertNoLeaks();
      device.close();
    }
    host?.close();
    t.log(`${operations} operations, ${world.hits} hits, ${world.refusals} refusals`);
  });
}

/** What was queued is done, on all streams; then the rows that it read may go. */
function advance(device: MockDevice, source: DeviceSource, cache: KvCache): void {
  device.completeAll();
  if (cache.counts().retiringSlots === 0 && device.pendingWork === 0) source.free();
}
