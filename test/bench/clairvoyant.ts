// Clairvoyant: the hit rate of a cache of blocks that knows all requests to come and keeps what is needed soonest (Belady
// 1966), to compare eviction policies with. It finds the blocks a prompt starts with, then takes in all its blocks, as the
// others do; a block is needed whenever one behind it is, so what it keeps is closed under prefixes.

import { BlockQueue } from './block-queue.js';

/** Blocks found at the start of each prompt. */
export function clairvoyantHits(prompts: readonly Int32Array[], capacityBlocks: number): Int32Array {
  const nextUses = nextUsesOf(prompts);
  const cached = new Map<number, number>();
  const queue = new BlockQueue();
  return Int32Array.from(prompts, (prompt, at) => {
    const missing = prompt.findIndex((block) => !cached.has(block));
    prompt.forEach((block, index) => {
      const nextUse = nextUses[at]![index]!;
      cached.set(block, nextUse);
      queue.push(block, nextUse);
    });
    while (cached.size > capacityBlocks) {
      const { block, nextUse } = queue.pop();
      if (cached.get(block) === nextUse) cached.delete(block); // else it was used since, and is in the queue again
    }
    return missing < 0 ? prompt.length : missing;
  });
}

/** For each block of each prompt the number of the next prompt that has it; Infinity: none. */
function nextUsesOf(prompts: readonly Int32Array[]): Float64Array[] {
  const next = new Map<number, number>();
  const uses: Float64Array[] = [];
  for (let at = prompts.length - 1; at >= 0; at -= 1) {
    uses[at] = Float64Array.from(prompts[at]!, (block) => next.get(block) ?? Infinity);
    for (const block of prompts[at]!) next.set(block, at);
  }
  return uses;
}
