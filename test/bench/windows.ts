// What layer sets with windows cost and save, against the same model as if every layer kept every token, in turns. Gemma 3
// 27B's shape on the simulated device, 64 sequences of 32,768 tokens: pages of a sequence, pages mapped for each token that
// is decoded, and the time of `prepare` and `commit`. Gemma 3 1B's shape on the CPU: attention of a decoding step with it.

import { MockDevice } from 'virtual-kv/testing';
import { Kernels, KvCache, onDemand, type Batch, type ModelShape } from 'virtual-kv';

import { format, microseconds, percentiles, type BenchResult } from './measure.js';

const sequences = 64;
const promptTokens = 32_768;
const passTokens = 2_048;
const steps = 8_192;

const layers = 62;
const full = Array.from({ length: layers }, (_, layer) => layer).filter((layer) => layer % 6 === 5);
const windows = Array.from({ length: layers }, (_, layer) => layer).filter((layer) => layer % 6 !== 5);
const dense: ModelShape = { layers, kvHeads: 16, headDim: 128, dtype: 'bfloat16' };
const hybrid: ModelShape = {
  ...dense, layerSets: [{ kind: 'full', layers: full }, { kind: 'window', layers: windows, windowTokens: 1_024 }],
};

interface Measured {
  readonly pages: number;
  readonly mapsPerToken: number;
  readonly times: Float64Array;
}

class Decoding {
  readonly #mock = new MockDevice({ memoryBytes: 2 ** 44, backing: 'none' });
  readonly #cache: KvCache;
  readonly #batch: Batch;
  readonly #times = new Float64Array(steps);
  readonly #mapsBefore: number;
  #step = 0;

  constructor(model: ModelShape) {
    this.#cache = new KvCache({
      model, slots: sequences, maxTokens: promptTokens + 2 * steps, memoryBudgetBytes: 2 ** 44, driver: this.#mock.driver,
      growth: onDemand(), prefixCache: 'off', passTokens, mapper: 'off',
    });
    this.#batch = this.#cache.createBatch();
    const leases = Array.from({ length: sequences }, () => this.#cache.acquire({ promptTokens }));
    for (let length = 0; length < promptTokens; length += passTokens) {
      this.#batch.clear();
      for (const sequence of leases) this.#batch.add(sequence, passTokens);
      this.#cache.prepare(this.#batch);
      this.#cache.commit(this.#batch);
    }
    this.#batch.clear();
    for (const sequence of leases) this.#batch.add(sequence, 1);
    this.#mapsBefore = this.#cache.metrics.foregroundMaps;
  }

  step(): void {
    this.#times[this.#step] = microseconds(() => {
      this.#cache.prepare(this.#batch);
      this.#cache.commit(this.#batch);
    });
    this.#step += 1;
  }

  end(): Measured {
    const pages = this.#cache.pool.counts().mappedPages / sequences;
    const mapsPerToken = (this.#cache.metrics.foregroundMaps - this.#mapsBefore) / (sequences * steps);
    this.#cache.close();
    this.#mock.close();
    return { pages, mapsPerToken, times: this.#times };
  }
}

export function windowsOfGemma(): BenchResult[] {
  return [windowsOnMock(), windowsOnHost()];
}

const smallWindow = { windowTokens: 512 };
const smallLayers = 26;
const small: ModelShape = { layers: smallLayers, kvHeads: 1, headDim: 256, dtype: 'bfloat16' };
const isFull = (layer: number): boolean => layer % 6 === 5;
const everyLayer = Array.from({ length: smallLayers }, (_, layer) => layer);

/** Steps of four sequences of 8,192 tokens and more through the attention of all layers. */
class Attending {
  readonly #cache: KvCache;
  readonly #kernels: Kernels;
  readonly #batch: Batch;
  readonly #rows = new Float32Array(4 * 4 * 256).fill(0.5);
  readonly #attended = new Float32Array(4 * 4 * 256);
  readonly times: number[] = [];

  constructor(layerSets: ModelShape['layerSets']) {
    this.#cache = new KvCache({
      model: { ...small, layerSets }, slots: 4, maxTokens: 16_384, memoryBudgetBytes: 2 ** 32, driver: 'host', growth: onDemand(),
      prefixCache: 'off', passTokens: 512, pageBytes: 65_536,
    });
    this.#kernels = new Kernels({
      cache: this.#cache, queryHeads: 4, attention: everyLayer.map((layer) => (isFull(layer) ? undefined : smallWindow)),
    });
    this.#batch = this.#cache.createBatch();
    const leases = Array.from({ length: 4 }, () => this.#cache.acquire());
    for (let length = 0; length < 8_192; length += 512) {
      this.#batch.clear();
      for (const sequence of leases) this.#batch.add(sequence, 512);
      this.#cache.prepare(this.#batch);
      for (const sequence of leases) this.#cache.stamp(sequence, length, 512, 0);
      this.#cache.commit(this.#batch);
    }
    this.#batch.clear();
    for (const sequence of leases) this.#batch.add(sequence, 1);
  }

  step(): void {
    this.times.push(microseconds(() => {
      this.#cache.prepare(this.#batch);
      for (const layer of everyLayer) {
        this.#kernels.append(layer, this.#batch, this.#rows.subarray(0, 4 * 256), this.#rows.subarray(0, 4 * 256));
        this.#kernels.decodeAttention(layer, this.#batch, this.#rows, this.#attended);
      }
      this.#cache.commit(this.#batch);
    }));
  }

  /** Returns the mebibytes of a sequence. */
  end(): number {
    const mebibytes = this.#cache.pool.counts().mappedPages / 4 / 16;
    this.#kernels.close();
    this.#cache.close();
    return mebibytes;
  }
}

