// A system without random numbers, which name the files of a store.

import test from 'ava';

import { StoreFaults } from '#internal/store/store-faults.js';
import { assertExact, inFolder, options, recordOf } from './store-world.js';

test('where the system has no random numbers a record is not stored, and the store goes on', (t) => inFolder(async (directory) => {
  const faults = new StoreFaults();
  const store = await faults.open(options(directory));
  faults.add({ call: 'random', error: 'ENOSYS', times: 2 ** 32 });
  t.like(await store.put(recordOf(1)), { stored: false, reason: 'failed' });
  t.is(store.stats().lastError, 'getrandom: ENOSYS');
  faults.clear();
  t.deepEqual(await store.put(recordOf(1)), { stored: true });
  await assertExact(t, store, 1, 0);
  await store.close();
}));
