// SelectedText: stored text of a prompt that a sequence may be given in part: what `promote` with `selection` resolves
// with, for `acquire`. It names text and holds no memory: where tiers lose the text meanwhile, it is computed.

import type { PrefixDomain } from '../prefix/domain.js';
import type { StoredBlock } from '../tiers/stored-texts.js';
import { notConstructible } from '../base/options.js';
import type { ReadSelection } from './selection-options.js';

export interface SelectedTextParts {
  /** The cache's, which alone takes it. */
  readonly owner: object;
  readonly domain: PrefixDomain;
  readonly text: Int32Array;
  readonly blocks: readonly StoredBlock[];
  readonly rules: ReadSelection;
}

const made = new WeakSet<object>();

/** Stored text that a sequence may be given in part: for `KvCache.acquire`. */
export class SelectedText {
  /** Tokens from the prompt's start that a sequence has once it is acquired with this, in part. */
  readonly tokens: number;
  /** Share of them that each layer gets. */
  readonly ratio: number;
  readonly #parts: SelectedTextParts;

  /** @internal Use `prefixes.promote`. */
  constructor(parts: SelectedTextParts) {
    if (!made.has(parts)) throw notConstructible('SelectedText', 'prefixes.promote');
    this.#parts = parts;
    this.tokens = parts.text.length;
    this.ratio = parts.rules.ratio;
  }

  /** @internal */
  static make(parts: SelectedTextParts): SelectedText {
    made.add(parts);
    return new SelectedText(parts);
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
