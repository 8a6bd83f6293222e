// RowArithmetic: how tokens of a sequence fall into rows. The prefix index counts in tokens and owns rows, and this is all
// it knows about memory. Pure; a row may hold a fraction of a token more than a whole number, or less than one token.

/** `KvCache` makes one from its layout. */
export interface RowArithmetic {
  /** One token and one row, in the largest unit that both are multiples of: T = rowUnits / tokenUnits tokens lie in a row. */
  readonly tokenUnits: number;
  readonly rowUnits: number;
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

function greatestCommonDivisor(a: number, b: number): number {
  return b === 0 ? a : greatestCommonDivisor(b, a % b);
}
