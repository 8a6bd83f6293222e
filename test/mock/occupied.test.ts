// Memory of the simulated device that is not for pages, and unmapping that waits: where a real one is less kind.

import test from 'ava';

import { DenseKernels, Kernels, KvCache, loadKernels, onDemand } from 'virtual-kv';
import { MockDevice } from 'virtual-kv/testing';

import { nativeOf } from '../helpers/native-of.js';
import { refuses } from '../helpers/refuses.js';

const MiB = 2 ** 20;
const pageBytes = 2 * MiB;

test('a context and a module take memory while they are there', async (t) => {
  const device = new MockDevice({ memoryBytes: 64 * MiB, contextBytes: 20 * MiB, moduleBytes: 6 * MiB });
  const { driver } = device;
  t.is(driver.memory().freeBytes, 44 * MiB);
  const second = device.openDriver();
  t.is(driver.memory().freeBytes, 44 * MiB, 'the primary context is one');
  await loadKernels(driver);
  t.is(driver.memory().freeBytes, 38 * MiB);
  await loadKernels(second);
  t.is(driver.memory().freeBytes, 32 * MiB);
  second.close();
  t.is(driver.memory().freeBytes, 38 * MiB);
  t.throws(() => nativeOf(driver).createPage(40 * MiB, 0n), { code: 'KV_OUT_OF_DEVICE_MEMORY' });
  device.assertNoLeaks();
  device.close();
});

test('a device without room for a context opens no driver', (t) => {
  const device = new MockDevice({ memoryBytes: 8 * MiB, contextBytes: 20 * MiB });
  t.throws(() => device.driver, { code: 'KV_DRIVER_UNAVAILABLE' });
});

test('a pool that fills the device leaves no room for kernels, and one with headroom does', (t) => {
  for (const headroomBytes of [0, 8 * MiB]) {
    const device = new MockDevice({ memoryBytes: 64 * MiB, moduleBytes: 8 * MiB });
    const cache = new KvCache({
      model: { layers: 1, kvHeads: 8, headDim: 128, dtype: 'float16' }, slots: 1, maxTokens: 100_000, driver: device.driver, pageBytes,
      memoryBudgetBytes: 2 ** 30, headroomBytes, growth: onDemand(), mapper: 'off', prefixCache: 'off',
    });
    const sequence = cache.acquire();
    const batch = cache.createBatch();
    const { tokensPerRow } = cache.layout;
    t.throws(() => {
      for (;;) {
        batch.clear();
        batch.add(sequence, tokensPerRow);
        cache.prepare(batch);
        cache.commit(batch);
      }
    }, { code: 'KV_OUT_OF_DEVICE_MEMORY' });
    const open = (): void => new DenseKernels({ driver: device.driver }).close();
    if (headroomBytes > 0) t.notThrows(open);
    else refuses(t, open, 'KV_KERNELS_REFUSED', { statusName: 'CUDA_ERROR_OUT_OF_MEMORY' });
    sequence.release();
    cache.close();
    device.assertNoLeaks();
    device.close();
  }
});

test('unmapping may let all queued work end first', (t) => {
  const device = new MockDevice({ memoryBytes: 64 * MiB, streams: 'manual', unmap: 'waits' });
  const cache = new KvCache({
    model: { layers: 1, kvHeads: 1, headDim: 64, dtype: 'float16' }, slots: 2, maxTokens: 100_000, driver: device.driver, pageBytes,
    memoryBudgetBytes: 32 * MiB, growth: onDemand(), mapper: 'off', prefixCache: 'off',
  });
  const kernels = new Kernels({ cache, workspaceBytes: 0 });
  const sequence = cache.acquire();
  const batch = cache.createBatch();
  batch.add(sequence, 1);
  cache.prepare(batch);
  kernels.append(0, batch, sequence.address(0) + 4096n, sequence.address(0) + 8192n);
  t.is(device.pendingWork, 1);
  nativeOf(device.driver).unmap(sequence.address(0), pageBytes);
  t.is(device.pendingWork, 0);
  t.deepEqual(device.misuses(), []);
});
