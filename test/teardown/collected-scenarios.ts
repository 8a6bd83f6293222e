// Teardown scenarios in which objects are garbage-collected without close().

import { DenseKernels, DeviceMemory, Driver, PagePool } from 'virtual-kv';
import { MockDevice } from 'virtual-kv/testing';

import {
  collectGarbage, expect, openCache, openDriver, pageBytes, slowDriver, start, warningsOfThisProcess, type Scenarios,
} from './untidy-process.js';

export const collectedScenarios: Scenarios = {
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
};
