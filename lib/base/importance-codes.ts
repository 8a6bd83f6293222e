// The part of the catalogue about sequences that hold selected tokens of their text.

import type { CatalogueEntry } from './details.js';

type ImportanceCode = 'KV_SELECTION_LOST' | 'KV_SEQUENCE_LOSSY';

export const importanceCodes: { readonly [C in ImportanceCode]: CatalogueEntry<C> } = {
  KV_SELECTION_LOST: {
    class: 'KvStateError',
    recovery: 'retry',
    template: ({ reason }) =>
      `The selected tokens of a stored text could not be loaded: its tiers answer \`${reason}\`. Release the sequence, and acquire another without ` +
      '`selected`, which computes what is not on the device; schedulers do that by themselves.',
  },
  KV_SEQUENCE_LOSSY: {
    class: 'KvStateError',
    recovery: 'fix',
    template: ({ operation }) =>
      `Cannot ${operation}: the sequence holds selected tokens of its text (\`isLossy\`), and what it computes is not what its text says. ` +
      'Acquire a sequence without `selected` for that.',
  },
};
