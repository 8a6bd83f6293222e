// PlainAttention: what the kernels must give, in the most obvious way: every token's K and V in plain arrays, attention in
// double precision, one loop per axis. Values are those the cache's type has.

export interface AttentionShape {
  readonly queryHeads: number;
  readonly kvHeads: number;
  readonly dim: number;
  readonly valueDim: number;
  readonly scale: number;
}

/** One sequence of one layer. */
export class PlainAttention {
  readonly #shape: AttentionShape;
  /** Per token: [kvHead, dim]. */
  readonly keys: number[][] = [];
  readonly values: number[][] = [];

  constructor(shape: AttentionShape) {
    this.#shape = shape;
  }

  /** softmax(scale · q · Kᵀ) · V over the first `length` tokens; query [queryHead, dim] → [queryHead, valueDim]. */
  attend(query: readonly number[], length: number): number[] {
    const { queryHeads, kvHeads, dim, valueDim, scale } = this.#shape;
    const output: number[] = [];
    for (let head = 0; head < queryHeads; head += 1) {
      const kvHead = Math.floor(head / (queryHeads / kvHeads));
      const scores: number[] = [];
      for (let token = 0; token < length; token += 1) {
        let score = 0;
        for (let i = 0; i < dim; i += 1) score += query[head * dim + i]! * this.keys[token]![kvHead * dim + i]!;
        scores.push(score * scale);
      }
      const largest = Math.max(...scores);
      const weights = scores.map((score) => Math.exp(score - largest));
      const total = weights.reduce((sum, weight) => sum + weight, 0);
      for (let i = 0; i < valueDim; i += 1) {
        let sum = 0;
        for (let token = 0; token < length; token += 1) sum += weights[token]! * this.values[token]![kvHead * valueDim + i]!;
        output.push(sum / total);
      }
    }
    return output;
  }
}
