// GroupArithmetic: tokens in groups of rows, from a layout's bytes.

import type { KvCache } from 'virtual-kv';

export class GroupArithmetic {
  readonly #layout: KvCache['layout'];

  constructor(layout: KvCache['layout']) {
    this.#layout = layout;
  }

  pagesFor(tokens: number): number {
    return this.#layout.pagesFor(this.#layout.rowsFor(tokens));
  }

  /** Groups that so many tokens fill to the last byte. */
  wholeGroups(tokens: number): number {
    const { maxTokenBytes, pageBytes, groupRows } = this.#layout;
    return Math.floor((tokens * maxTokenBytes) / (pageBytes * groupRows));
  }

  /** The same where a group ends with a token: what comes behind a row that ends inside one is copied, from a row that must stay. */
  exactGroups(tokens: number): number {
    const { maxTokenBytes, pageBytes, groupRows } = this.#layout;
    let groups = this.wholeGroups(tokens);
    while ((groups * pageBytes * groupRows) % maxTokenBytes !== 0) groups -= 1;
    return groups;
  }

  /** Tokens of those groups. */
  exactTokens(tokens: number): number {
    return this.#layout.tokensIn(this.exactGroups(tokens) * this.#layout.groupRows);
  }
}
