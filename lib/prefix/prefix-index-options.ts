// PrefixIndexOptions: what a prefix index is made with. Only the arithmetic is required.

import type { EvictionPolicyFactory } from './eviction/eviction-policy.js';
import type { RowArithmetic } from '../layout/row-arithmetic.js';
import type { StoredBlocksOptions } from './stored-blocks.js';
import type { TextListener } from './text-listener.js';

export interface PrefixIndexOptions {
  readonly arithmetic: RowArithmetic;
  /** Rows of the pool at most. Default: no bound; 0: nothing is kept after release. */
  readonly poolRows?: number | undefined;
  /** Rows of the pool that one tenant has at most. Default: no bound. */
  readonly tenantRows?: number | undefined;
  /** Default: `lru()`. */
  readonly policy?: EvictionPolicyFactory | undefined;
  /**
   * Chooses the hashes inside, any safe integer. Nothing but the time that calls take depends on it; a cache that strangers send
   * tokens to needs one that they cannot guess. Default 0.
   */
  readonly hashSeed?: number | undefined;
  /** Bits of hashes that count, 1 … 32 (the default): tests truncate them to force collisions. */
  readonly hashBits?: number | undefined;
  /** Tokens that the pool can hold, for policies that size themselves. Default: what `poolRows` hold. */
  readonly poolTokens?: number | undefined;
  /** Values that are kept at ends of texts at most (`keepValue`). Default 64. */
  readonly endValues?: number | undefined;
  /** Places of which it is remembered when and why text was cut off there (`explain`), at most. Default 4,096. */
  readonly rememberedCuts?: number | undefined;
  /** A clock in milliseconds, for `explain`. Default: always 0. */
  readonly now?: (() => number) | undefined;
  /** Keep account of blocks by their keys (`index.blocks`). Default: not. */
  readonly blocks?: StoredBlocksOptions | undefined;
  /** Hear what text comes and goes. */
  readonly listeners?: readonly TextListener[] | undefined;
}