function windowsOnHost(): BenchResult {
  const kept = new Attending(undefined);
  const sliding = new Attending([
    { kind: 'full', layers: everyLayer.filter(isFull) },
    { kind: 'window', layers: everyLayer.filter((layer) => !isFull(layer)), ...smallWindow },
  ]);
  for (let index = 0; index < 1_024; index += 1) {
    kept.step();
    sliding.step();
  }
  const [p50, before] = [sliding, kept].map(({ times }) => percentiles(Float64Array.from(times)).p50);
  const [mebibytes, keptMebibytes] = [sliding.end(), kept.end()];
  const tokensPerSecond = (us: number): string => format(4e6 / us);
  return {
    name: "Gemma 3 1B's shape, attention of 4 sequences of 8,192 tokens on the CPU: windows as windows",
    value: `${tokensPerSecond(p50!)} tokens/s, ${format(mebibytes)} MiB a sequence`,
    against: `every layer keeps all, kernels see the window: ${tokensPerSecond(before!)} tokens/s, ${format(keptMebibytes)} MiB; goal 1.02 × the time`,
    isGoalMet: p50! <= 1.02 * before!,
    numbers: { p50Us: p50!, keptP50Us: before!, mebibytes, keptMebibytes },
  };
}

function windowsOnMock(): BenchResult {
  const [kept, sliding] = [new Decoding(dense), new Decoding(hybrid)];
  for (let index = 0; index < steps; index += 1) {
    kept.step();
    sliding.step();
  }
  const [of, against] = [sliding.end(), kept.end()];
  const [time, before] = [percentiles(of.times), percentiles(against.times)];
  const mean = (times: Float64Array): number => times.reduce((sum, one) => sum + one, 0) / times.length;
  return {
    name: `Gemma 3 27B's shape, ${sequences} sequences of 32,768 tokens: windows as windows`,
    value: `${format(of.pages * 2)} MiB a sequence, ${format(of.mapsPerToken, 3)} pages mapped a token, ` +
      `${format(time.p50, 1)} µs a step (mean ${format(mean(of.times), 1)})`,
    against: `every layer keeps all: ${format(against.pages * 2)} MiB, ${format(against.mapsPerToken, 3)} pages, ` +
      `${format(before.p50, 1)} µs (mean ${format(mean(against.times), 1)}); goal 1.3 × the median`,
    isGoalMet: time.p50 <= 1.3 * before.p50 && of.pages <= 0.25 * against.pages,
    numbers: {
      mebibytes: of.pages * 2, keptMebibytes: against.pages * 2, mapsPerToken: of.mapsPerToken, p50Us: time.p50,
      keptP50Us: before.p50,
    },
  };
}
