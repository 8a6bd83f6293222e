// Replays requests through a prefix index with an eviction policy and without any memory: rows are numbers. One request after
// the other, each with its answer: what is measured is what the policy kept, and nothing else.

import type { EvictionPolicyFactory } from '#internal/prefix/eviction/eviction-policy.js';
import { sharedDomain } from '#internal/prefix/domain.js';
import { PrefixIndex } from '#internal/prefix/prefix-index.js';
import { rowArithmetic } from '#internal/base/row-arithmetic.js';
import { HASH_BLOCK_TOKENS } from '#internal/replay/trace-request.js';

export interface EvictionReplay {
  /** The blocks of HASH_BLOCK_TOKENS tokens that the prompts consist of. */
  readonly prompts: readonly Int32Array[];
  /** Tokens of each prompt, the last block of which need not be whole. Default: all blocks are. */
  readonly promptTokens?: readonly number[] | undefined;
  /** Tokens of each answer, which no other request has. Default: nothing is generated. */
  readonly answerTokens?: readonly number[] | undefined;
  readonly policy: EvictionPolicyFactory;
  readonly capacityBlocks: number;
  /** Rows that a block is made of. Default 1. */
  readonly rowsPerBlock?: number;
}

/** Tokens found at the start of each prompt. */
export function evictionHits({
  prompts, promptTokens, answerTokens, policy, capacityBlocks, rowsPerBlock = 1,
}: EvictionReplay): Float64Array {
  const capacityRows = capacityBlocks * rowsPerBlock;
  const arithmetic = rowArithmetic({ tokenBytes: rowsPerBlock, pageBytes: HASH_BLOCK_TOKENS });
  const index = new PrefixIndex({ arithmetic, policy, poolTokens: capacityBlocks * HASH_BLOCK_TOKENS });
  const free = Array.from({ length: capacityRows }, (_, row) => row);
  const drain = (): void => {
    for (let at = 0; at < index.dropped.count; at += 1) free.push(index.dropped.row(at));
    index.dropped.clear();
  };
  return Float64Array.from(prompts, (blocks, at) => {
    const length = promptTokens?.[at] ?? blocks.length * HASH_BLOCK_TOKENS;
    const text = textOf(blocks, length, answerTokens?.[at] ?? 0, at);
    const rows = new Int32Array(arithmetic.rowsFor(text.length));
    const path = index.open(index.match(sharedDomain, text, length), { rows, isStored: true, level: 0, promptTokens: length });
    const hitTokens = path.length;
    const first = arithmetic.wholeRows(hitTokens);
    const wanted = rows.length - first - free.length;
    if (wanted > 0) index.evict(wanted);
    drain();
    for (let row = first; row < rows.length; row += 1) rows[row] = free.pop()!;
    index.commit(path, text, text.length);
    index.release(path);
    drain();
    return hitTokens;
  });
}

/** A prompt and its answer: each token of a block is the block's id, and each of the answer says which request it is of. */
function textOf(blocks: Int32Array, promptTokens: number, answerTokens: number, request: number): Int32Array {
  const text = new Int32Array(promptTokens + answerTokens).fill(-1 - request, promptTokens);
  blocks.forEach((id, at) => text.fill(id, at * HASH_BLOCK_TOKENS, Math.min((at + 1) * HASH_BLOCK_TOKENS, promptTokens)));
  return text;
}
