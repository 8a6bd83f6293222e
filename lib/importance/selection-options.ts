// The option `selection` of promotions and requests: meaning, range and default of each field, and how they are read.

import { createError } from '../base/errors.js';
import { integer, nested, withDefault, withoutRevoked, type Field } from '../base/options.js';
import { probeHeads, type TokenSelector } from './selectors.js';

/** Loads only important tokens of stored text: the answer is not the exact one (docs/importance.md). */
export interface SelectionOptions {
  /** Share of the tokens that each layer gets, more than 0 and at most 1. */
  readonly ratio: number;
  /** Which tokens. Default `probeHeads()`, which needs `prefixCache.importance`. */
  readonly selector?: TokenSelector | undefined;
  /**
   * Milliseconds after which loading a layer is given up, a whole number from 1 to 2³¹ − 1: the text is computed then.
   * Default 10,000.
   */
  readonly layerTimeoutMs?: number | undefined;
}

const ratioField: Field<number> = (value, place) => {
  if (typeof value === 'number' && value > 0 && value <= 1) return value;
  throw createError('KV_INVALID_OPTION', {
    reason: typeof value === 'number' ? 'range' : 'type', ...place, expected: 'a number, more than 0 and at most 1',
    received: value,
  });
};

const looks: readonly unknown[] = ['nothing', 'probe-keys', 'keys'];

/**
 * Each member is read once, here: what a selector looks at, and what it is called, does not change in the middle of a
 * request.
 */
const selectorField: Field<TokenSelector> = (value, place) => {
  const isObject = typeof value === 'object' && value !== null;
  const { name, looksAt, select }: Partial<TokenSelector> = isObject ? withoutRevoked(value, place, () => {
    const { name, looksAt, select } = value as Partial<TokenSelector>;
    return { name, looksAt, select } as Partial<TokenSelector>;
  }) : {};
  if (typeof name === 'string' && looks.includes(looksAt) && typeof select === 'function') {
    return {
      name, looksAt: looksAt!, select: (choice) => Reflect.apply(select, value, [choice]) as Int32Array | undefined,
    };
  }
  throw createError('KV_INVALID_OPTION', {
    reason: 'type', ...place, expected:
      "a selector such as `probeHeads()`: `name`, `looksAt` ('nothing', 'probe-keys' or 'keys') and `select`",
    received: value,
  });
};

const spec = {
  ratio: ratioField,
  selector: withDefault(selectorField, probeHeads()),
  layerTimeoutMs: withDefault(integer({ min: 1, max: 2 ** 31 - 1 }), 10_000),
};

export type ReadSelection =
  { readonly ratio: number; readonly selector: TokenSelector; readonly layerTimeoutMs: number };

/** Undefined where it is left out. */
export const selectionField: Field<ReadSelection | undefined> =
  (value, place) => (value === undefined ? undefined : nested(spec)(value, place));
