// How fast the kernels are on the device, against its own copies: bytes read and written per second. Each time is that of many
// launches on one stream, from the first to the end of the last. On a simulated device everything is small, and means nothing.

const kvHeads = 8;
const dim = 128;
const launches = 20;
const GOAL = 0.8;

const native = (driver) => driver.native;

/** Microseconds of one of `launches` calls. */
function timeUs(driver, run) {
  run();
  native(driver).synchronizeStream(0n);
  const begin = process.hrtime.bigint();
  for (let launch = 0; launch < launches; launch += 1) run();
  native(driver).synchronizeStream(0n);
  return Number(process.hrtime.bigint() - begin) / 1e3 / launches;
}

/** Rows for a table: what was measured, GB/s, and the part of the copy's GB/s. */
export function measureKernels(driver, { Kernels, KvCache, onDemand }) {
  const isSmall = driver.memory().totalBytes < 8 * 2 ** 30;
  const [sequences, tokens] = isSmall ? [2, 64] : [32, 32_768];
  const rows = [];
  let copyGBPerS = 0;
  const add = (what, us, bytes) => {
    const GBPerS = bytes / us / 1e3;
    rows.push({ what, us, 'GB/s': GBPerS, 'of the copy': GBPerS / copyGBPerS, goal: GBPerS >= GOAL * copyGBPerS ? 'met' : 'missed' });
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
    // The rows lie in the last slot's last tokens: what is read there is of no interest.
    const scratch = cache.tensors[1].address + BigInt((sequences - 1) * strides.slotBytes);
    for (const count of [1, sequences]) {
      const spans = {
        slots: Int32Array.from({ length: count }, (_, slot) => slot), lengths: new Int32Array(count).fill(tokens - 1),
        tokens: new Int32Array(count).fill(1),
      };
      const outputBytes = count * kvHeads * group * dim * 2;
      const us = timeUs(driver, () => kernels.decodeAttention(0, spans, scratch, scratch + BigInt(outputBytes)));
      add(`decode, ${dtype}, ${kvHeads} × ${group} heads, ${count} × ${tokens} tokens`, us, count * bytesOf);
    }
    kernels.close();
    cache.close();
  }
  return rows;
}
