// Loading the CUDA kernels on the simulated device, which takes an image by its version, its target and its entries.
// Alone in its process: it changes the environment.

import { writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import * as path from 'node:path';

import test, { type ExecutionContext } from 'ava';

import { DenseKernels, Driver, Kernels, KvCache, loadKernels, type CodedError } from 'virtual-kv';
import { MockDevice, type MockDeviceOptions } from 'virtual-kv/testing';

import { kernelImages } from '#internal/kernels/kernel-image.js';
import { refuses, refusesAsync } from '../helpers/refuses.js';

const pageBytes = 65_536;
const openDevice = (options: MockDeviceOptions = {}): MockDevice => new MockDevice({ granularityBytes: pageBytes, ...options });
const openCache = (driver: Driver): KvCache => new KvCache({
  model: { layers: 1, kvHeads: 1, headDim: 64, dtype: 'float16' }, slots: 1, maxTokens: 64, memoryBudgetBytes: 2 ** 24, driver,
  pageBytes, mapper: 'off',
});

const loads = (device: MockDevice): number => device.callCounts().cuModuleLoadDataEx;

function close(t: ExecutionContext, device: MockDevice): void {
  device.driver.close();
  t.is(device.leaks().modules, 0);
  device.assertNoLeaks();
  device.close();
}

test('all kernel sets of a driver share one module, with every kernel looked up before the first launch', (t) => {
  const device = openDevice();
  const cache = openCache(device.driver);
  const kernels = new Kernels({ cache });
  const found = device.callCounts().cuModuleGetFunction;
  t.true(found > 50);
  new DenseKernels({ driver: device.driver }).close();
  kernels.close();
  new Kernels({ cache }).close();
  t.is(loads(device), 1);
  t.is(device.callCounts().cuModuleGetFunction, found);
  cache.close();
  close(t, device);
});

test('decoding kernels ask for all shared memory of a multiprocessor, and are loaded where the driver refuses that hint', async (t) => {
  for (const isRefused of [false, true]) {
    const device = openDevice();
    if (isRefused) device.failCall('cuFuncSetAttribute', { times: 1000, result: 'CUDA_ERROR_NOT_SUPPORTED' });
    await loadKernels(device.driver);
    const ptx = Buffer.from(kernelImages(90)[0]!.read()).toString('latin1');
    t.is(device.callCounts().cuFuncSetAttribute, [...ptx.matchAll(/\.entry vkv_decode/g)].length);
    t.is(loads(device), 1);
    close(t, device);
  }
});

test('kernels are loaded on another thread, and a set that is opened meanwhile waits for them', async (t) => {
  const device = openDevice();
  device.setLatencyNs('cuModuleLoadDataEx', 50e6);
  const { driver } = device;
  const loading = loadKernels(driver);
  t.throws(() => driver.close(), { code: 'KV_DRIVER_IN_USE' });
  const cache = openCache(driver);
  new Kernels({ cache }).close();
  await loading;
  await loadKernels(driver);
  t.is(loads(device), 1);
  cache.close();
  close(t, device);
});

test('concurrent loads compile once', async (t) => {
  const device = openDevice();
  await Promise.all([loadKernels(device.driver), loadKernels(device.driver), loadKernels(device.driver)]);
  t.is(loads(device), 1);
  close(t, device);
});

test('the next image is taken when the driver refuses one', async (t) => {
  const open = (driver: Driver): Promise<void> => Promise.resolve(new DenseKernels({ driver }).close());
  for (const load of [loadKernels, open] as const) {
    const device = openDevice();
    device.failCall('cuModuleLoadDataEx', { result: 'CUDA_ERROR_INVALID_IMAGE' });
    await load(device.driver);
    t.is(loads(device), 2);
    close(t, device);
  }
});

test('a kernel that an image lacks is refused with its name, and the image does not stay', (t) => {
  const device = openDevice();
  device.failCall('cuModuleGetFunction', { nth: 7, result: 'CUDA_ERROR_NOT_FOUND' });
  new DenseKernels({ driver: device.driver }).close();
  t.is(loads(device), 2);
  t.is(device.leaks().modules, 1);
  close(t, device);
});

test('a driver that refuses every image says why, and loading can be repeated', async (t) => {
  const device = openDevice({ driverVersion: 10_020 });
  const refused = { code: 'KV_KERNELS_REFUSED' };
  const error = await t.throwsAsync(loadKernels(device.driver), refused) as unknown as CodedError<'KV_KERNELS_REFUSED'>;
  t.like(error.details, { call: 'cuModuleLoadDataEx', statusName: 'CUDA_ERROR_UNSUPPORTED_PTX_VERSION' });
  t.regex(error.details.log, /^ptxas /);
  t.like(error.cause, { code: 'KV_KERNELS_REFUSED' }, 'the other image');
  t.throws(() => new DenseKernels({ driver: device.driver }), refused);
  t.is(loads(device), 2 * kernelImages(90).length);
  close(t, device);
});

test('a lost device ends the loading at once', async (t) => {
  const device = openDevice();
  device.failCall('cuModuleLoadDataEx', { result: 'CUDA_ERROR_ILLEGAL_ADDRESS' });
  await t.throwsAsync(loadKernels(device.driver), { code: 'KV_DRIVER_LOST' });
  t.is(loads(device), 1);
  device.close();
});

test('a wait for the kernels can be aborted, and they are loaded all the same', async (t) => {
  const device = openDevice();
  await t.throwsAsync(loadKernels(device.driver, { signal: AbortSignal.abort() }), { code: 'KV_ABORTED' });
  t.is(loads(device), 0);
  const controller = new AbortController();
  const loading = loadKernels(device.driver, { signal: controller.signal });
  controller.abort();
  await t.throwsAsync(loading, { code: 'KV_ABORTED' });
  await loadKernels(device.driver);
  t.is(loads(device), 1);
  close(t, device);
});

test('on host there is nothing to load', async (t) => {
  const driver = Driver.open('host');
  await loadKernels(driver);
  driver.close();
  await refusesAsync(t, loadKernels({} as Driver), 'KV_INVALID_OPTION', { option: 'driver' });
});

test.serial('the simulated device refuses images that are newer than its driver or GPU', (t) => {
  const file = path.join(tmpdir(), `virtual-kv-image-${process.pid}`);
  const refusalOf = (image: string | Uint8Array, options: MockDeviceOptions = {}): string | undefined => {
    const device = openDevice(options);
    writeFileSync(file, image);
    process.env['VKV_KERNELS'] = `${path.dirname(file)}/${'./'.repeat((images += 1))}${path.basename(file)}`;
    try {
      new DenseKernels({ driver: device.driver }).close();
      return undefined;
    } catch (error) {
      return (error as { details: { statusName: string; call: string } }).details.statusName;
    } finally {
      delete process.env['VKV_KERNELS'];
      device.clearMisuses();
      device.close();
    }
  };
  let images = 0;
  const ptx = Buffer.from(kernelImages(75).at(-1)!.read()).toString('latin1').replace(/\0$/, '');
  t.is(refusalOf(ptx), undefined);
  t.is(refusalOf(ptx.replace('.version 7.0', '.version 9.1')), 'CUDA_ERROR_UNSUPPORTED_PTX_VERSION');
  t.is(refusalOf(ptx.replace('sm_75', 'sm_100')), 'CUDA_ERROR_NO_BINARY_FOR_GPU');
  t.is(refusalOf(ptx.replace(/^\.target.*$/m, '')), 'CUDA_ERROR_INVALID_PTX');
  t.is(refusalOf(ptx.replace('.entry vkv_merge(', '.entry vkv_other(')), 'CUDA_ERROR_NOT_FOUND');
  t.is(refusalOf('no image'), 'CUDA_ERROR_INVALID_IMAGE');
  const header = Buffer.alloc(64);
  header.writeUInt32LE(0xba55ed50);
  t.is(refusalOf(header), 'CUDA_ERROR_INVALID_IMAGE', 'a fatbin with nothing in it');
  header.writeUInt16LE(1, 4);
  header.writeUInt16LE(16, 6);
  header.writeBigUInt64LE(48n, 8);
  t.is(refusalOf(header), undefined);
});

test('a driver of a kind that has no kernels is not supported', async (t) => {
  const device = openDevice();
  const { driver } = device;
  const cache = openCache(driver);
  Object.defineProperty(driver, 'info', { value: { ...driver.info, kind: 'paged', kernels: 'none' } });
  const loads = { call: 'loadKernels' };
  await refusesAsync(t, loadKernels(driver), 'KV_DRIVER_UNSUPPORTED', loads);
  refuses(t, () => new Kernels({ cache }), 'KV_DRIVER_UNSUPPORTED', loads);
  refuses(t, () => new DenseKernels({ driver }), 'KV_DRIVER_UNSUPPORTED', loads);
  cache.close();
  close(t, device);
});
