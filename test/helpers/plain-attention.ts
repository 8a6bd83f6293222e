// PlainAttention: what the kernels must give, in the most obvious way: every token's K and V in plain arrays, attention in
// double precision, one loop per axis. Values are those the cache's type has.

export interface AttentionShape {
  readonly queryHeads: number;
  readonly kvHeads: number;
  readonly dim: number;
  readonly valueDim: number;
  readonly scale: number;
}

/** What a layer's attention does beyond that; see AttentionRules. */
export interface PlainRules {
  readonly windowTokens?: number;
  readonly chunkTokens?: number;
  readonly softcap?: number;
  /** [queryHead] */
  readonly sinks?: readonly number[];
}

/** One sequence of one layer. */
export class PlainAttention {
  readonly #shape: AttentionShape;
  readonly #rules: PlainRules;
  /** Per token: [kvHead, dim]. */
  readonly keys: number[][] = [];
  readonly values: number[][] = [];

  constructor(shape: AttentionShape, rules: PlainRules = {}) {
    this.#shape = shape;
    this.#rules = rules;
  }

  /** softmax(scale · q · Kᵀ) · V over the first `length` tokens; query [queryHead, dim] → [queryHead, valueDim]. */
  attend(query: readonly number[], length: number): number[] {
    const { queryHeads, kvHeads, dim, valueDim, scale } = this.#shape;
    const { windowTokens = Infinity, chunkTokens = Infinity, softcap, sinks } = this.#rules;
    const first = Math.max(0, length - windowTokens, chunkTokens === Infinity ? 0 : length - 1 - (length - 1) % chunkTokens);
    const output: number[] = [];
    for (let head = 0; head < queryHeads; head += 1) {
      const kvHead = Math.floor(head / (queryHeads / kvHeads));
      const scores: number[] = [];
      for (let token = first; token < length; token += 1) {
        let score = 0;
        for (let i = 0; i < dim; i += 1) score += query[head * dim + i]! * this.keys[token]![kvHead * dim + i]!;
        scores.push(softcap === undefined ? score * scale : softcap * Math.tanh(score * scale / softcap));
      }
      if (sinks !== undefined) scores.push(sinks[head]!);
      const largest = Math.max(...scores);
      const weights = scores.map((score) => Math.exp(score - largest));
      const total = weights.reduce((sum, weight) => sum + weight, 0);
      for (let i = 0; i < valueDim; i += 1) {
        let sum = 0;
        for (let token = first; token < length; token += 1) sum += weights[token - first]! * this.values[token]![kvHead * valueDim + i]!;
        output.push(sum / total);
      }
    }
    return output;
  }
}
