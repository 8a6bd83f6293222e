// SelectedText: stored text of a prompt that a sequence may be given in part: what `promote` with `selection` resolves
// with, for `acquire`. It names text and holds no memory: where tiers lose the text meanwhile, it is computed.

import { createError } from '../../base/errors.js';
import { type Field, integer, nested, notConstructible, withDefault } from '../../base/options.js';
import type { PrefixDomain } from '../../prefix/domain.js';
import type { StoredBlock } from '../stored-texts.js';
import { probeHeads, type TokenSelector } from './selectors.js';

export interface SelectedTextParts {
  /** The cache's, which alone takes it. */
  readonly owner: object;
  readonly domain: PrefixDomain;
  readonly text: Int32Array;
  readonly blocks: readonly StoredBlock[];
  readonly rules: ReadSelection;
}

/** Stored text that a sequence may be given in part: for `KvCache.acquire`. */
export class SelectedText {
  /** Tokens from the prompt's start that a sequence has once it is acquired with this, in part. */
  readonly tokens: number;
  /** Share of them that each layer gets. */
  readonly ratio: number;
  readonly #parts: SelectedTextParts;

  /** @internal Use `prefixes.promote`. */
  constructor(parts: SelectedTextParts) {
    if (parts?.rules === undefined) throw notConstructible('SelectedText', 'prefixes.promote');
    this.#parts = parts;
    this.tokens = parts.text.length;
    this.ratio = parts.rules.ratio;
  }

  /** Whether it is one that `promote` made, and no object that only has its prototype. @internal */
  static isInstance(value: unknown): value is SelectedText {
    return typeof value === 'object' && value !== null && #parts in value;
  }

  /** Whether a cache made it of the start of this text, for the same tenant, salt and adapter. @internal */
  isOf(owner: object, { tenant, salt, adapter }: PrefixDomain, text: Int32Array): boolean {
    const { owner: own, domain, text: start } = this.#parts;
    const isSame = own === owner && domain.tenant === tenant && domain.salt === salt && domain.adapter === adapter;
    return isSame && text.length > start.length && start.every((token, at) => token === text[at]);
  }

  /** Whether text of this domain is still the one that it names: the cache's namespace may have changed. @internal */
  isIn(domain: PrefixDomain): boolean {
    return this.#parts.domain.key === domain.key;
  }

  /** Blocks with the text from token `from` on; undefined where tiers no longer have all of it. @internal */
  blocksFrom(from: number): readonly StoredBlock[] | undefined {
    const blocks = this.#parts.blocks.filter(({ to }) => to > from);
    return blocks.every(({ tiers }) => tiers !== 0) ? blocks : undefined;
  }

  /** The start of the prompt that is stored. @internal */
  get text(): Int32Array {
    return this.#parts.text;
  }

  /** @internal */
  get rules(): ReadSelection {
    return this.#parts.rules;
  }
}

// The option `selection` of promotions and requests: meaning, range and default of each field, and how they are read.

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
  const { name, looksAt, select }: Partial<TokenSelector> = isObject ? value as Partial<TokenSelector> : {};
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
