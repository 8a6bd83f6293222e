// RowArithmetic: converts between tokens and rows of a sequence. It is all that the prefix index knows about memory.
// Pure; T, the tokens in a row, may be a fraction, also below 1.

/** `KvCache` makes one from its layout. */
export interface RowArithmetic {
  /**
   * One token and one row, in the largest unit that both are multiples of: T = rowUnits / tokenUnits tokens lie in a
   * row.
   */
  readonly tokenUnits: number;
  readonly rowUnits: number;
  /** Rows that the first `tokens` tokens of a sequence touch: ⌈tokens / T⌉. */
  rowsFor(tokens: number): number;
  /** Rows that the first `tokens` tokens fill completely: ⌊tokens / T⌋. */
  wholeRows(tokens: number): number;
  /** Tokens that lie completely in the first `rows` rows: ⌊rows · T⌋. */
  tokensIn(rows: number): number;
}

export interface RowShape {
  /** Bytes of one token, as they set the pace of rows (`layout.commonTokenBytes`). */
  readonly tokenBytes: number;
  /** Bytes of a page (`layout.pageBytes`). */
  readonly pageBytes: number;
}

/** Arithmetic for rows of T = `pageBytes / tokenBytes` tokens, both positive integers. Rounds only the results. */
export function rowArithmetic({ tokenBytes, pageBytes }: RowShape): RowArithmetic {
  const divisor = greatestCommonDivisor(tokenBytes, pageBytes); // keeps the products below 2⁵³
  const tokenUnits = tokenBytes / divisor;
  const rowUnits = pageBytes / divisor;
  return {
    tokenUnits,
    rowUnits,
    rowsFor: (tokens) => Math.ceil((tokens * tokenUnits) / rowUnits),
    wholeRows: (tokens) => Math.floor((tokens * tokenUnits) / rowUnits),
    tokensIn: (rows) => Math.floor((rows * rowUnits) / tokenUnits),
  };
}

export function greatestCommonDivisor(a: number, b: number): number {
  return b === 0 ? a : greatestCommonDivisor(b, a % b);
}
