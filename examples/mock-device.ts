// How to test, without a GPU, what an engine does when memory runs out or a GPU fails: a simulated CUDA device that is strict,
// fails on demand, and reports leaks at the end.
// Run it: npm run example -- mock-device

import assert from 'node:assert/strict';

import { isKvError, KvCache } from 'virtual-kv';
import { MockDevice } from 'virtual-kv/testing';

const device = new MockDevice({ memoryBytes: 512 * 2 ** 20 });
const cache = new KvCache({
  model: { layers: 4, kvHeads: 8, headDim: 128, dtype: 'float16' }, // a row is 8 pages of 2 MiB: 1,024 tokens
  slots: 4, maxTokens: 32_768, memoryBudgetBytes: 256 * 2 ** 20, driver: device.driver, mapper: 'off',
});
const sequence = cache.acquire();
const batch = cache.createBatch();
batch.add(sequence, 2000);

// The driver refuses the fifth page: growth is all or nothing, so the other four went back.
device.failCall('cuMemCreate', { nth: 5, result: 'CUDA_ERROR_OUT_OF_MEMORY' });
assert.throws(() => cache.prepare(batch), (error) => {
  assert(isKvError(error, 'KV_OUT_OF_DEVICE_MEMORY'));
  assert.equal(error.recovery, 'free'); // what an engine branches on: release or preempt a sequence, then try again
  console.log(`As scripted: ${error.message}`);
  return true;
});
assert.equal(cache.counts().mappedPages, 0);

cache.prepare(batch); // the next attempt works
cache.commit(batch);
console.log(`Then ${sequence.length} tokens in ${cache.counts().mappedPages} pages.`);

// A kernel still runs on the memory when the request ends: the fence keeps its pages until the stream is done.
const stream = 0n;
sequence.release({ fence: { stream } });
cache.close();
device.assertNoLeaks(); // every page, mapping, reservation and event was given back, and no rule of CUDA was broken
device.close();
console.log('Nothing leaked.');
