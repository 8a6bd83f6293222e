// RowArithmetic: converts between tokens and rows of a sequence. It is all that the prefix index knows about memory. Pure; T, the
// tokens in a row, may be a fraction, also below 1.

/** `KvCache` makes one from its layout; any object with these results will do. */
export interface RowArithmetic {
  /** Rows that the first `tokens` tokens of a sequence touch: ⌈tokens / T⌉. */
  rowsFor(tokens: number): number;
  /** Rows that the first `tokens` tokens fill completely: ⌊tokens / T⌋. */
  wholeRows(tokens: number): number;
  /** Tokens that lie completely in the first `rows` rows: ⌊rows · T⌋. */
  tokensIn(rows: number): number;
}

export interface RowShape {
  /** Bytes of one token in the reservation that sets the pace (`layout.maxTokenBytes`). */
  readonly tokenBytes: number;
  /** Bytes of a page (`layout.pageBytes`). */
  readonly pageBytes: number;
}

/** Arithmetic for rows of T = `pageBytes / tokenBytes` tokens, both positive integers. Rounds only the results. */
export function rowArithmetic({ tokenBytes, pageBytes }: RowShape): RowArithmetic {
  const divisor = greatestCommonDivisor(tokenBytes, pageBytes); // keeps the products below 2⁵³
  const token = tokenBytes / divisor;
  const page = pageBytes / divisor;
  return {
    rowsFor: (tokens) => Math.ceil((tokens * token) / page),
    wholeRows: (tokens) => Math.floor((tokens * token) / page),
    tokensIn: (rows) => Math.floor((rows * page) / token),
  };
}

export function greatestCommonDivisor(a: number, b: number): number {
  return b === 0 ? a : greatestCommonDivisor(b, a % b);
}
