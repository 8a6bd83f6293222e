// What JavaScript sees of a slot's memory, where the addon refuses to show it.

import test from 'ava';

import { BackgroundErrors } from '#internal/device/cache-calls.js';
import type { NativeCache } from '#internal/device/native.js';
import { SlotViews } from '#internal/device/slot-views.js';

test('of a slot that cannot be shown nothing stays shown', (t) => {
  let isShown = false;
  const native = {
    window: () => {
      isShown = true;
      throw new Error('the second part was refused');
    },
    revoke: () => { isShown = false; },
  } as unknown as NativeCache;
  const views = new SlotViews(native, {}, new BackgroundErrors({}));
  const tensor = { reservation: 0, offsetBytes: 0, dtype: 'float32', strides: { elementBytes: 4 } } as const;
  t.throws(() => views.open(3, tensor, 4096), { message: 'the second part was refused' });
  t.false(isShown, 'no later `revoke` knows of the slot');
});
