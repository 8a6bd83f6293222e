// Random prompts, steps, discards, forks, truncations and releases over layer sets, layouts, page sizes and engines that run
// ahead, beside an oracle that knows what each set needs by definition and nothing of the cache: which rows are mapped is
// equal after every operation, every refusal is expected, and every token that a layer may see has its bytes.

import type { ExecutionContext } from 'ava';

import { isKvError, KvCache, onDemand, type LayerSetShape, type Sequence } from 'virtual-kv';
import { MockDevice } from 'virtual-kv/testing';

import { Random } from '#internal/base/random.js';
import { greatestCommonDivisor } from '#internal/base/row-arithmetic.js';
import { openDriver, type DriverName } from '../../helpers/cache.js';
import { assertNothingHeld } from '../../helpers/nothing-held.js';
import { seedOf } from '../../helpers/seed.js';
import { costly } from '../../runner/slow.js';
import { scaled } from '../../runner/tier.js';

const pageSizes = { mock: [4096, 8192, 65_536], host: [65_536] } as const;
const layouts = ['per-layer', 'sliced', 'fused'] as const;
const maxTokens = 300;

/** A set as the oracle knows it. */
interface Need {
  readonly windowTokens: number;
  readonly chunkTokens: number;
  readonly tokenBytes: number;
  /** A tensor of it. */
  readonly tensor: number;
  readonly index: number;
}

/** What a sequence has, by set. */
interface Rows {
  first: number;
  end: number;
  /** Rows before this one may be a fork's too. */
  shared: number;
}

interface Running {
  readonly sequence: Sequence;
  readonly key: number;
  length: number;
  /** The longest that it was. */
  longest: number;
  /** Passes that are not over, and where each began to compute. */
  passes: { readonly step: number; readonly from: number }[];
  readonly sets: Rows[];
  /** Where its tokens were stamped under another key: its parent's. */
  stamps: { readonly key: number; readonly from: number; readonly to: number }[];
}

class World {
  readonly #t: ExecutionContext;
  readonly #random: Random;
  readonly cache: KvCache;
  readonly device: MockDevice | undefined;
  readonly #needs: readonly Need[];
  readonly #pageBytes: number;
  readonly #rollbackTokens: number;
  readonly #running: Running[] = [];
  /** Released, with passes that are not over. */
  #retiring: Running[] = [];
  #step = 0;
  #completed = 0;
  #keys = 0;
  readonly counts: Record<string, number>;

