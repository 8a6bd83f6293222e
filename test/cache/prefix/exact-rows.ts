// ExactRows: how tokens fill rows, from a layout's bytes.

import type { KvCache } from 'virtual-kv';

export class ExactRows {
  readonly #layout: KvCache['layout'];

  constructor(layout: KvCache['layout']) {
    this.#layout = layout;
  }

  pagesFor(tokens: number): number {
    return this.#layout.pagesFor(this.#layout.rowsFor(tokens));
  }

  /** Rows that so many tokens fill to the last byte. */
  wholeRows(tokens: number): number {
    const { commonTokenBytes, pageBytes } = this.#layout;
    return Math.floor((tokens * commonTokenBytes) / pageBytes);
  }

  /** The same where a row ends with a token: what comes behind a row that ends inside one is copied, from a row that must stay. */
  exactRows(tokens: number): number {
    const { commonTokenBytes, pageBytes } = this.#layout;
    let rows = this.wholeRows(tokens);
    while ((rows * pageBytes) % commonTokenBytes !== 0) rows -= 1;
    return rows;
  }

  /** Tokens of those rows. */
  exactTokens(tokens: number): number {
    return this.#layout.tokensIn(this.exactRows(tokens));
  }
}
