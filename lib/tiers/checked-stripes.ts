// CheckedStripes: a payload in memory from which single tokens are read. A stripe's own sum says nothing of a part of
// it, so the first read of a stripe checks all of it and keeps a sum for each chunk; later reads check the chunks that
// they touch.

import { native } from '../device/native.js';
import type { TierTokens, TierTokensGet } from './tier.js';

/** Bytes of a chunk: a few rows of most models. */
const chunkBytes = 4096;

export class CheckedStripes {
  readonly #payload: Uint8Array;
  readonly #sums: Uint32Array;
  readonly #stripeTokenBytes: readonly number[];
  readonly #starts: readonly number[];
  /** By stripe, sums of its chunks. */
  readonly #chunkSums: (Uint32Array | undefined)[] = [];

  /** @param sums Of the stripes. */
  constructor(payload: Uint8Array, sums: Uint32Array, stripeTokenBytes: readonly number[]) {
    const tokenBytes = stripeTokenBytes.reduce((sum, bytes) => sum + bytes, 0);
    const tokens = payload.length / tokenBytes;
    let start = 0;
    this.#payload = payload;
    this.#sums = sums;
    this.#stripeTokenBytes = stripeTokenBytes;
    this.#starts = [...stripeTokenBytes, 0].map((bytes) => {
      start += tokens * bytes;
      return start - tokens * bytes;
    });
  }

  /**
   * Copies rows of tokens into `into`, checked. A token or stripe that is not there is a miss, as is other room than
   * they need.
   */
  copyTokens(parts: readonly TierTokens[], into: Uint8Array): TierTokensGet {
    let [at, readBytes, chunks] = [0, 0, 0];
    for (const { stripe, tokens } of parts) {
      const rowBytes = this.#stripeTokenBytes[stripe] ?? 0;
      const bytes = this.#bytesOf(stripe);
      const end = at + tokens.length * rowBytes;
      const rows = bytes.length / rowBytes;
      if (!(rows > 0) || end > into.length || tokens.some((token) => token < 0 || token >= rows)) {
        return { isFound: false, reason: 'absent', readBytes, chunks };
      }
      const sums = this.#sumsOf(stripe, bytes);
      const read =
        sums === undefined ? -1 : native().copyRows(bytes, chunkBytes, sums, rowBytes, tokens, into.subarray(at, end));
      if (read < 0) return { isFound: false, reason: 'corrupt', readBytes, chunks };
      readBytes += Math.min(read * chunkBytes, bytes.length);
      chunks += read;
      at = end;
    }
    return at === into.length ? { isFound: true, readBytes, chunks }
      : { isFound: false, reason: 'absent', readBytes, chunks };
  }

  /** Whether every stripe is what was stored. */
  areIntact(): boolean {
    return this.#stripeTokenBytes.every((_, stripe) => this.#sumsOf(stripe, this.#bytesOf(stripe)) !== undefined);
  }

  #bytesOf(stripe: number): Uint8Array {
    return this.#payload.subarray(this.#starts[stripe] ?? 0, this.#starts[stripe + 1] ?? 0);
  }

  /** Undefined: the stripe is not what was stored. */
  #sumsOf(stripe: number, bytes: Uint8Array): Uint32Array | undefined {
    const known = this.#chunkSums[stripe];
    if (known !== undefined) return known;
    const sums = new Uint32Array(Math.ceil(bytes.length / chunkBytes));
    if (native().sumChunks(bytes, chunkBytes, sums) !== this.#sums[stripe]) return undefined;
    this.#chunkSums[stripe] = sums;
    return sums;
  }
}
