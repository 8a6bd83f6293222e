import test from 'ava';

import { KvCache } from 'virtual-kv';
import { MockDevice } from 'virtual-kv/testing';

import type { NativePool } from '#internal/device/native.js';
import { refuses } from '../helpers/refuses.js';

test('records that contradict each other are an internal error, to be reported with `inspect`', (t) => {
  const mock = new MockDevice({ backing: 'none' });
  const cache = new KvCache({
    model: { layers: 1, kvHeads: 1, headDim: 128, dtype: 'float16' }, slots: 1, maxTokens: 100, memoryBudgetBytes: 2 ** 24,
    driver: mock.driver,
  });
  const batch = cache.createBatch();
  const sequence = cache.acquire();
  batch.add(sequence, 1);
  cache.prepare(batch);
  // What no public call does: the pool goes while a slot still has its pages.
  const { native } = cache.pool as unknown as { readonly native: NativePool };
  refuses(t, () => native.close(), 'KV_INTERNAL', { call: 'PagePool::Close', what: 1 });
  cache.verify(); // and nothing has changed
  cache.close();
  mock.close();
});
