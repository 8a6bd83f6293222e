// Matrix products of a layer of Llama 3.2 1B. One row, as in decoding, reads every weight once: its speed is memory's, and is
// given against the traffic (read and written) of memcpy on all threads, measured in the same run. 512 rows, as in prefilling,
// are to be bound by arithmetic: the weights' traffic is then far below memory's.

import { DenseKernels, dtypeBytes, Kernels, KvCache, onDemand, type Product, type RowDtype, type Weight } from 'virtual-kv';

import { format, median, microseconds, type BenchResult } from './measure.js';

const hidden = 2048;
const intermediate = 8192;
const kvWidth = 512;
/** Outputs and inputs of the seven products of a layer. */
const products = [
  [hidden, hidden], [kvWidth, hidden], [kvWidth, hidden], [hidden, hidden], [intermediate, hidden], [intermediate, hidden],
  [hidden, intermediate],
] as const;
const layers = 2; // together well above what caches hold
const runs = 15;
const copyTokens = 65_536;

function openWeights(dtype: RowDtype): Weight[] {
  return Array.from({ length: layers }, () => products).flat().map(([outputs, inputs]) => {
    const data = dtype === 'float32' ? new Float32Array(outputs * inputs).fill(0.01) : new Uint16Array(outputs * inputs).fill(0x2c00);
    return { data, dtype, outputs, inputs };
  });
}

/** A copy on all threads whose bytes, read and written, are the measure. */
export class CopyMeter {
  readonly #cache: KvCache;
  readonly #kernels: Kernels;
  #from = 0;

  constructor() {
    this.#cache = new KvCache({
      model: { layers: 1, kvHeads: 8, headDim: 128, dtype: 'float16' }, slots: 2, maxTokens: copyTokens, memoryBudgetBytes: 2 ** 30,
      driver: 'host', growth: onDemand(), mapper: 'off',
    });
    this.#kernels = new Kernels({ cache: this.#cache });
    const batch = this.#cache.createBatch();
    for (const sequence of [this.#cache.acquire(), this.#cache.acquire()]) batch.add(sequence, copyTokens);
    this.#cache.prepare(batch);
    for (let turn = 0; turn < 2; turn += 1) this.rate(); // every page gets memory of its own
  }

  /** GB/s of one copy. */
  rate(): number {
    const [fromSlot, toSlot] = [this.#from, this.#from = 1 - this.#from];
    const us = microseconds(() => this.#kernels.copyTokens([{ fromSlot, fromToken: 0, toSlot, toToken: 0, tokens: copyTokens }]));
    return 2 * this.#cache.layout.usedBytes(copyTokens) / us / 1e3;
  }

  close(): void {
    this.#kernels.close();
    this.#cache.close();
  }
}

/** The products of all layers for so many rows, as a function that does them once and returns the microseconds. */
function passOf(dense: DenseKernels, weights: readonly Weight[], rows: number): () => number {
  const input = new Float32Array(rows * intermediate).fill(0.5);
  const calls = weights.map((weight): Product => ({ weight, output: new Float32Array(rows * weight.outputs) }));
  return () => microseconds(() => {
    for (const product of calls) dense.multiply(input, rows, product);
  });
}

function measure(dtype: RowDtype, meter: CopyMeter): BenchResult[] {
  const dense = new DenseKernels();
  const weights = openWeights(dtype);
  const bytes = weights.reduce((sum, { outputs, inputs }) => sum + dtypeBytes(dtype) * outputs * inputs, 0);
  const operations = 2 * weights.reduce((sum, { outputs, inputs }) => sum + outputs * inputs, 0);
  const rows = 512;
  const [decode, prefill] = [passOf(dense, weights, 1), passOf(dense, weights, rows)];
  decode();
  // In turns, so that whatever else the machine does meets both.
  const pairs = Array.from({ length: runs }, () => ({ traffic: meter.rate(), decodeRate: bytes / decode() / 1e3 }));
  const [traffic, decodeRate] = [median(pairs.map((pair) => pair.traffic)), median(pairs.map((pair) => pair.decodeRate))];
  const prefillUs = median([prefill(), prefill(), prefill()]);
  const gflopPerS = (rows * operations) / prefillUs / 1e3;
  const share = bytes / prefillUs / 1e3 / traffic;
  return [{
    name: `matrix products on host, 1 row, ${dtype} weights of a Llama 3.2 1B layer, ${dense.target}`,
    value: `${format(decodeRate)} GB/s of weights`,
    against: `${format(100 * decodeRate / traffic, 0)} % of the traffic of memcpy on all threads (${format(traffic)} GB/s); goal ≥ 70 %`,
    isGoalMet: decodeRate >= 0.7 * traffic,
    numbers: { decodeGBPerS: decodeRate, copyTrafficGBPerS: traffic, ratio: decodeRate / traffic },
  }, {
    name: `matrix products on host, ${rows} rows, ${dtype} weights`,
    value: `${format(gflopPerS, 0)} GFLOP/s`,
    against: `weights are read at ${format(100 * share)} % of that traffic; goal ≤ 20 %`,
    isGoalMet: share <= 0.2,
    numbers: { gflopPerS, weightsGBPerS: bytes / prefillUs / 1e3, ratio: share },
  }];
}

export function dense(): BenchResult[] {
  const meter = new CopyMeter();
  const results = (['bfloat16', 'float16', 'float32'] as const).flatMap((dtype) => measure(dtype, meter));
  meter.close();
  return results;
}
