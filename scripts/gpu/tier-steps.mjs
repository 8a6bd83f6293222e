// Decoding steps of an engine, alone and while a text goes from the same device to a tier in host memory: what copies of tiers cost the
// work beside them. Each step attends in every layer on a stream of its own, and is awaited. Both kinds take turns, in rounds.

import { fillRandomly, isSimulated } from './timing.mjs';

const rounds = 5;
const stepsAlone = 40;
const mostStepsBeside = 400;

/** Rows of { what, steps, µs, % of a step alone }. */
export async function measureTierSteps(driver, api) {
  const scene = openScene(driver, api);
  const alone = [];
  const beside = [];
  try {
    await scene.ready();
    for (let round = 0; round < rounds; round += 1) {
      for (let step = 0; step < stepsAlone; step += 1) alone.push(await scene.stepUs());
      const settled = scene.storeText(round + 1);
      for (let step = 0; step < mostStepsBeside && !settled.isOver; step += 1) beside.push(await scene.stepUs());
      await settled.end;
    }
  } finally {
    await scene.close();
  }
  const aloneUs = median(alone.slice(stepsAlone / 2)); // the first ones load
  const besideUs = median(beside);
  return [
    { what: 'decoding step, alone', steps: alone.length, us: aloneUs },
    { what: 'decoding step, a text going to host memory', steps: beside.length, us: besideUs, '% of a step alone': (100 * besideUs) / aloneUs },
  ];
}

const median = (values) => [...values].sort((a, b) => a - b)[Math.floor(values.length / 2)];

/** Full sequences that decode, and room for a text that comes and goes. */
function openScene(driver, { DeviceMemory, hostTier, Kernels, KvCache }) {
  const isSmall = isSimulated(driver);
  const model = isSmall ? { layers: 2, kvHeads: 2, headDim: 64, dtype: 'bfloat16' } : { layers: 32, kvHeads: 8, headDim: 128, dtype: 'bfloat16' };
  const [sequences, tokens, textTokens] = isSmall ? [2, 64, 256] : [32, 2048, 4096]; // a block of a tier has 256 tokens
  const tokenBytes = model.layers * 2 * model.kvHeads * model.headDim * 2;
  const cache = new KvCache({
    work: 'awaited', driver, layout: 'per-layer', model, slots: sequences + 2, maxTokens: 2 * textTokens, headroomBytes: 0, readyBytes: 0,
    memoryBudgetBytes: (sequences * tokens + 2 * textTokens) * tokenBytes + (isSmall ? 64 : 512) * driver.info.defaultPageBytes,
    prefixCache: { modelId: 'gpu-check', tiers: [hostTier({ bytes: 1.5 * textTokens * tokenBytes })] },
  });
  const stream = driver.acquireStream();
  const kernels = new Kernels({ cache, queryHeads: 4 * model.kvHeads, rowDtype: 'bfloat16', stream });
  const rows = new DeviceMemory({ driver, bytes: 2 * sequences * 4 * model.kvHeads * model.headDim * 2 });
  fillRandomly(driver, rows.address, rows.bytes, 'bfloat16');
  const output = rows.address + BigInt(rows.bytes / 2);
  const decoding = Array.from({ length: sequences }, () => cache.acquire());
  const batch = cache.createBatch();
  const grow = (all, count) => {
    batch.clear();
    for (const sequence of all) batch.add(sequence, count);
    cache.prepare(batch);
    cache.commit(batch);
  };
  grow(decoding, tokens);
  const spans = {
    slots: Int32Array.from(decoding, ({ slot }) => slot), lengths: new Int32Array(sequences).fill(tokens - 1),
    tokens: new Int32Array(sequences).fill(1),
  };
  return {
    ready: () => cache.prefixes.tiers.ready(),
    async stepUs() {
      const begin = process.hrtime.bigint();
      kernels.step(() => {
        for (let layer = 0; layer < model.layers; layer += 1) kernels.decodeAttention(layer, spans, rows.address, output);
      });
      await driver.synchronize(stream);
      return Number(process.hrtime.bigint() - begin) / 1e3;
    },
    /** Its last sequence ends, and the tier takes it. */
    storeText(key) {
      const sequence = cache.acquire({ tokens: Array.from({ length: textTokens }, (_, at) => at === 0 ? key : at) });
      batch.clear();
      batch.add(sequence, textTokens - sequence.cachedTokens);
      cache.prepare(batch);
      cache.stamp(sequence, 0, textTokens, key);
      cache.commit(batch);
      sequence.release();
      const settled = { isOver: false, end: undefined };
      settled.end = cache.prefixes.tiers.settled().then(() => { settled.isOver = true; });
      return settled;
    },
    async close() {
      for (const sequence of decoding) sequence.release();
      await cache.prefixes.tiers.close();
      kernels.close();
      rows.close();
      cache.close();
    },
  };
}
