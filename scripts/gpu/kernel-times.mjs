// How fast the kernels are on the device. Decoding and copies are held against the device's own copy, in bytes read and written
// per second; append and prefill have no goal. Each time is that of many launches on one stream, from the first to the end of
// the last; single sequences take turns, so that the device's cache does not serve them. That the kernels are right shows
// build-test/kernels/cuda.test.js, which gpu-check runs before. On a simulated device everything is small, and means nothing.

const kvHeads = 8;
const dim = 128;
const launches = 40;
const goalPercent = 80;

const native = (driver) => driver.native;

/** Microseconds of one of `launches` calls. */
function timeUs(driver, run) {
  run(0);
  native(driver).synchronizeStream(0n);
  const begin = process.hrtime.bigint();
  for (let launch = 0; launch < launches; launch += 1) run(launch);
  native(driver).synchronizeStream(0n);
  return Number(process.hrtime.bigint() - begin) / 1e3 / launches;
}

/** Rows for a table: what was measured, µs, and for those with a goal GB/s and their part of the copy's GB/s. */
export function measureKernels(driver, { Kernels, KvCache, onDemand }) {
  const isSmall = driver.memory().totalBytes < 8 * 2 ** 30;
  const [sequences, tokens] = isSmall ? [2, 64] : [32, 32_768];
  const rows = [];
  let copyGBPerS = 0;
  const add = (what, us, bytes) => {
    const GBPerS = bytes / us / 1e3;
    const percent = (100 * GBPerS) / copyGBPerS;
    const goal = percent >= goalPercent ? 'reached' : 'missed';
    rows.push({ what, us, 'GB/s': GBPerS, '% of the copy': percent, [`goal ${goalPercent} %`]: goal });
  };
  for (const [dtype, group] of [['float16', 1], ['float16', 4], ['float16', 8], ['bfloat16', 4], ['float32', 4]]) {
    const cache = new KvCache({
      model: { layers: 1, kvHeads, headDim: dim, dtype }, slots: sequences, maxTokens: tokens, driver, growth: onDemand(),
      memoryBudgetBytes: Math.floor(driver.memory().freeBytes * 0.8),
    });
    const kernels = new Kernels({ cache, queryHeads: kvHeads * group, rowDtype: 'float16' });
    const batch = cache.createBatch();
    for (let index = 0; index < sequences; index += 1) batch.add(cache.acquire(), tokens);
    cache.prepare(batch);
    cache.commit(batch);
    const { address, strides } = cache.tensors[0];
    const bytesOf = cache.layout.usedBytes(tokens);
    for (let slot = 0; slot < sequences; slot += 1) {
      for (const tensor of cache.tensors) {
        native(driver).fill(tensor.address + BigInt(slot * strides.slotBytes), 0, bytesOf / 2, 0n);
      }
    }
    if (copyGBPerS === 0) { // K of half the slots to the other half, by the driver's own copy
      const half = Math.floor(sequences / 2) * strides.slotBytes;
      const bytes = Math.min(half, Math.floor(sequences / 2) * strides.slotBytes);
      copyGBPerS = (2 * bytes) / timeUs(driver, () => native(driver).copy(address + BigInt(half), address, bytes, 0n)) / 1e3;
      rows.push({ what: 'cuMemcpyDtoDAsync', 'GB/s': copyGBPerS });
      const copies = Array.from({ length: sequences / 2 }, (_, slot) => (
        { fromSlot: slot, fromToken: 0, toSlot: slot + sequences / 2, toToken: 0, tokens }));
      add(`copyTokens, ${copies.length} × ${tokens} tokens`, timeUs(driver, () => kernels.copyTokens(copies)),
        2 * copies.length * bytesOf);
    }
    // The rows lie in the last slot's values: what is read there is of no interest.
    const scratch = cache.tensors[1].address + BigInt((sequences - 1) * strides.slotBytes);
    const spansOf = (count, first, length, newTokens) => ({
      slots: Int32Array.from({ length: count }, (_, index) => (first + index) % sequences),
      lengths: new Int32Array(count).fill(length), tokens: new Int32Array(count).fill(newTokens),
    });
    const heads = `${kvHeads} × ${group} heads`;
    for (const count of [1, sequences]) {
      const turns = Array.from({ length: sequences }, (_, first) => spansOf(count, first, tokens - 1, 1));
      const outputBytes = count * kvHeads * group * dim * 2;
      const us = timeUs(driver, (launch) => (
        kernels.decodeAttention(0, turns[launch % sequences], scratch, scratch + BigInt(outputBytes))));
      add(`decode, ${dtype}, ${heads}, ${count} × ${tokens} tokens`, us, count * bytesOf);
    }
    const newTokens = tokens / 16;
    const prompt = spansOf(1, 0, 0, newTokens);
    const promptBytes = newTokens * kvHeads * group * dim * 2;
    const prefillUs = timeUs(driver, () => kernels.prefillAttention(0, prompt, scratch, scratch + BigInt(promptBytes)));
    rows.push({ what: `prefill, ${dtype}, ${heads}, ${newTokens} tokens`, us: prefillUs });
    const step = spansOf(sequences, 0, tokens - 1, 1);
    const appendUs = timeUs(driver, () => kernels.append(0, step, scratch, scratch));
    rows.push({ what: `append, ${dtype}, ${kvHeads} heads, ${sequences} × 1 token`, us: appendUs });
    kernels.close();
    cache.close();
  }
  return rows;
}
