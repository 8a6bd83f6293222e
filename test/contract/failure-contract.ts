// The contract of failure: a call that fails because the layer below refused has changed nothing and works the next time.

import type { DriverBench } from '../helpers/driver-bench.js';
import type { DriverDescription, FallibleCall } from '../helpers/drivers.js';
import type { ContractTest } from './driver-contract.js';

/** Brings the bench to where `call` can be made, and returns it: as a raw call, and as one that the bench keeps. */
type Scene = (bench: DriverBench) => { readonly raw: () => void; readonly kept: () => void };

const scenes: Readonly<Record<FallibleCall, Scene>> = {
  reserve: (bench) => ({
    raw: () => bench.native.reserve(4 * bench.pageBytes, bench.pageBytes), kept: () => bench.reserve(4),
  }),
  freeReservation: (bench) => {
    const address = bench.reserve(4);
    return { raw: () => bench.native.freeReservation(address, 4 * bench.pageBytes), kept: () => bench.free(address) };
  },
  createPage: (bench) => ({ raw: () => bench.native.createPage(bench.pageBytes, 0n), kept: () => bench.create() }),
  releasePage: (bench) => {
    const page = bench.create();
    return { raw: () => bench.native.releasePage(page, bench.pageBytes), kept: () => bench.release(page) };
  },
  map: (bench) => {
    const address = bench.reserve(4);
    const page = bench.create();
    return { raw: () => bench.native.map(address, bench.pageBytes, page), kept: () => bench.map(address, page) };
  },
  setAccess: (bench) => {
    const address = bench.reserve(4);
    bench.map(address, bench.create());
    bench.map(bench.at(address, 1), bench.create());
    const raw = (): void => bench.native.setAccess(address, 2 * bench.pageBytes);
    return { raw, kept: raw };
  },
  unmap: (bench) => {
    const address = bench.reserve(4);
    bench.fillRun(address, 3);
    return { raw: () => bench.native.unmap(address, 3 * bench.pageBytes), kept: () => bench.unmap(address, 3) };
  },
};

export function failureContract(driver: DriverDescription, contractTest: ContractTest): void {
  for (const call of Object.keys(scenes) as FallibleCall[]) {
    for (const [systemCall, code] of Object.entries(driver.failures[call] ?? {})) {
      contractTest(`a failing ${systemCall} leaves ${call} undone`, ['failure script'], (t, bench) => {
        const { raw, kept } = scenes[call](bench);
        const before = bench.counts();
        bench.failNext(systemCall);
        t.throws(raw, { code });
        t.deepEqual(bench.counts(), before);
        t.notThrows(kept, 'the next time');
      });
    }
  }

  contractTest('an unmap that fails leaves the bytes in place', ['failure script', 'memory'], (t, bench) => {
    const address = bench.reserve(2);
    bench.fillRun(address, 2);
    bench.write(bench.at(address, 1), 21);
    bench.failNext(Object.keys(driver.failures.unmap!)[0]!);
    t.throws(() => bench.native.unmap(address, 2 * bench.pageBytes));
    t.deepEqual(bench.read(bench.at(address, 1), 1), [21]);
    bench.write(address, 20);
    t.deepEqual(bench.read(address, 1), [20]);
  });
}
