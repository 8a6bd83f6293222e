// What tests read of side tensors: rows of a hand-over, through a view where the CPU has them and else through the driver; pages by tensor;
// and what a simulated device has copied.

import { SideTensor } from '#internal/side/side-tensor.js';
import type { HandOver, KvCache, Sequence } from 'virtual-kv';
import type { MockDevice } from 'virtual-kv/testing';
import { nativeOf } from '../helpers/native-of.js';

/** Rows [from, to) of a float32 tensor. */
export function readRows(cache: KvCache, handOver: HandOver, name: string, from: number, to: number): Float32Array {
  const { driver, width, tokenBytes } = cache.sideTensors.find((tensor) => tensor.name === name)!;
  if (driver !== 'mock') return handOver.rows(name, from, to) as Float32Array;
  const rows = new Float32Array((to - from) * width);
  nativeOf(cache.driver).synchronizeStream(0n); // behind which copies to the tensor are waited for
  if (to > from) nativeOf(cache.driver).read(new Uint8Array(rows.buffer), handOver.address(name) + BigInt(from * tokenBytes));
  return rows;
}

/** Pages that each side tensor of the cache has, mapped, cached or set aside. `sideCounts` knows only the sum of their bytes. */
export function usedPages(cache: KvCache): Record<string, number> {
  const pages: Record<string, number> = {};
  const usedBytes = Object.getOwnPropertyDescriptor(SideTensor.prototype, 'usedBytes')!;
  Object.defineProperty(SideTensor.prototype, 'usedBytes', {
    ...usedBytes,
    get(this: SideTensor): number {
      const bytes = usedBytes.get!.call(this) as number;
      pages[this.open.name] = bytes / this.open.pool.pageBytes;
      return bytes;
    },
  });
  try {
    cache.sideCounts();
  } finally {
    Object.defineProperty(SideTensor.prototype, 'usedBytes', usedBytes);
  }
  return pages;
}

/** Bytes of each copy in the journal, by the side tensor from whose rows of the sequence they were taken; `others`: from anywhere else. */
export function copiesOf(device: MockDevice, cache: KvCache, sequence: Sequence): Record<string, number[]> {
  const handOver = sequence.handOver();
  const ranges = cache.sideTensors.map(({ name, tokenBytes }) => ({ name, from: handOver.address(name), to: handOver.address(name) + BigInt(cache.layout.maxTokens * tokenBytes) }));
  handOver.close();
  const copies: Record<string, number[]> = { others: [] };
  for (const { name } of ranges) copies[name] = [];
  for (const { call, from, bytes } of device.journal()) {
    if (call !== 'cuMemcpyDtoDAsync') continue;
    copies[ranges.find((range) => from >= range.from && from < range.to)?.name ?? 'others']!.push(bytes);
  }
  return copies;
}
