// RowArithmetic: how tokens of a sequence fall into rows. The prefix index counts in tokens and owns rows, and this is all
// it knows about memory. Pure; a row may hold a fraction of a token more than a whole number, or less than one token.

/** `KvCache` makes one from its layout; any object that keeps these promises will do. */
export interface RowArithmetic {
  /** Rows that the first `tokens` tokens of a sequence touch: ⌈tokens / T⌉. */
  rowsFor(tokens: number): number;
  /** Rows that the first `tokens` tokens fill to the last byte, so that nothing else is in them: ⌊tokens / T⌋. */
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

/** Rows of `pageBytes / tokenBytes` tokens. Both are positive integers; nothing is rounded but the answers. */
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

function greatestCommonDivisor(a: number, b: number): number {
  return b === 0 ? a : greatestCommonDivisor(b, a % b);
}
