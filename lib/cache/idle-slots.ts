// IdleSlots: what the placement and reclaim policies look at. A view on the cache's own arrays: valid during the call only,
// never to be written. The first `count` entries of `slots` are the candidates; the other arrays are indexed by slot.

/** Slots that a placement or reclaim policy chooses from. The arrays must not be changed or kept. */
export interface IdleSlots {
  /** How many candidates there are. */
  count: number;
  /** The candidates: the first `count` entries. */
  readonly slots: Int32Array;
  /** Rows mapped in each slot. */
  readonly rows: Int32Array;
  /** Rows of each candidate that hold nothing anybody needs: all of a retired slot, the unused tail of an active one. */
  readonly surplusRows: Int32Array;
  /** 1 for candidates that a sequence uses: only their tail is surplus. */
  readonly isActive: Uint8Array;
  /** When each slot was released or acquired last: larger is later. */
  readonly lastUsed: Float64Array;
}
