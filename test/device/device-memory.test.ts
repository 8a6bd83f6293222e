// DeviceMemory on the simulated device and on host: bytes come back, ranges are checked, and what fails leaves nothing behind.

import test from 'ava';

import { DeviceMemory, Driver } from 'virtual-kv';
import { MockDevice, type MockCall } from 'virtual-kv/testing';

import { nativeOf } from '../helpers/native-of.js';
import { refuses } from '../helpers/refuses.js';

const MiB = 2 ** 20;
const GiB = 2 ** 30;

function pattern(length: number): Uint8Array {
  return Uint8Array.from({ length }, (_, index) => (index * 31 + (index >> 8)) % 251);
}

for (const kind of ['host', 'mock'] as const) {
  test(`bytes are read as they were written, anywhere in the memory (${kind})`, (t) => {
    const device = kind === 'mock' ? new MockDevice({ memoryBytes: 64 * MiB }) : undefined;
    const driver = device?.driver ?? Driver.open('host');
    const before = driver.memory().livePages;
    const memory = new DeviceMemory({ driver, bytes: 5 * MiB + 3 });
    t.is(driver.memory().livePages - before, 1, 'one page');
    t.true(memory.address > 0n && memory.address % BigInt(2 * MiB) === 0n);
    const all = pattern(memory.bytes);
    memory.write(all);
    const whole = new Uint8Array(memory.bytes);
    memory.read(whole);
    t.true(Buffer.compare(all, whole) === 0);
    memory.write(Float32Array.of(1.5, -2).subarray(1), 2 * MiB - 2); // over the end of a page
    const float = new Float32Array(1);
    memory.read(float, 2 * MiB - 2);
    t.is(float[0], -2);
    memory.write(new Uint8Array(0), memory.bytes);
    memory.read(new Uint8Array(0), memory.bytes);
    memory.close();
    memory.close();
    t.is(driver.memory().livePages, before);
    device?.assertNoLeaks();
    driver.close();
    device?.close();
  });
}

test('a driver in use does not close, and closed memory takes nothing', (t) => {
  const driver = Driver.open('host');
  const memory = new DeviceMemory({ driver, bytes: 8 });
  t.throws(() => driver.close(), { code: 'KV_DRIVER_IN_USE' });
  memory.close();
  t.true(memory.isClosed);
  t.throws(() => memory.write(new Uint8Array(1)), { code: 'KV_CLOSED' });
  driver.close();
});

for (const call of ['cuMemAddressReserve', 'cuMemCreate', 'cuMemMap', 'cuMemSetAccess'] as const satisfies readonly MockCall[]) {
  test(`nothing stays when any ${call} fails`, (t) => {
    const device = new MockDevice({ memoryBytes: 64 * MiB });
    const { driver } = device;
    const before = device.leaks();
    let failures = 0;
    for (let nth = 1; nth <= 4; nth += 1) {
      device.failCall(call, { nth });
      try {
        new DeviceMemory({ driver, bytes: 6 * MiB }).close();
      } catch (error) {
        t.regex((error as { code: string }).code, /^KV_(DRIVER_CALL_FAILED|OUT_OF_)/);
        failures += 1;
      }
      device.clearFailures();
      t.deepEqual(device.leaks(), before, `call ${nth}`);
    }
    t.is(failures, 1);
    device.close();
  });
}

test('memory for a model\'s weights takes few large pages, and any of them that is refused leaves nothing behind', (t) => {
  const device = new MockDevice({ memoryBytes: 20 * GiB, backing: 'none' });
  const bytes = 16 * GiB - 5;
  new DeviceMemory({ driver: device.driver, bytes }).close();
  t.is(device.callCounts().cuMemCreate, 16);
  const before = device.leaks();
  for (const nth of [1, 2, 16]) {
    device.failCall('cuMemCreate', { nth, result: 'CUDA_ERROR_OUT_OF_MEMORY' });
    t.throws(() => new DeviceMemory({ driver: device.driver, bytes }), { code: 'KV_OUT_OF_DEVICE_MEMORY' });
    t.deepEqual(device.leaks(), before);
  }
  device.assertNoLeaks();
  device.close();
});

test('the error of a device without enough memory says how much is free', (t) => {
  const device = new MockDevice({ memoryBytes: 4 * MiB });
  refuses(t, () => new DeviceMemory({ driver: device.driver, bytes: 6 * MiB }),
    'KV_OUT_OF_DEVICE_MEMORY', { memoryBytes: 6 * MiB, freeBytes: 4 * MiB });
  device.assertNoLeaks();
  device.close();
});

test('copies come after what the package queued on the default stream, and after other work only where its stream is named', (t) => {
  const device = new MockDevice({ memoryBytes: 4 * MiB, streams: 'manual' });
  const native = nativeOf(device.driver);
  const memory = new DeviceMemory({ driver: device.driver, bytes: 4 });
  const read = (stream?: bigint): number[] => {
    const into = new Uint8Array(4);
    memory.read(into, 0, stream);
    return [...into];
  };
  memory.write(new Uint8Array(4));
  const engines = native.createStream();
  native.fill(memory.address, 1, 1, engines);
  native.fill(memory.address + 1n, 2, 1, 0n);
  t.deepEqual(read(), [0, 2, 0, 0]);
  t.deepEqual(read(engines), [1, 2, 0, 0]);
  native.fill(memory.address, 3, 4, 0n);
  memory.read(new Uint8Array(0));
  t.is(device.pendingWork, 0, 'no bytes wait as well');
  native.fill(memory.address, 4, 4, 0n);
  memory.write(Uint8Array.of(9), 3);
  t.deepEqual(read(), [4, 4, 4, 9]);
  native.destroyStream(engines);
  memory.close();
  device.assertNoLeaks();
  device.close();
});

test('copies leave the default stream alone, which may be out of use, unless the package queued something there', (t) => {
  const device = new MockDevice({ memoryBytes: 4 * MiB });
  const memory = new DeviceMemory({ driver: device.driver, bytes: 4 });
  const touchesDefault = (): boolean => {
    device.clearJournal();
    memory.write(Uint8Array.of(1));
    memory.read(new Uint8Array(1));
    return device.journal().some(({ call, handle, stream }) => /^cu(Memcpy|Stream)/.test(call) && handle === 0n && stream === 0n);
  };
  t.false(touchesDefault());
  nativeOf(device.driver).fill(memory.address, 1, 1, 0n);
  t.true(touchesDefault());
  t.false(touchesDefault(), 'it is waited for once');
  memory.close();
  device.close();
});

test('what a failing copy says is the driver\'s error', (t) => {
  const device = new MockDevice({ memoryBytes: 4 * MiB });
  const memory = new DeviceMemory({ driver: device.driver, bytes: 1 });
  for (const call of ['cuMemcpyHtoDAsync', 'cuStreamSynchronize'] as const) {
    device.failCall(call);
    refuses(t, () => memory.write(new Uint8Array(1)), 'KV_DRIVER_CALL_FAILED', { call });
  }
  device.failCall('cuMemcpyDtoHAsync');
  refuses(t, () => memory.read(new Uint8Array(1)), 'KV_DRIVER_CALL_FAILED', { call: 'cuMemcpyDtoHAsync' });
  memory.close();
  device.assertNoLeaks();
  device.close();
});