  constructor(t: ExecutionContext, on: DriverName, random: Random, counts: Record<string, number>) {
    this.#t = t;
    this.#random = random;
    this.counts = counts;
    const sizes = pageSizes[on];
    this.#pageBytes = sizes[random.integer(sizes.length)]!;
    this.#rollbackTokens = random.integer(2) * random.integer(7);
    const layers = 2 + random.integer(4);
    let next = random.chance(0.8) ? 1 : 0;
    const shapes: LayerSetShape[] = next === 0 ? [] : [{ kind: 'full', layers: [0] }];
    while (next < layers) {
      const count = 1 + random.integer(layers - next);
      const of = { layers: Array.from({ length: count }, (_, index) => next + index), layout: layouts[random.integer(3)]! };
      shapes.push(random.chance(0.6) ? { kind: 'window', windowTokens: 1 + random.integer(40), ...of }
        : { kind: 'chunk', chunkTokens: 1 + random.integer(40), ...of });
      next += count;
    }
    const headDim = on === 'host' ? 512 * (1 + random.integer(9)) : 64 * (1 + random.integer(9));
    const valueHeadDim = random.chance(0.7) ? headDim : [2 * headDim, headDim / 2, 3 * headDim / 2][random.integer(3)]!;
    const { driver, device } = openDriver({ on, ...on === 'mock' ? { device: { granularityBytes: 4096 } } : {} });
    this.device = device;
    this.cache = new KvCache({
      driver, pageBytes: this.#pageBytes, slots: 5, maxTokens, memoryBudgetBytes: 2 ** 30, growth: onDemand(), mapper: 'off',
      prefixCache: 'off', rollbackTokens: this.#rollbackTokens,
      model: { layers, kvHeads: 1, headDim, valueHeadDim, dtype: 'float16', layerSets: shapes },
    });
    t.log(JSON.stringify({ pageBytes: this.#pageBytes, headDim, valueHeadDim, rollbackTokens: this.#rollbackTokens, shapes }));
    this.#needs = shapes.flatMap((shape, index): Need[] => {
      if (shape.kind !== 'window' && shape.kind !== 'chunk') return [];
      const count = shape.layout === 'per-layer' ? 1 : shape.layers.length;
      const [keyBytes, valueBytes] = [count * headDim * 2, count * valueHeadDim * 2];
      return [{
        windowTokens: shape.kind === 'window' ? shape.windowTokens : 0, chunkTokens: shape.kind === 'chunk' ? shape.chunkTokens : 0,
        tokenBytes: shape.layout === 'fused' ? keyBytes + valueBytes : greatestCommonDivisor(keyBytes, valueBytes), tensor: 2 * shape.layers[0]!, index,
      }];
    });
  }

  turn(): void {
    const random = this.#random;
    const operations = [
      [10, () => { this.#start(); }], [40, () => { this.#pass(); }], [6, () => { this.#fork(); }], [8, () => { this.#truncate(); }],
      [7, () => { this.#release(); }], [14, () => { this.#complete(); }],
    ] as const;
    let roll = random.integer(operations.reduce((sum, [weight]) => sum + weight, 0));
    operations.find(([weight]) => (roll -= weight) < 0)![1]();
    this.#assert();
  }

  end(): void {
    while (this.#running.length > 0) this.#release();
    this.cache.completeStep(this.#step);
    assertNothingHeld(this.#t, this.cache);
    this.#t.is(this.cache.metrics.lateErrors, 0);
    if (this.device !== undefined) this.#t.deepEqual(this.device.misuses(), []);
    const { driver } = this.cache;
    this.cache.close();
    this.#t.is(driver.memory().livePages, 0);
    driver.close();
    this.device?.close();
  }

  #count(what: string): void {
    this.counts[what] = (this.counts[what] ?? 0) + 1;
  }

  #pick(): Running | undefined {
    return this.#running[this.#random.integer(Math.max(1, this.#running.length))];
  }

  /** Calls `act`; false where it throws what it may. */
  #try(expected: string | undefined, act: () => void): boolean {
    try {
      act();
    } catch (error) {
      if (!isKvError(error) || error.code !== expected) throw error;
      this.#count(error.code);
      return false;
    }
    this.#t.is(expected, undefined, 'it should have thrown');
    return true;
  }

  #start(): void {
    if (this.#running.length + this.#retiring.length === 5) return;
    const sequence = this.cache.acquire({ promptTokens: this.#random.integer(80), reserve: this.#random.chance(0.5) ? 'prompt' : 'none' });
    const sets = this.#needs.map((): Rows => ({ first: 0, end: 0, shared: 0 }));
    this.#running.push({ sequence, key: this.#keys += 1, length: 0, longest: 0, passes: [], sets, stamps: [] });
    this.#count('start');
  }

  #pass(): void {
    const random = this.#random;
    const some = this.#running.filter(() => random.chance(0.6));
    const tokens = some.map(({ length }) => Math.min(maxTokens - length, random.chance(0.3) ? 1 + random.integer(40) : 1 + random.integer(2)));
    const entries = some.map((running, index) => [running, tokens[index]!] as const).filter(([, count]) => count > 0);
    const batch = this.cache.createBatch();
    for (const [{ sequence }, count] of entries) batch.add(sequence, count);
    try {
      this.cache.prepare(batch);
    } catch (error) {
      // A row that a fork has or had must be copied, in the layer that keeps all or in a window, and a step may use it.
      if (!isKvError(error, 'KV_WORK_QUEUED')) throw error;
      this.#t.true(entries.some(([{ passes }]) => passes.length > 0) || this.#step > this.#completed);
      return this.#count('KV_WORK_QUEUED');
    }
    for (const [running, count] of entries) {
      running.sets.forEach((rows, index) => {
        const { tokenBytes } = this.#needs[index]!;
        const row = Math.floor(running.length * tokenBytes / this.#pageBytes);
        if (row < rows.shared) {
          const end = this.#rowsFor(running.length, tokenBytes);
          if (end < rows.shared) rows.end = Math.min(rows.end, end); // what is behind may be a fork's
          rows.shared = row;
        }
        rows.end = Math.max(rows.end, this.#rowsFor(running.length + count, tokenBytes));
      });
    }
    const isFenced = random.chance(0.6);
    const fence = isFenced ? { fence: { step: this.#step += 1 } } : undefined;
    const isCommitted = random.chance(0.9);
    for (const [running, count] of entries) {
      if (isFenced) running.passes.push({ step: this.#step, from: running.length });
      if (!isCommitted) continue;
      this.cache.stamp(running.sequence, running.length, count, running.key);
      running.length += count;
      running.longest = Math.max(running.longest, running.length);
    }
    if (isCommitted) this.cache.commit(batch, fence);
    else this.cache.discard(batch, fence);
    this.#count(isCommitted ? 'commit' : 'discard');
  }

  #fork(): void {
    const of = this.#pick();
    if (of === undefined || this.#running.length + this.#retiring.length === 5) return;
    const written = this.#writtenStep(of);
    let sequence: Sequence | undefined;
    if (!this.#try(written ? 'KV_WORK_QUEUED' : undefined, () => { sequence = of.sequence.fork(); })) return;
    const sets = of.sets.map((rows, index): Rows => {
      const { tokenBytes } = this.#needs[index]!;
      const row = Math.floor(of.length * tokenBytes / this.#pageBytes);
      rows.shared = Math.max(rows.shared, row);
      return { first: rows.first, end: this.#rowsFor(of.length, tokenBytes), shared: row };
    });
    const stamps = [...of.stamps, { key: of.key, from: of.stamps.at(-1)?.to ?? 0, to: of.length }];
    this.#running.push({ sequence: sequence!, key: this.#keys += 1, length: of.length, longest: of.longest, passes: [], sets, stamps });
    this.#count('fork');
  }

  /** Whether a step that is not complete may still write its tokens: a discarded pass counts, as it may run still. */
  #writtenStep({ passes }: Running): boolean {
    return passes.length > 0 && this.#isWritten;
  }

  readonly #isWritten = true;

  #truncate(): void {
    const running = this.#pick();
    if (running === undefined) return;
    const { length } = running;
    const tokens = Math.max(0, length - (this.#random.chance(0.7) ? this.#random.integer(8) : this.#random.integer(length + 1)));
    const canBe = (at: number): boolean => at === length || this.#needs.every((need, index) =>
      this.#firstRow(need, at) >= running.sets[index]!.first);
    if (tokens >= running.longest - this.#rollbackTokens) this.#t.true(canBe(tokens));
    let nearest = tokens;
    while (!canBe(nearest)) nearest += 1;
    try {
      running.sequence.truncate(tokens);
      this.#t.is(nearest, tokens);
    } catch (error) {
      if (!isKvError(error, 'KV_WINDOW_PASSED')) throw error;
      this.#t.is(error.details.nearestTokens, nearest);
      this.#t.true(nearest > tokens);
      return this.#count('KV_WINDOW_PASSED');
    }
    running.length = tokens;
    running.stamps = running.stamps.filter(({ from }) => from < tokens).map((stamp) => ({ ...stamp, to: Math.min(stamp.to, tokens) }));
    this.#count('truncate');
  }

  #release(): void {
    const at = this.#random.integer(this.#running.length);
    const [running] = this.#running.splice(at, 1);
    if (running === undefined) return;
    const fence = this.#random.chance(0.3) ? { fence: { step: this.#step += 1 } } : undefined;
    if (fence !== undefined) running.passes.push({ step: this.#step, from: running.length });
    running.sequence.release(fence);
    this.#retiring.push(running);
    this.#count('release');
  }

  /** Steps are over in their order. */
  #complete(): void {
    this.#completed += this.#random.integer(1 + this.#step - this.#completed);
    if (this.#random.chance(0.3)) this.#completed = this.#step;
    this.cache.completeStep(this.#completed);
    this.#count('complete');
  }

  #rowsFor(tokens: number, tokenBytes: number): number {
    return Math.ceil(tokens * tokenBytes / this.#pageBytes);
  }

  /** The row of the first token that the next one of `length` tokens sees. */
  #firstRow({ windowTokens, chunkTokens, tokenBytes }: Need, length: number): number {
    const token = windowTokens > 0 ? Math.max(0, length + 1 - windowTokens) : Math.floor(length / chunkTokens) * chunkTokens;
    return Math.floor(token * tokenBytes / this.#pageBytes);
  }

  /** What is mapped is what the definition says, and every byte that a layer may see is right. */
  #assert(): void {
    const t = this.#t;
    for (const running of [...this.#running, ...this.#retiring]) {
      running.passes = running.passes.filter(({ step }) => step > this.#completed);
    }
    this.#retiring = this.#retiring.filter(({ passes }) => passes.length > 0);
    for (const running of this.#running) {
      const { sequence, length, passes, sets } = running;
      const seenFrom = passes.reduce((least, { from }) => Math.min(least, from), Math.max(0, length - this.#rollbackTokens));
      this.#needs.forEach((need, index) => {
        const rows = sets[index]!;
        rows.first = Math.max(rows.first, this.#firstRow(need, seenFrom));
        t.is(sequence.firstToken(need.tensor), Math.ceil(rows.first * this.#pageBytes / need.tokenBytes));
      });
      t.is(sequence.length, length);
      for (const { key, from, to } of [...running.stamps, { key: running.key, from: running.stamps.at(-1)?.to ?? 0, to: length }]) {
        if (to > from) t.is(this.cache.verifyStamp(sequence, from, to - from, key), 0, `tokens ${from} to ${to}`);
      }
    }
    const { sets } = this.cache.counts();
    this.#needs.forEach(({ index }, at) => {
      const rows = [...this.#running, ...this.#retiring].reduce((sum, running) =>
        sum + Math.max(0, running.sets[at]!.end - running.sets[at]!.first), 0);
      t.is(sets[index]!.mappedRows, rows);
    });
    this.cache.verify();
  }
}

for (const on of ['mock', 'host'] as const) {
  const seed = seedOf(`windows ${on}`);
  costly('a random world')(`random operations over windows and chunks map what each layer needs (${on}, seed ${seed})`, (t) => {
    const random = new Random(seed);
    const counts: Record<string, number> = {};
    const turns = 200;
    const rounds = scaled(on === 'mock' ? 60 : 15, 6);
    for (let round = 0; round < rounds; round += 1) {
      const world = new World(t, on, random, counts);
      for (let turn = 0; turn < turns; turn += 1) world.turn();
      world.end();
    }
    t.log(JSON.stringify(counts));
    for (const operation of ['commit', 'discard', 'fork', 'truncate', 'release', 'KV_WINDOW_PASSED', 'KV_WORK_QUEUED']) {
      t.true((counts[operation] ?? 0) > rounds / 6, operation);
    }
  });
}
