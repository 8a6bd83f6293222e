// Prompt: what a request says that may be found in the prefix cache, once its options have been read; and CachedBy: how much of
// it was. Types only: who reads a prompt (Prefixes) and who finds a place for it (Admission) agree here.

import type { PrefixDomain } from '../prefix/domain.js';

/** A prompt whose prefix may be cached. */
export interface Prompt {
  readonly domain: PrefixDomain;
  readonly text: Int32Array;
  readonly canRead: boolean;
  readonly canWrite: boolean;
  readonly priority: number;
}

/** Tokens that came from the cache, by how: `adopted` cost nothing, `aliased` a mapping per row, `copied` their bytes. */
export interface CachedBy {
  /** Tokens that came with an idle slot that held them. */
  readonly adoptedTokens: number;
  /** Tokens whose rows were mapped under the slot. */
  readonly aliasedTokens: number;
  /** Tokens that were copied. */
  readonly copiedTokens: number;
}
