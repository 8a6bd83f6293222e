// Rows that an engine computed on the device, copied into a side tensor in the CPU's memory (native/pinned_arena): whether every byte
// arrives, and how fast, with pages that are registered with the device for the first time, that are registered already, through an
// array, and, by the driver's own copies, with and without a registration. Times by this machine's clock.

import { HostPages } from './host-pages.mjs';
import { isSimulated } from './timing.mjs';

const rounds = 5;
const blockBytes = [2 ** 16, 2 ** 21, 2 ** 26];

/** Rows of { what, bytes, GB/s, … } and how many rows of the tensor were wrong. `report` gets all so far. */
export function measureSideRows(driver, api, report = () => {}) {
  const bench = openBench(driver, api);
  const table = [];
  const add = (row) => {
    table.push(row);
    report(table);
  };
  let wrongRows = 0;
  try {
    const { bytes } = bench.memory;
    const passes = (write) => {
      const all = Array.from({ length: rounds }, () => bench.pass(write));
      wrongRows += all.reduce((sum, pass) => sum + pass.wrongRows, 0);
      return all;
    };
    const [first, ...others] = passes(bench.byDevice);
    const { registeredBytes, pageableBytes } = bench.cache.sideCounts();
    add({ what: 'rows on the device, new pages', bytes, ...columns(bytes, [first]) });
    add({ what: 'rows on the device, known pages', bytes, ...columns(bytes, others), 'wrong rows': wrongRows, registeredBytes, pageableBytes });
    add({ what: 'rows read into an array', bytes, ...columns(bytes, passes(bench.byArray)), 'wrong rows': wrongRows });
    for (const isRegistered of [false, true]) for (const row of copies(driver, api, bench, isRegistered)) add(row);
  } finally {
    bench.close();
  }
  return { table, wrongRows };
}

const median = (values) => [...values].sort((a, b) => a - b)[Math.floor(values.length / 2)];
const GBPerS = (bytes, us) => bytes / us / 1e3;
const nowUs = () => performance.now() * 1e3;
const columns = (bytes, passes) => ({
  'GB/s': GBPerS(bytes, median(passes.map(({ us }) => us))), 'µs in the call': median(passes.map(({ callUs }) => callUs)),
});

/** 64 MiB of rows for each text, of which the tensor has room for one and a half: from the second on, pages are used again. */
function openBench(driver, { KvCache, DeviceMemory }) {
  const [tokens, width] = isSimulated(driver) ? [512, 1024] : [8192, 4096];
  const cache = new KvCache({
    driver, layout: 'per-layer', model: { layers: 1, kvHeads: 1, headDim: 64, dtype: 'bfloat16' }, slots: 2, maxTokens: 2 * tokens,
    memoryBudgetBytes: 64 * driver.info.defaultPageBytes, headroomBytes: 0, readyBytes: 0, handOverSlots: 2,
    sideTensors: { hidden: { width, dtype: 'bfloat16' } }, sideBudgetBytes: 3 * tokens * width,
  });
  const memory = new DeviceMemory({ driver, bytes: 2 * tokens * width });
  const stream = driver.acquireStream();
  const bytes = new Uint8Array(memory.bytes);
  const words = new Uint32Array(bytes.buffer);
  const batch = cache.createBatch();
  let text = 0;
  return {
    cache, memory, stream,
    byDevice: () => ({ memory, stream }),
    byArray: () => {
      const rows = new Uint16Array(tokens * width);
      memory.read(rows, 0, stream);
      return rows;
    },
    /** Another text with other rows, which are compared when they are there. */
    pass(write) {
      text += 1;
      for (let at = 0; at < words.length; at += 1) words[at] = Math.imul(at + text * 0x9e37, 0x9e37_79b1);
      memory.write(bytes);
      const sequence = cache.acquire({ tokens: Array.from({ length: tokens }, (_, at) => at === 0 ? text : at) });
      batch.clear();
      batch.add(sequence, tokens);
      cache.prepare(batch);
      const begin = nowUs();
      cache.writeSide(batch, { hidden: write() });
      const callUs = nowUs() - begin;
      cache.commit(batch, { fence: { stream } });
      const handOver = sequence.handOver();
      const rows = handOver.rows('hidden');
      const us = nowUs() - begin;
      const rowBytes = 2 * width;
      const found = new Uint8Array(rows.buffer, rows.byteOffset, rows.byteLength);
      let wrongRows = 0;
      for (let row = 0; row < tokens; row += 1) {
        const [from, to] = [row * rowBytes, (row + 1) * rowBytes];
        if (Buffer.compare(found.subarray(from, to), bytes.subarray(from, to)) !== 0) wrongRows += 1;
      }
      handOver.close();
      sequence.release();
      return { us, callUs, wrongRows };
    },
    close() {
      cache.close();
      memory.close();
      driver.releaseStream(stream);
    },
  };
}

/** The driver's copies from the device into a host driver's pages, as many as fill them. */
function* copies(driver, api, { memory, stream }, isRegistered) {
  const to = new HostPages(api, { bytes: memory.bytes });
  const what = `copies to pages, ${isRegistered ? 'registered' : 'not registered'}`;
  let registerUs = 0;
  try {
    if (isRegistered) {
      const begin = nowUs();
      driver.native.registerHost(to.address, to.bytes);
      registerUs = nowUs() - begin;
    }
    for (const block of blockBytes.filter((bytes) => bytes <= memory.bytes)) {
      const times = Array.from({ length: rounds }, () => {
        const begin = nowUs();
        for (let at = 0; at < memory.bytes; at += block) {
          driver.native.download(to.address + BigInt(at), memory.address + BigInt(at), Math.min(block, memory.bytes - at), stream);
        }
        driver.native.synchronizeStream(stream);
        return nowUs() - begin;
      });
      yield { what, bytes: memory.bytes, blockBytes: block, 'GB/s': GBPerS(memory.bytes, median(times)), ...(isRegistered ? { registerUs } : {}) };
    }
    if (isRegistered) driver.native.unregisterHost(to.address);
  } catch (error) {
    yield { what, bytes: memory.bytes, refused: error.details?.result ?? error.code };
  } finally {
    to.close();
  }
}
