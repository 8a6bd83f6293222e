// Decoding steps whose rows go from the device to the pages of many sequences in the CPU's memory (native/pinned_arena): by one launch of a
// kernel that writes to registered memory, where the device takes it, against as many of the driver's own copies. Every byte is compared.
// Times by this machine's clock.

import { HostPages } from './host-pages.mjs';
import { isSimulated } from './timing.mjs';

const steps = 40;
const width = 2048;
const rowBytes = 2 * width;

const median = (values) => [...values].sort((a, b) => a - b)[Math.floor(values.length / 2)];
const nowUs = () => performance.now() * 1e3;

/** Rows of { what, bytes, 'µs in the call', 'µs until there', … } and how many rows were wrong. */
export function measureSideSteps(driver, api) {
  const sequences = isSimulated(driver) ? 8 : 64;
  const stream = driver.acquireStream();
  const memory = new api.DeviceMemory({ driver, bytes: sequences * rowBytes });
  try {
    const step = runSteps(driver, api, { sequences, stream, memory });
    const copies = copyEach(driver, api, { sequences, stream, memory });
    return { table: [step, copies], wrongRows: step['wrong rows'] };
  } finally {
    memory.close();
    driver.releaseStream(stream);
  }
}

function runSteps(driver, { KvCache }, { sequences, stream, memory }) {
  const cache = new KvCache({
    driver, layout: 'per-layer', model: { layers: 1, kvHeads: 1, headDim: 64, dtype: 'bfloat16' }, slots: sequences, maxTokens: 2 * steps,
    memoryBudgetBytes: 4 * sequences * driver.info.defaultPageBytes, headroomBytes: 0, readyBytes: 0,
    sideTensors: { hidden: { width, dtype: 'bfloat16' } },
  });
  try {
    const bytes = new Uint8Array(memory.bytes);
    const words = new Uint32Array(bytes.buffer);
    const fill = (at) => {
      for (let index = 0; index < words.length; index += 1) words[index] = Math.imul(index + at * 0x9e37, 0x9e37_79b1);
    };
    const running = Array.from({ length: sequences }, (_, index) => cache.acquire({ tokens: [index] }));
    const batch = cache.createBatch();
    const times = [];
    for (let at = 0; at < steps; at += 1) {
      fill(at);
      memory.write(bytes);
      if (at > 0) for (const sequence of running) sequence.append(at);
      batch.clear();
      for (const sequence of running) batch.add(sequence, 1);
      cache.prepare(batch);
      const begin = nowUs();
      cache.writeSide(batch, { hidden: { memory, stream } });
      const callUs = nowUs() - begin;
      driver.native.synchronizeStream(stream); // which waits for the copies
      times.push({ callUs, us: nowUs() - begin });
      cache.commit(batch, { fence: { stream } });
    }
    let wrongRows = 0;
    const handOvers = running.map((sequence) => sequence.handOver());
    for (let at = 0; at < steps; at += 1) {
      fill(at);
      handOvers.forEach((handOver, index) => {
        const { buffer, byteOffset, byteLength } = handOver.rows('hidden', at, at + 1);
        const row = bytes.subarray(index * rowBytes, (index + 1) * rowBytes);
        if (Buffer.compare(new Uint8Array(buffer, byteOffset, byteLength), row) !== 0) wrongRows += 1;
      });
    }
    for (const handOver of handOvers) handOver.close();
    for (const sequence of running) sequence.release();
    const later = times.slice(1); // the first registers the pages
    const { registeredBytes, pageableBytes } = cache.sideCounts();
    return {
      what: `a decoding step of ${sequences} sequences`, bytes: memory.bytes, 'µs in the call': median(later.map(({ callUs }) => callUs)),
      'µs until there': median(later.map(({ us }) => us)), 'wrong rows': wrongRows, registeredBytes, pageableBytes,
    };
  } finally {
    cache.close();
  }
}

/** The same bytes by a copy each, to registered pages of a host driver. */
function copyEach(driver, api, { sequences, stream, memory }) {
  const what = `the same by ${sequences} copies`;
  const to = new HostPages(api, { pages: sequences });
  try {
    driver.native.registerHost(to.address, to.bytes);
    const times = Array.from({ length: steps }, () => {
      const begin = nowUs();
      for (let index = 0; index < sequences; index += 1) {
        driver.native.download(to.address + BigInt(index * to.pageBytes), memory.address + BigInt(index * rowBytes), rowBytes, stream);
      }
      const callUs = nowUs() - begin;
      driver.native.synchronizeStream(stream);
      return { callUs, us: nowUs() - begin };
    });
    driver.native.unregisterHost(to.address);
    return { what, bytes: memory.bytes, 'µs in the call': median(times.map(({ callUs }) => callUs)), 'µs until there': median(times.map(({ us }) => us)) };
  } catch (error) {
    return { what, bytes: memory.bytes, refused: error.details?.result ?? error.code };
  } finally {
    to.close();
  }
}
