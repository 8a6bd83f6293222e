// GivenRows: what a model is given beside its tokens: rows of an image, or what the stage before has computed. A request's `input` is a
// list of them.

/** Rows [token, width] for the tokens from `at` on. */
export interface GivenRows {
  /** Token of the prompt, from 0. */
  readonly at: number;
  /** [token, hidden size], in place of the tokens' embeddings. */
  readonly rows: Float32Array;
}

/** Those of a sequence in a pass. */
export function givenTo(inputs: readonly unknown[] | undefined, index: number): readonly GivenRows[] {
  return (inputs?.[index] ?? []) as readonly GivenRows[];
}
