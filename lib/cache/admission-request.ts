// What a sequence asks for when it wants a slot, and what it gets. Types only.

import type { PrefixDomain } from '../prefix/domain.js';

/** A prompt whose prefix may be cached. */
export interface Prompt {
  readonly domain: PrefixDomain;
  readonly text: Int32Array;
  readonly canRead: boolean;
  readonly canWrite: boolean;
  readonly priority: number;
}

/**
 * Tokens that came from the cache, by how: `adopted` cost nothing, `aliased` a mapping per row, `copied` their bytes.
 */
export interface CachedBy {
  /** Tokens that came with an idle slot that held them. */
  readonly adoptedTokens: number;
  /** Tokens whose rows were mapped under the slot. */
  readonly aliasedTokens: number;
  /** Tokens that were copied. */
  readonly copiedTokens: number;
}

export interface AdmissionRequest {
  readonly promptTokens: number;
  /** Whether pages for all of them are set aside. */
  readonly isEarmarked: boolean;
  /** Number of the tenant, for scrubbing. */
  readonly tenant: bigint;
  readonly prompt: Prompt | undefined;
  /** Side tensors that the sequence carries, as bits. */
  readonly needs: number;
  /** On which the sequence's work will be queued, if that was said. */
  readonly stream: bigint | undefined;
  /** Whether the cache itself asks, to move K and V: counted apart, and no use of the text. */
  readonly isTransfer: boolean;
}

export interface Admitted {
  readonly slot: number;
  readonly cachedTokens: number;
  readonly cachedBy: CachedBy;
  /**
   * Tokens of the prompt, from its start, that running sequences have computed or are computing; 0 if no more than
   * cached ones.
   */
  readonly pendingTokens: number;
  /** What was kept at the end of the prompt; only when all of it is cached. */
  readonly keptValue: unknown;
}
