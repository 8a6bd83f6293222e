// Measures the cost of growth to an engine: sequences are prefilled in chunks, with forward passes of about 10 ms, once mapping on
// demand and once ahead by the mapper; on an idle device and during a chain of fills on a stream. The passes are timed
// too, to see whether mapping slows running work.

import { percentiles, timeUs } from './call-costs.mjs';

const PASS_MS = 10;
const STEPS = 200;
const TOKENS_PER_STEP = 256;
const SEQUENCES = 4;
/** A row of a model with 32 layers is 64 maps and as many SetAccess per layer, and one of each fused. */
const scenes = ['per-layer', 'fused'].flatMap((layout) => ['idle', 'busy'].flatMap((device) => ['on demand', 'ahead'].map(
  (mapping) => [device, mapping, layout],
)));
const ROOMY_BYTES = 64 * 2 ** 30;

/** Rows of { layout, mapping, device, prepare…, growing steps…, pass…, foregroundMaps, backgroundMaps }. */
export async function measureGrowth(driver, { KvCache, ahead, onDemand, report = () => {} }) {
  const rows = [];
  for (const [device, mapping, layout] of scenes) {
    const scene = openScene(driver, KvCache, mapping === 'ahead'
      ? { layout, growth: ahead(2 * TOKENS_PER_STEP), mapper: 'background' }
      : { layout, growth: onDemand(), mapper: 'off' });
    try {
      rows.push({ layout, mapping, device, ...await runSteps(scene, device === 'busy') });
      report(rows);
    } finally {
      scene.close();
    }
  }
  return rows;
}

/** Shaped like Llama 3 8B where there is memory for it, smaller elsewhere. */
function openScene(driver, KvCache, options) {
  const { native, info: { defaultPageBytes: pageBytes } } = driver;
  const { freeBytes } = driver.memory();
  const layers = freeBytes > ROOMY_BYTES ? 32 : 4;
  const scratchBytes = 32 * pageBytes;
  const cache = new KvCache({
    work: 'awaited', driver, pageBytes, slots: SEQUENCES, maxTokens: 131_072,
    model: { layers, kvHeads: 8, headDim: 128, dtype: 'float16' },
    memoryBudgetBytes: Math.min(32 * 2 ** 30, Math.floor(freeBytes / 2)), headroomBytes: Math.min(2 ** 29, Math.floor(freeBytes / 8)),
    ...options,
  });
  const stream = native.createStream();
  const scratch = native.reserve(scratchBytes, pageBytes);
  const pages = Array.from({ length: scratchBytes / pageBytes }, (_, index) => {
    const page = native.createPage(pageBytes, 0n);
    native.map(scratch + BigInt(index * pageBytes), pageBytes, page);
    return page;
  });
  native.setAccess(scratch, scratchBytes);
  const fillUs = (fills) => timeUs(() => {
    for (let fill = 0; fill < fills; fill += 1) native.fill(scratch, fill & 255, scratchBytes, stream);
    native.synchronizeStream(stream);
  });
  fillUs(1);
  const fills = Math.max(1, Math.round(PASS_MS * 1e3 / (fillUs(20) / 20)));
  return {
    cache,
    layers,
    busyPass: () => fillUs(fills),
    close() {
      cache.close();
      native.unmap(scratch, scratchBytes);
      for (const page of pages) native.releasePage(page, pageBytes);
      native.freeReservation(scratch, scratchBytes);
      native.destroyStream(stream);
    },
  };
}

async function runSteps({ cache, layers, busyPass }, isBusy) {
  const batch = cache.createBatch();
  const limit = Math.floor(cache.pool.counts().budgetPages / SEQUENCES / (cache.layout.rowBytes / cache.layout.pageBytes));
  const mostTokens = Math.max(1, Math.floor(limit - 1)) * cache.layout.tokensPerRow;
  let sequences = Array.from({ length: SEQUENCES }, () => cache.acquire());
  const all = [];
  const growing = [];
  const passes = [];
  for (let step = 0; step < STEPS; step += 1) {
    if (sequences[0].length + TOKENS_PER_STEP > mostTokens) { // start over with slots that hold nothing
      for (const sequence of sequences) sequence.release();
      const { pool } = cache;
      const budgetBytes = pool.memoryBudgetBytes;
      pool.setBudget(pool.pageBytes); // takes everything back
      pool.setBudget(budgetBytes);
      sequences = Array.from({ length: SEQUENCES }, () => cache.acquire());
    }
    batch.clear();
    for (const sequence of sequences) batch.add(sequence, TOKENS_PER_STEP);
    const before = cache.metrics.foregroundMaps;
    const prepareUs = timeUs(() => cache.prepare(batch));
    all.push(prepareUs);
    if (cache.metrics.foregroundMaps > before) growing.push(prepareUs);
    if (isBusy) passes.push(busyPass());
    else await new Promise((resolve) => { setTimeout(resolve, PASS_MS); });
    cache.commit(batch);
  }
  const { foregroundMaps, backgroundMaps } = cache.metrics;
  for (const sequence of sequences) sequence.release();
  const pages = cache.layout.rowBytes / cache.layout.pageBytes;
  return {
    layers, rowPages: pages, prepare: percentiles(all), growingPrepare: percentiles(growing), pass: percentiles(passes),
    foregroundMaps, backgroundMaps,
  };
}
