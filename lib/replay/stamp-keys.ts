// StampKeys: under which keys the tokens of a sequence are stamped. Where prefixes are shared, a key belongs to the text, so
// that whoever finds a row verifies what another wrote; else to the admission, so that what an earlier one left is never
// taken for right.

export interface StampKeys {
  keyAt(token: number): number;
  /** The first token behind `token` that has another key, or may have one. */
  runEnd(token: number): number;
  /**
   * The first token from `token` on that begins a run of text or ends a whole one. The same for all who say the same up to
   * and with it.
   */
  nextEdge(token: number): number;
}

/** One key for all of a sequence. */
export function oneKey(key: number): StampKeys {
  return { keyAt: () => key, runEnd: () => Infinity, nextEdge: () => Infinity };
}
