// Text that goes from the device to a tier in host memory and comes back (native/block_copier): whether every byte is right, and how
// fast, in both directions; from the second round on the tier's memory was written to before. Times by this machine's clock, from the
// release of a sequence until its text is stored, and of `promote`.

import { isSimulated } from './timing.mjs';

const rounds = 5;

/** Rows of { what, bytes, GB/s, … }, and how many tokens were wrong or did not come back. `report` gets all so far. */
export async function measureTierCopies(driver, { KvCache, hostTier }, report = () => {}) {
  const isSmall = isSimulated(driver);
  const tokens = isSmall ? 256 : 4096; // 512 MiB of a model like Llama 3 8B
  const model = isSmall ? { layers: 2, kvHeads: 2, headDim: 64, dtype: 'bfloat16' } : { layers: 32, kvHeads: 8, headDim: 128, dtype: 'bfloat16' };
  const bytes = tokens * model.layers * 2 * model.kvHeads * model.headDim * 2;
  const cache = new KvCache({
    work: 'awaited', driver, layout: 'per-layer', model, slots: 2, maxTokens: 2 * tokens, memoryBudgetBytes: 2 * bytes + 128 * driver.info.defaultPageBytes, headroomBytes: 0, readyBytes: 0,
    prefixCache: { modelId: 'gpu-check', tiers: [hostTier({ bytes: 1.5 * bytes })] },
  });
  const { prefixes, pool } = cache;
  const down = [];
  const up = [];
  let wrongTokens = 0;
  try {
    await prefixes.tiers.ready();
    for (let round = 1; round <= rounds; round += 1) {
      const text = Array.from({ length: tokens + 1 }, (_, at) => at === 0 ? round : at);
      compute(cache, text.slice(0, tokens), round);
      let begin = performance.now();
      await prefixes.tiers.settled();
      down.push(performance.now() - begin);
      const budgetBytes = pool.memoryBudgetBytes;
      pool.setBudget(pool.pageBytes); // nothing of it stays on the device
      pool.setBudget(budgetBytes);
      begin = performance.now();
      const { promotedTokens, end } = await prefixes.promote({ tokens: text });
      up.push(performance.now() - begin);
      const sequence = cache.acquire({ tokens: text });
      const came = Math.min(promotedTokens, sequence.cachedTokens);
      wrongTokens += tokens - came + cache.verifyStamp(sequence, 0, came, round);
      sequence.release();
      if (came < tokens) console.log(`Of ${tokens} tokens ${came} came back: ${end}`);
      report(rowsOf(bytes, down, up, wrongTokens));
    }
    return { table: rowsOf(bytes, down, up, wrongTokens), wrongTokens };
  } finally {
    await prefixes.tiers.close();
    cache.close();
  }
}

/** As an engine would, but for what it writes. */
function compute(cache, text, key) {
  const sequence = cache.acquire({ tokens: text });
  const batch = cache.createBatch();
  batch.add(sequence, text.length - sequence.cachedTokens);
  cache.prepare(batch);
  cache.stamp(sequence, 0, text.length, key);
  cache.commit(batch);
  sequence.release();
}

function rowsOf(bytes, down, up, wrongTokens) {
  return [['device to host memory', down], ['host memory to device', up]].map(([what, ms]) => ({
    what, bytes, 'GB/s': bytes / [...ms].sort((a, b) => a - b)[Math.floor(ms.length / 2)] / 1e6, 'first GB/s': bytes / ms[0] / 1e6, 'wrong tokens': wrongTokens,
  }));
}
