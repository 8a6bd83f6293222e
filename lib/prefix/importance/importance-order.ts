// The order in which a block's tokens are best stored, and what an order costs to read. Pure.

/** Tokens by importance, the highest first, equals in the order of the text: `storedToLogical` of a block that is reordered. */
export function orderByImportance(means: Float32Array): Int32Array {
  return Int32Array.from(means, (_, token) => token).sort((a, b) => means[b]! - means[a]! || a - b);
}

/** Of each token, its row. */
export function rowsOfOrder(storedToLogical: Int32Array): Int32Array {
  const rows = new Int32Array(storedToLogical.length);
  storedToLogical.forEach((token, row) => { rows[token] = row; });
  return rows;
}

/** Chunks of `chunkTokens` rows that hold the tokens. `rows`: of each token; undefined: in the order of the text. */
export function chunksHolding(tokens: Int32Array, rows: Int32Array | undefined, chunkTokens: number): number {
  const chunks = new Set<number>();
  for (const token of tokens) chunks.add(Math.floor((rows?.[token] ?? token) / chunkTokens));
  return chunks.size;
}
