// Reads rows of a hand-over for tests: through a view where the CPU has them, else through the driver.

import type { HandOver, KvCache } from 'virtual-kv';
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
