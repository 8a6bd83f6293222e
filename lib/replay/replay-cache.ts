// What a replay needs of a KvCache, as types: so that batching and verification can be read, and tested, without one. The
// shipped KvCache, Batch and Sequence fit as they are.

export interface ReplaySequence {
  readonly slot: number;
  /** Tokens whose K and V are valid. */
  readonly length: number;
  /** How many of them came from the cache at `acquire`. */
  readonly cachedTokens: number;
  release(): void;
}

export interface ReplayBatch {
  clear(): void;
  /** `sequence` computes `tokens` more in the next pass. */
  add(sequence: ReplaySequence, tokens: number): void;
}

export interface ReplayCache {
  acquire(request: { readonly promptTokens: number; readonly reserve: 'prompt' }): ReplaySequence;
  createBatch(capacity?: number): ReplayBatch;
  prepare(batch: ReplayBatch): void;
  commit(batch: ReplayBatch): void;
  stamp(sequence: ReplaySequence, fromToken: number, tokens: number, key: number): number;
  verifyStamp(sequence: ReplaySequence, fromToken: number, tokens: number, key: number): number;
}
