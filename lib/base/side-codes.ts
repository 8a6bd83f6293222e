// The part of the catalogue about what is cached beside K and V.

import { formatBytes, formatCount, formatNumber, printable } from './format.js';
import type { CatalogueEntry } from './details.js';

type SideCode = 'KV_ITEM_TOO_LARGE' | 'KV_HOLD_STATE' | 'KV_ENCODER_FULL' | 'KV_SIDE_STATE';

export const sideCodes: { readonly [C in SideCode]: CatalogueEntry<C> } = {
  KV_SIDE_STATE: {
    class: 'KvStateError',
    recovery: 'fix',
    template: ({ operation, sideTensor, problem, hint }) =>
      `Cannot ${operation} the side tensor \`${sideTensor}\`: ${problem}. ${hint}`,
  },
  KV_ITEM_TOO_LARGE: {
    class: 'RangeError',
    recovery: 'fix',
    template: ({ kind, tokens, bytes, budgetBytes }) =>
      `The encoder cache cannot hold an item of ${formatCount('token', tokens)} of kind '${printable(kind)}': that is ${formatBytes(bytes)}, ` +
      `and its whole budget is ${formatBytes(budgetBytes)}. Raise \`budgetBytes\`, or leave out \`tokens\` to have it computed but not cached.`,
  },
  KV_HOLD_STATE: {
    class: 'KvStateError',
    recovery: 'fix',
    template: ({ operation, problem }) =>
      `Cannot ${operation} an encoder item: its hold ${problem}. Acquire the item from this cache, and release the hold after its last use.`,
  },
  KV_ENCODER_FULL: {
    class: 'KvCapacityError',
    recovery: 'free',
    template: ({ kind, neededBytes, heldBytes, budgetBytes, waiting }) =>
      `The encoder cache has no room for ${neededBytes === undefined ? 'an item' : formatBytes(neededBytes)} of kind '${printable(kind)}': ` +
      `${formatBytes(heldBytes)} of ${formatBytes(budgetBytes)} is held${waiting === 0 ? '' : `, and ${formatNumber(waiting)} ` +
      `${waiting === 1 ? 'waits' : 'wait'} for room`}. ` +
      'Release holds, raise `budgetBytes`, or wait (`whenFull: \'wait\'`).',
  },
};
