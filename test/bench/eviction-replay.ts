// Replays prompts through a prefix index with an eviction policy and without any memory: rows are numbers. One prompt after
// the other, nothing generated: what is measured is what the policy kept, and nothing else.

import type { EvictionPolicyFactory } from '#internal/prefix/eviction/eviction-policy.js';
import { sharedDomain } from '#internal/prefix/domain.js';
import { PrefixIndex } from '#internal/prefix/prefix-index.js';
import { rowArithmetic } from '#internal/layout/row-arithmetic.js';
import { mix32 } from '#internal/base/random.js';
import { HASH_BLOCK_TOKENS } from '#internal/replay/trace-request.js';

export interface EvictionReplay {
  /** What the prompts consist of. */
  readonly prompts: readonly Int32Array[];
  readonly policy: EvictionPolicyFactory;
  readonly capacityBlocks: number;
  /** Rows that a block of HASH_BLOCK_TOKENS tokens is made of: 1 (the default) replays each block as a single token. */
  readonly rowsPerBlock?: number;
}

/** Blocks found at the start of each prompt. */
export function evictionHits({ prompts, policy, capacityBlocks, rowsPerBlock = 1 }: EvictionReplay): Float64Array {
  const tokensPerBlock = rowsPerBlock === 1 ? 1 : HASH_BLOCK_TOKENS;
  const capacityRows = capacityBlocks * rowsPerBlock;
  const arithmetic = rowArithmetic({ tokenBytes: rowsPerBlock, pageBytes: tokensPerBlock });
  const index = new PrefixIndex({ arithmetic, policy, poolTokens: capacityBlocks * tokensPerBlock });
  const free = Array.from({ length: capacityRows }, (_, row) => row);
  const drain = (): void => {
    for (let at = 0; at < index.dropped.count; at += 1) free.push(index.dropped.row(at));
    index.dropped.clear();
  };
  return Float64Array.from(prompts, (prompt) => {
    const text = tokensPerBlock === 1 ? prompt : tokensOf(prompt);
    const rows = new Int32Array(arithmetic.rowsFor(text.length));
    const path = index.open(index.match(sharedDomain, text, text.length), { rows, isStored: true, level: 0 });
    const hitTokens = path.length;
    const first = arithmetic.wholeRows(hitTokens);
    const wanted = rows.length - first - free.length;
    if (wanted > 0) index.evict(wanted);
    drain();
    for (let row = first; row < rows.length; row += 1) rows[row] = free.pop()!;
    index.commit(path, text, text.length);
    index.release(path);
    drain();
    return hitTokens / tokensPerBlock;
  });
}

/** The tokens that blocks stand for, made from their ids. */
function tokensOf(blocks: Int32Array): Int32Array {
  const tokens = new Int32Array(blocks.length * HASH_BLOCK_TOKENS);
  return tokens.map((_, at) => mix32(blocks[Math.floor(at / HASH_BLOCK_TOKENS)]!, at % HASH_BLOCK_TOKENS));
}
