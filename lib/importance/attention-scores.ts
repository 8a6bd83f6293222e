// Attention scores: how much the queries of new tokens look at each token of a text, by the keys of some heads. Pure.

/** Shapes of `attentionScores`. */
export interface ScoreShapes {
  /** Rows of queries: new tokens. */
  readonly rows: number;
  readonly queryHeads: number;
  /** KV heads of the layer: query heads h · group … read KV head h. */
  readonly kvHeads: number;
  /** KV heads in `keys`: the layer's first ones. */
  readonly keyHeads: number;
  readonly dim: number;
  readonly tokens: number;
  /** Factor of the products. */
  readonly scale: number;
}

/**
 * Of each KV head in `keys` ([token, key head, dim]) the mean over its query heads and all rows of `queries` ([row, query head, dim]) of
 * softmax(scale · q · K).
 */
export function attentionScores(queries: Float32Array, keys: Float32Array, shapes: ScoreShapes): Float32Array[] {
  const { rows, queryHeads, kvHeads, keyHeads, dim, tokens, scale } = shapes;
  const group = queryHeads / kvHeads;
  const products = new Float64Array(tokens);
  return Array.from({ length: keyHeads }, (_, head) => {
    const sums = new Float64Array(tokens);
    for (let row = 0; row < rows; row += 1) {
      for (let queryHead = head * group; queryHead < (head + 1) * group; queryHead += 1) {
        addSoftmax(sums, products, queries.subarray((row * queryHeads + queryHead) * dim, (row * queryHeads + queryHead + 1) * dim), keys, { head, keyHeads, scale });
      }
    }
    const count = rows * group;
    return Float32Array.from(sums, (sum) => sum / count);
  });
}

function addSoftmax(
  sums: Float64Array, products: Float64Array, query: Float32Array, keys: Float32Array, { head, keyHeads, scale }: Pick<ScoreShapes, 'keyHeads' | 'scale'> & { readonly head: number },
): void {
  const dim = query.length;
  const stride = keyHeads * dim;
  let most = -Infinity;
  for (let token = 0, at = head * dim; token < sums.length; token += 1, at += stride) {
    let product = 0;
    for (let index = 0; index < dim; index += 1) product += query[index]! * keys[at + index]!;
    products[token] = product *= scale;
    if (product > most) most = product;
  }
  let whole = 0;
  for (let token = 0; token < sums.length; token += 1) whole += products[token] = Math.exp(products[token]! - most);
  for (let token = 0; token < sums.length; token += 1) sums[token]! += products[token]! / whole;
}
