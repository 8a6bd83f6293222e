// SelectionTotals: what selections came to, of one sequence or of all of a cache: for reports and metrics.

/** What selections came to. */
export interface SelectionCounts {
  /** Sequences that hold selected tokens. */
  readonly sequences: number;
  /**
   * Of these, sequences whose text tiers no longer had, or did not give in time, while it was loaded: they were to be
   * computed anew.
   */
  readonly lostSequences: number;
  /** Layers whose tokens were selected. */
  readonly layers: number;
  /** Of these, layers that got all tokens, since their probe heads did not agree. */
  readonly fallBacks: number;
  /** Tokens that there were to choose from, summed over layers. */
  readonly tokens: number;
  /** Tokens that were loaded, summed over layers. */
  readonly selectedTokens: number;
  /** Bytes that were read from tiers, those that selectors looked at included. */
  readonly readBytes: number;
  /** Ranges with a checksum of their own that were read; of blocks that were read whole none are counted. */
  readonly chunks: number;
}

export class SelectionTotals implements SelectionCounts {
  sequences = 0;
  lostSequences = 0;
  layers = 0;
  fallBacks = 0;
  tokens = 0;
  selectedTokens = 0;
  readBytes = 0;
  chunks = 0;
  readonly #whole: SelectionTotals | undefined;

  /** @param whole What is counted here is counted there too. */
  constructor(whole?: SelectionTotals) {
    this.#whole = whole;
  }

  add(counts: Partial<SelectionCounts>): void {
    for (const [name, count] of Object.entries(counts) as [keyof SelectionCounts, number][]) this[name] += count;
    this.#whole?.add(counts);
  }

  /** As they are now. */
  copy(): SelectionCounts {
    return { ...this };
  }
}
