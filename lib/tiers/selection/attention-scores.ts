// Attention scores: how much the queries of new tokens look at each token of a text, by the keys of some heads. Pure.
//
// Four queries at a time pass over a head's keys, which are copied together first: 2 to 3 times as fast as one query
// after the other, and each product is summed in the same order.

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

/** Queries that pass over the keys together. */
const together = 4;

/**
 * Of each KV head in `keys` ([token, key head, dim]) the mean over its query heads and all rows of `queries` ([row,
 * query head, dim]) of softmax(scale · q · K).
 */
export function attentionScores(queries: Float32Array, keys: Float32Array, shapes: ScoreShapes): Float32Array[] {
  const { rows, queryHeads, kvHeads, keyHeads, dim, tokens, scale } = shapes;
  const group = queryHeads / kvHeads;
  const count = rows * group;
  const own = new Float64Array(tokens * dim);
  const four = new Float64Array(together * dim);
  const products = Array.from({ length: together }, () => new Float64Array(tokens));
  return Array.from({ length: keyHeads }, (_, head) => {
    copyHead(keys, head * dim, keyHeads * dim, dim, own);
    const sums = new Float64Array(tokens);
    for (let first = 0; first < count; first += together) {
      const taken = Math.min(together, count - first);
      for (let query = 0; query < taken; query += 1) {
        const row = Math.floor((first + query) / group);
        const at = (row * queryHeads + head * group + ((first + query) % group)) * dim;
        for (let index = 0; index < dim; index += 1) four[query * dim + index] = queries[at + index]!;
      }
      multiplyFour(four, own, dim, scale, products);
      for (let query = 0; query < taken; query += 1) addSoftmax(sums, products[query]!);
    }
    return Float32Array.from(sums, (sum) => sum / count);
  });
}

/** own = one head's keys, [token, dim]. */
function copyHead(keys: Float32Array, start: number, stride: number, dim: number, own: Float64Array): void {
  for (let to = 0, from = start; to < own.length; from += stride) {
    for (let index = 0; index < dim; index += 1) own[to++] = keys[from + index]!;
  }
}

/** products[query][token] = scale · query · key. */
function multiplyFour(
  queries: Float64Array, keys: Float64Array, dim: number, scale: number, products: readonly Float64Array[],
): void {
  const [first, second, third, fourth] = products as [Float64Array, Float64Array, Float64Array, Float64Array];
  const [two, three] = [2 * dim, 3 * dim];
  for (let token = 0, at = 0; token < first.length; token += 1) {
    let a = 0;
    let b = 0;
    let c = 0;
    let d = 0;
    for (let index = 0; index < dim; index += 1, at += 1) {
      const key = keys[at]!;
      a += queries[index]! * key;
      b += queries[dim + index]! * key;
      c += queries[two + index]! * key;
      d += queries[three + index]! * key;
    }
    first[token] = a * scale;
    second[token] = b * scale;
    third[token] = c * scale;
    fourth[token] = d * scale;
  }
}

/** sums += softmax(products). */
function addSoftmax(sums: Float64Array, products: Float64Array): void {
  let most = -Infinity;
  for (let token = 0; token < sums.length; token += 1) if (products[token]! > most) most = products[token]!;
  let whole = 0;
  for (let token = 0; token < sums.length; token += 1) whole += products[token] = Math.exp(products[token]! - most);
  for (let token = 0; token < sums.length; token += 1) sums[token]! += products[token]! / whole;
}
