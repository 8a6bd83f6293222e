// The driver contract: every pre- and post-condition of native/driver.h as a test, for any driver. A test that needs what
// the driver lacks is skipped, by name, with the driver's own reason.

import test, { type ExecutionContext } from 'ava';

import { withAwaitedBench, withBench, type DriverBench } from '../helpers/driver-bench.js';
import type { Capability, DriverDescription } from '../helpers/drivers.js';
import { bytesContract } from './bytes-contract.js';
import { contractGroups, isChosen, type ContractGroup } from './contract-groups.js';
import { failureContract } from './failure-contract.js';
import { mappingContract } from './mapping-contract.js';
import { pageContract } from './page-contract.js';
import { processorContract } from './processor-contract.js';
import { randomContract } from './random-contract.js';
import { reservationContract } from './reservation-contract.js';
import { streamContract } from './stream-contract.js';

/** Declares one test of the contract; `body` gets a driver of its own. */
export type ContractTest = (
  title: string, needs: readonly Capability[], body: (t: ExecutionContext, bench: DriverBench) => unknown,
) => void;

export function driverContract(driver: DriverDescription): void {
  const absent = driver.whyAbsent?.();
  if (absent !== undefined) {
    test.skip(`${driver.name}: the contract does not run here: ${absent}`, () => {});
    return;
  }
  const contractTest: ContractTest = (title, needs, body) => {
    const missing = needs.find((need) => driver.lacks[need] !== undefined);
    if (missing !== undefined) {
      test.skip(`${driver.name}: ${title} [lacks ${missing}: ${driver.lacks[missing]}]`, () => {});
      return;
    }
    test(`${driver.name}: ${title}`, (t) => withAwaitedBench(t, driver, (bench) => body(t, bench)));
  };

  const groups: Readonly<Record<ContractGroup, () => void>> = {
    info: () => infoContract(driver, contractTest),
    reservations: () => reservationContract(contractTest),
    pages: () => pageContract(driver, contractTest),
    mappings: () => mappingContract(contractTest),
    bytes: () => bytesContract(contractTest),
    streams: () => streamContract(contractTest),
    processor: () => processorContract(contractTest),
    failures: () => failureContract(driver, contractTest),
    random: () => randomContract(contractTest),
  };
  for (const group of contractGroups) if (isChosen(group)) groups[group]();
}

function infoContract(driver: DriverDescription, contractTest: ContractTest): void {
  contractTest('the capabilities of the driver are those that its tests assume', [], (t, { info }) => {
    t.is(info.kind, driver.kind);
    t.is(info.kernels, driver.kind === 'host' ? 'cpu' : 'cuda');
    t.not(info.deviceName, '');
    t.is(info.defaultPageBytes % info.granularityBytes, 0);
    t.is(info.hasHostAccess, driver.lacks['host access'] === undefined);
    t.is(info.hasZeroedPages, driver.lacks['zeroed pages'] === undefined);
    t.is(info.hasReadableHoles, driver.lacks['readable holes'] === undefined);
    t.is(info.hasMemory, driver.lacks.memory === undefined);
  });

  contractTest('a new driver holds nothing and is not lost', [], (t, { native }) => {
    const memory = native.queryMemory();
    t.true(memory.totalBytes > 0);
    t.true(memory.freeBytes > 0 && memory.freeBytes <= memory.totalBytes);
    t.like(memory, { residentBytes: 0, livePages: 0, liveReservations: 0, mappings: 0 });
    t.false(native.isLost());
  });

  contractTest('drivers of one process have separate counts', [], (t, bench) => {
    withBench(t, driver, (other) => {
      const before = bench.counts();
      other.fillRun(other.reserve(2), 2);
      t.deepEqual(bench.counts(), before);
    });
  });

  test(`${driver.name}: closing a driver takes everything with it, and every later call is refused`, (t) => {
    const { native, close } = driver.open();
    const { granularityBytes } = native.info();
    const address = native.reserve(4 * granularityBytes, granularityBytes);
    const page = native.createPage(granularityBytes, address);
    native.map(address, granularityBytes, page);
    native.setAccess(address, granularityBytes);
    native.recordEvent(native.createStream());
    native.close();
    t.throws(() => native.queryMemory(), { code: 'KV_CLOSED' });
    t.throws(() => native.reserve(granularityBytes, granularityBytes), { code: 'KV_CLOSED' });
    t.notThrows(() => native.close());
    close();
  });
}
