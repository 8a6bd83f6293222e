// Opens the addon's cache from a layout: passes the numbers it needs, and says more about a refusal of addresses.

import { createError, isKvError } from '../base/errors.js';
import type { Layout } from '../layout/layout.js';
import { native, type NativeCache } from '../device/native.js';
import type { PagePool } from '../device/page-pool.js';
import type { SlotTable } from './slot-table.js';

/** `publish` will write rows and quarantine into the table. On failure nothing stays reserved. */
export function openNativeCache(
  pool: PagePool, layout: Layout, { rows, isQuarantined }: SlotTable, { scrub, mapper }: { scrub: boolean; mapper: boolean },
): NativeCache {
  const { pageBytes, slots, maxTokens, reservations, tensors } = layout;
  const options = {
    pageBytes, slots, maxTokens, scrub, mapper,
    tokenBytes: Float64Array.from(reservations, ({ tokenBytes }) => tokenBytes),
    tensors: Float64Array.from(tensors.flatMap(({ reservation, offsetBytes, tokenBytes }) => [reservation, offsetBytes, tokenBytes])),
  };
  try {
    return new (native().NativeCache)(pool.native, options, rows, isQuarantined);
  } catch (error) {
    if (!isKvError(error, 'KV_OUT_OF_ADDRESS_SPACE')) throw error;
    throw createError('KV_OUT_OF_ADDRESS_SPACE', {
      bytes: layout.virtualBytes, reservations: reservations.length, slots, maxTokens,
    }, { cause: error });
  }
}
