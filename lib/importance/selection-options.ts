// The option `selection` of promotions and requests: meaning, range and default of each field, and how they are read.

import { createError } from '../base/errors.js';
import { nested, number, withDefault, withoutRevoked, type Field } from '../base/options.js';
import { probeHeads, type TokenSelector } from './selectors.js';

/** Loads only important tokens of stored text: the answer is not the exact one (docs/importance.md). */
export interface SelectionOptions {
  /** Share of the tokens that each layer gets, more than 0 and at most 1. */
  readonly ratio: number;
  /** Which tokens. Default `probeHeads()`, which needs `prefixCache.importance`. */
  readonly selector?: TokenSelector | undefined;
  /** Milliseconds after which loading a layer is given up, more than 0: the text is computed then. Default 10,000. */
  readonly layerTimeoutMs?: number | undefined;
}

const ratioField: Field<number> = (value, place) => {
  const ratio = number(0)(value, place);
  if (ratio > 0 && ratio <= 1) return ratio;
  throw createError('KV_INVALID_OPTION', { reason: 'range', ...place, expected: 'more than 0 and at most 1', received: ratio });
};

const looks: readonly unknown[] = ['nothing', 'probe-keys', 'keys'];

const selectorField: Field<TokenSelector> = (value, place) => {
  const isObject = typeof value === 'object' && value !== null;
  const { name, looksAt, select }: Partial<TokenSelector> = isObject ? withoutRevoked(value, place, () => {
    const { name, looksAt, select } = value as Partial<TokenSelector>;
    return { name, looksAt, select } as Partial<TokenSelector>;
  }) : {};
  if (typeof name === 'string' && looks.includes(looksAt) && typeof select === 'function') return value as TokenSelector;
  throw createError('KV_INVALID_OPTION', {
    reason: 'type', ...place, expected: "a selector such as `probeHeads()`: `name`, `looksAt` ('nothing', 'probe-keys' or 'keys') and `select`",
    received: value,
  });
};

const spec = {
  ratio: ratioField,
  selector: withDefault(selectorField, probeHeads()),
  layerTimeoutMs: withDefault(number(1e-3), 10_000),
};

export type ReadSelection = { readonly ratio: number; readonly selector: TokenSelector; readonly layerTimeoutMs: number };

/** Undefined where it is left out. */
export const selectionField: Field<ReadSelection | undefined> = (value, place) => (value === undefined ? undefined : nested(spec)(value, place));
