// EncoderItem: what an EncoderCache knows of one item. `queued`: it waits for room; `computing`: its encoder runs; `stored`: its rows are
// there. EncoderCache moves it from state to state, EncoderRoom counts its bytes; nothing here changes anything else.

import type { SideView } from '../layout/dtype-arrays.js';
import type { PrefixDomain } from '../prefix/domain.js';
import type { EncoderKind, ReadItemName } from './encoder-options.js';

export class EncoderItem {
  readonly key: string;
  readonly domain: PrefixDomain;
  readonly kind: EncoderKind;
  /** Arrival of the request that it was made for: its place among those that wait for room. */
  readonly number: number;
  state: 'queued' | 'computing' | 'stored' = 'queued';
  /** Rows, as far as known. */
  tokens: number | undefined;
  rows: SideView | undefined;
  /** Bytes counted within the budget: 0 where its size is not known yet, or is more than the whole budget. */
  countedBytes = 0;
  /** Whether its rows are more than the whole budget, and counted outside it. */
  isOutside = false;
  /** Holds that were not released. */
  holds = 0;
  /** Whether later requests may be given it. */
  isFindable = true;
  /** Ends the computation that runs; another object for each. */
  computation: AbortController | undefined;
  readonly #isMade = true;

  constructor({ key, domain, kind }: ReadItemName, number: number, tokens: number | undefined) {
    this.key = key;
    this.domain = domain;
    this.kind = kind;
    this.number = number;
    this.tokens = tokens;
  }

  /** Whether it is an EncoderItem, and no object that only has its prototype. */
  static isInstance(value: unknown): value is EncoderItem {
    return typeof value === 'object' && value !== null && #isMade in value;
  }

  /** Bytes of its rows; undefined where their number is not known yet. */
  get bytes(): number | undefined {
    return this.tokens === undefined ? undefined : this.tokens * this.kind.rowBytes;
  }
}
