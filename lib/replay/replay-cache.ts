// What a replay needs of a KvCache, as types: so that batching and verification can be read, and tested, without one. The
// shipped KvCache, Batch and Sequence fit as they are.

export interface ReplaySequence {
  readonly slot: number;
  /** Tokens whose K and V are valid. */
  readonly length: number;
  /** How many of them came from the cache at `acquire`. */
  readonly cachedTokens: number;
  /** How they came; their sum. */
  readonly cachedBy: { readonly adoptedTokens: number; readonly aliasedTokens: number; readonly copiedTokens: number };
  /** The token that is computed next. */
  append(token: number): void;
  release(): void;
}

export interface ReplayBatch {
  clear(): void;
  /** `sequence` computes `tokens` more in the next pass. */
  add(sequence: ReplaySequence, tokens: number): void;
}

/** A prompt: its tokens, or where none are to be shared their number. */
export type ReplayPrompt =
  & { readonly reserve: 'prompt' }
  & ({ readonly tokens: Int32Array } | { readonly promptTokens: number });

export interface ReplayCache {
  acquire(prompt: ReplayPrompt): ReplaySequence;
  createBatch(capacity?: number): ReplayBatch;
  prepare(batch: ReplayBatch): void;
  commit(batch: ReplayBatch): void;
  stamp(sequence: ReplaySequence, fromToken: number, tokens: number, key: number): number;
  verifyStamp(sequence: ReplaySequence, fromToken: number, tokens: number, key: number): number;
}
