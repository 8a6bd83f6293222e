// HeldText: text that tiers brought for a request that has no slot yet: a transfer holds it, so that it is not evicted.
// For want of pages it ends as all transfers do; then the text is cached like any other.

import type { PrefixDomain } from '../prefix/domain.js';
import type { Transfer, Transfers } from './transfers.js';

export class HeldText {
  readonly #transfers: Transfers;
  readonly #domain: PrefixDomain;
  readonly #text: Int32Array;
  #transfer: Transfer | undefined;

  constructor(transfers: Transfers, domain: PrefixDomain, text: Int32Array) {
    this.#transfers = transfers;
    this.#domain = domain;
    this.#text = text;
    this.again();
  }

  /** Holds what the device has of it, where a slot is free. Idempotent. */
  again(): void {
    if (this.#transfer?.isOver === false) return;
    this.#transfer = this.#transfers.hold({ domain: this.#domain, text: this.#text, priority: 0 });
  }

  /** Lets go of it. Idempotent. */
  end(): void {
    if (this.#transfer !== undefined) this.#transfers.close(this.#transfer);
    this.#transfer = undefined;
  }
}
