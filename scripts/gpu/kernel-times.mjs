// Times the kernels on the device. Decoding and copies are compared with the device's own copy, in bytes read and written
// per second; append and prefill have no goal. Single sequences alternate, so that the device's cache does not serve them.
// gpu-check checks the kernels first, by build-test/kernels/cuda.test.js. On a simulated device everything is small, and times
// mean nothing.

import { fillRandomly, isSimulated, timeLaunchesUs } from './timing.mjs';

const kvHeads = 8;
const dim = 128;
const goalPercent = 80;
/** Of a text a layer with a window sees this part. */
const windowedPart = 32;
const cases = [['float16', 1], ['float16', 4], ['float16', 8], ['bfloat16', 4], ['float32', 4]]; // and query heads to a KV head

/**
 * Rows for a table: the case, µs, and for cases with a goal GB/s and their share of the copy's GB/s. `without`: types
 * with wrong kernels. `report` gets the rows so far whenever there are more.
 */
export function measureKernels(driver, api, { without = [], report = () => {} } = {}) {
  const rows = [];
  let copyGBPerS = 0;
  for (const [dtype, group] of cases) {
    if (without.includes(dtype)) {
      rows.push({ what: `${dtype}, ${kvHeads} × ${group} heads: not timed, as its kernels were found wrong` });
      continue;
    }
    const scene = openScene(driver, api, dtype, group);
    try {
      if (copyGBPerS === 0) copyGBPerS = timeCopies(scene, rows);
      timeAttention(scene, rows, copyGBPerS);
    } finally {
      scene.close();
    }
    report(rows);
  }
  return rows;
}

/** A full cache of random floats, its kernels, and memory for rows. */
function openScene(driver, { Kernels, KvCache, DeviceMemory, onDemand }, dtype, group) {
  const [sequences, tokens] = isSimulated(driver) ? [2, 64] : [32, 32_768];
  const cache = new KvCache({
    work: 'awaited', layout: 'per-layer', model: { layers: 1, kvHeads, headDim: dim, dtype }, slots: sequences, maxTokens: tokens, driver, growth: onDemand(),
    memoryBudgetBytes: Math.floor(driver.memory().freeBytes * 0.8),
  });
  const kernelsOptions = { cache, queryHeads: kvHeads * group, rowDtype: 'float16' };
  const kernels = new Kernels(kernelsOptions);
  const windowed = new Kernels({ ...kernelsOptions, attention: { windowTokens: tokens / windowedPart } });
  const batch = cache.createBatch();
  for (let index = 0; index < sequences; index += 1) batch.add(cache.acquire(), tokens);
  cache.prepare(batch);
  cache.commit(batch);
  const newTokens = tokens / 16; // of a prompt
  const rowBytes = kvHeads * group * dim * 2;
  const rows = new DeviceMemory({ driver, bytes: 2 * Math.max(sequences, newTokens) * rowBytes });
  fillRandomly(driver, rows.address, rows.bytes, 'float16');
  const tokenBytes = cache.layout.usedBytes(tokens);
  const { slotBytes } = cache.tensors[0].strides;
  const [{ address: source }] = cache.tensors;
  fillRandomly(driver, source, tokenBytes / 2, dtype);
  for (const { address } of cache.tensors) {
    for (let slot = 0; slot < sequences; slot += 1) {
      const to = address + BigInt(slot * slotBytes);
      if (to !== source) driver.native.copy(to, source, tokenBytes / 2, 0n);
    }
  }
  return {
    driver, cache, kernels, windowed, dtype, group, sequences, tokens, newTokens, rows, slotBytes,
    sequenceBytes: tokenBytes, // K and V
    output: rows.address + BigInt(Math.max(sequences, newTokens) * rowBytes),
    spansOf: (count, first, length, fresh) => ({
      slots: Int32Array.from({ length: count }, (_, index) => (first + index) % sequences),
      lengths: new Int32Array(count).fill(length), tokens: new Int32Array(count).fill(fresh),
    }),
    close() {
      rows.close();
      windowed.close();
      kernels.close();
      cache.close();
    },
  };
}

const withGoal = (what, us, bytes, copyGBPerS) => {
  const GBPerS = bytes / us / 1e3;
  const percent = (100 * GBPerS) / copyGBPerS;
  return {
    what, us, 'GB/s': GBPerS, '% of the copy': percent, [`goal ${goalPercent} %`]: percent >= goalPercent ? 'reached' : 'missed',
  };
};

/** K of half the slots to the other half by the driver's own copy, and K and V by ours; the former's GB/s. */
function timeCopies({ driver, cache, kernels, sequences, tokens, slotBytes, sequenceBytes }, rows) {
  const half = Math.floor(sequences / 2);
  const [{ address }] = cache.tensors;
  const bytes = (half - 1) * slotBytes + sequenceBytes / 2;
  const us = timeLaunchesUs(driver, () => driver.native.copy(address + BigInt(half * slotBytes), address, bytes, 0n));
  const copyGBPerS = (2 * bytes) / us / 1e3;
  rows.push({ what: 'cuMemcpyDtoDAsync', us, 'GB/s': copyGBPerS });
  const copies = Array.from({ length: half }, (_, slot) => (
    { fromSlot: slot, fromToken: 0, toSlot: slot + half, toToken: 0, tokens }));
  rows.push(withGoal(`copyTokens, ${copies.length} × ${tokens} tokens`, timeLaunchesUs(driver, () => kernels.copyTokens(copies)),
    2 * copies.length * sequenceBytes, copyGBPerS));
  return copyGBPerS;
}

function timeAttention(scene, rows, copyGBPerS) {
  const { driver, kernels, dtype, group, sequences, tokens, newTokens, output, spansOf } = scene;
  const { address } = scene.rows;
  const heads = `${kvHeads} × ${group} heads`;
  for (const count of [1, sequences]) {
    const turns = Array.from({ length: sequences }, (_, first) => spansOf(count, first, tokens - 1, 1));
    const us = timeLaunchesUs(driver, (turn) => kernels.decodeAttention(0, turns[turn % sequences], address, output));
    rows.push(withGoal(`decode, ${dtype}, ${heads}, ${count} × ${tokens} tokens`, us, count * scene.sequenceBytes, copyGBPerS));
  }
  const all = spansOf(sequences, 0, tokens - 1, 1);
  const windowUs = timeLaunchesUs(driver, () => scene.windowed.decodeAttention(0, all, address, output));
  rows.push(withGoal(`decode in windows, ${dtype}, ${heads}, ${sequences} × ${tokens / windowedPart} of ${tokens} tokens`, windowUs,
    sequences * scene.sequenceBytes / windowedPart, copyGBPerS));
  const prompt = spansOf(1, 0, 0, newTokens);
  const prefillUs = timeLaunchesUs(driver, () => kernels.prefillAttention(0, prompt, address, output));
  rows.push({ what: `prefill, ${dtype}, ${heads}, ${newTokens} tokens`, us: prefillUs });
  const appendUs = timeLaunchesUs(driver, () => kernels.append(0, all, address, address));
  rows.push({ what: `append, ${dtype}, ${kvHeads} heads, ${sequences} × 1 token`, us: appendUs });
}
