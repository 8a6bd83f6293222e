// Rows of the hostile table for what selects tokens of stored text.

import * as kv from 'virtual-kv';

import type { Rows } from './table.js';

export const importanceRows: Readonly<Record<string, Rows>> = {
  allHeads: { call: null },
  probeHeads: { call: null },
  firstAndLast: { call: () => ({ run: kv.firstAndLast, meant: [{ first: 4 }] }) },
  randomTokens: { call: () => ({ run: kv.randomTokens, meant: [{ seed: 1 }] }) },
};
