// Random operations under engines that run up to four steps ahead: fork, truncate, copy on write, acquire with adopted, aliased and
// copied rows, release with and without a fence, reset with preempt, a lowered budget and too little memory. Nothing is unmapped
// under queued work, every sequence has its own bytes, counts are conserved and nothing is left.

import test from 'ava';

import { ahead, isKvError, type ModelShape } from 'virtual-kv';

import { Random } from '#internal/base/random.js';
import { CacheBench, type BenchOptions, type DriverName } from '../helpers/cache.js';
import { assertNothingHeld } from '../helpers/nothing-held.js';
import { RunAheadEngine, type Running } from '../helpers/run-ahead-engine.js';
import { seedOf } from '../helpers/seed.js';

const mostAhead = 4;
const expected = ['KV_OUT_OF_PAGES', 'KV_NO_FREE_SLOT', 'KV_WORK_QUEUED', 'KV_LENGTH_OUT_OF_RANGE', 'KV_WINDOW_PASSED'];

/** Rows of 8 tokens: few, since every token is written and read back one by one. */
const shapes: Readonly<Record<DriverName, BenchOptions>> = {
  mock: { pageBytes: 4096, model: { layers: 2, kvHeads: 1, headDim: 256, dtype: 'float16' } },
  host: { pageBytes: 65_536, model: { layers: 2, kvHeads: 1, headDim: 4096, dtype: 'float16' } },
};

/** Rows of 8 tokens in the layer that keeps all, of 4 and 8 in the others. */
const windowModel: ModelShape = {
  layers: 4, kvHeads: 1, headDim: 256, dtype: 'float16', layerSets: [
    { kind: 'full', layers: [0] }, { kind: 'window', layers: [1, 2], windowTokens: 11, layout: 'sliced' },
    { kind: 'chunk', layers: [3], chunkTokens: 12, layout: 'per-layer' },
  ],
};

interface World {
  readonly title: string;
  readonly on: DriverName;
  readonly steps: boolean;
  readonly lanes: number;
  readonly options?: BenchOptions;
}

const worlds: readonly World[] = [
  { title: 'one stream', on: 'mock', steps: false, lanes: 1 },
  { title: 'one stream, scrubbing', on: 'mock', steps: false, lanes: 1, options: { scrub: 'between-tenants' } },
  { title: 'a stream that only the cache was told', on: 'mock', steps: false, lanes: 1, options: { stream: 0n } },
  { title: 'three streams', on: 'mock', steps: false, lanes: 3 },
  { title: 'steps', on: 'mock', steps: true, lanes: 1 },
  { title: 'steps', on: 'host', steps: true, lanes: 1 },
  ...[false, true].map((steps): World => ({ title: `windows and chunks, ${steps ? 'steps' : 'two streams'}`, on: 'mock', steps, lanes: steps ? 1 : 2, options: {
    model: windowModel, prefixCache: 'off', rollbackTokens: 3, memoryBudgetBytes: 60 * 4096, passTokens: 12, growth: ahead(6),
  } })),
  { title: 'windows and chunks, steps', on: 'host', steps: true, lanes: 1, options: {
    model: { ...windowModel, headDim: 4096 }, prefixCache: 'off', memoryBudgetBytes: 60 * 65_536,
  } },
  { title: 'layers that differ', on: 'mock', steps: false, lanes: 2, options: {
    model: { layers: 2, layerShapes: [{ kvHeads: 1 }, { kvHeads: 2 }], headDim: 128, dtype: 'float16' }, memoryBudgetBytes: 22 * 6 * 4096,
  } },
];

for (const world of worlds) {
  const seed = seedOf(`${world.title} ${world.on}`);
  test(`an engine that runs ahead on ${world.title} loses no byte (${world.on}, seed ${seed})`, (t) => {
    const counts: Record<string, number> = {};
    const random = new Random(seed);
    for (let round = 0; round < 10; round += 1) {
      const bench = new CacheBench(t, {
        ...shapes[world.on], slots: 6, maxTokens: 64, rows: 14 + random.integer(20), mapper: random.chance(0.5) ? 'off' : 'background',
        ...world.options, ...world.on === 'mock' ? { device: { streams: 'manual', granularityBytes: 4096 } } : {}, on: world.on,
      });
      runRound(world, bench, random, counts);
    }
    t.log(JSON.stringify(counts));
    for (const operation of ['step', 'fork', 'truncate', 'release']) t.true(counts[operation]! > 5, operation);
  });
}

function runRound({ steps, lanes, options }: World, bench: CacheBench, random: Random, counts: Record<string, number>): void {
  const { cache } = bench;
  const engine = new RunAheadEngine(bench, { steps, streams: lanes, random, told: options?.stream });
  const budget = cache.pool.memoryBudgetBytes;
  let completed = 0;
  const pick = (): Running | undefined => engine.running[random.integer(Math.max(1, engine.running.length))];
  const operations: Readonly<Record<string, () => void>> = {
    start: () => {
      const prompt = Array.from({ length: 1 + random.integer(40) }, (_, index) => (index < 5 ? 0 : random.integer(2)));
      engine.start(prompt, {
        reserve: random.chance(0.5) ? 'prompt' : 'none',
        caching: (['read-write', 'read-write', 'read-write', 'read', 'write', 'off'] as const)[random.integer(6)]!,
      }, random.integer(lanes));
    },
    step: () => {
      const lane = random.integer(lanes);
      const sequences = engine.running.filter((running) => running.lane === lane && random.chance(0.7));
      const tokens = 1 + random.integer(3);
      if (sequences.length > 0) engine.step(sequences.slice(0, 3), tokens, random.chance(0.93));
    },
    fork: () => {
      const running = pick();
      if (running !== undefined) engine.fork(running);
    },
    truncate: () => {
      const running = pick();
      if (running !== undefined) engine.truncate(running, random.integer(running.sequence.length + 1));
    },
    release: () => {
      const running = pick();
      if (running === undefined) return;
      const fence = steps ? { step: engine.queuedStep } : { stream: engine.streams[running.lane]! };
      engine.release(running, random.chance(0.5) ? { fence } : undefined);
    },
    reset: () => {
      cache.prefixes.reset({ preempt: true });
      engine.forgetReleased();
    },
    budget: () => cache.pool.setBudget(Math.ceil(budget * (0.3 + random.next()))),
    verify: () => cache.verify(),
    complete: () => {
      if (!steps) bench.mock.completeStream(engine.streams[random.integer(lanes)]!);
      completed = engine.queuedStep;
    },
  };
  const weights: readonly (readonly [string, number])[] = [
    ['start', 14], ['step', 44], ['fork', 9], ['truncate', 8], ['release', 10], ['reset', 0.5], ['budget', 2], ['verify', 2], ['complete', 10],
  ];
  const total = weights.reduce((sum, [, weight]) => sum + weight, 0);
  try {
    for (let turn = 0; turn < 150; turn += 1) {
      if (engine.queuedStep - completed > mostAhead) {
        completed = engine.queuedStep - random.integer(mostAhead);
        if (!steps) for (const stream of engine.streams) if (random.chance(0.6)) bench.mock.completeStream(stream);
      }
      if (steps) engine.completeStep(completed);
      let roll = random.next() * total;
      const [name] = weights.find(([, weight]) => (roll -= weight) < 0)!;
      counts[name] = (counts[name] ?? 0) + 1;
      try {
        operations[name]!();
      } catch (error) {
        if (!isKvError(error) || !expected.includes(error.code)) throw error;
        counts[error.code] = (counts[error.code] ?? 0) + 1;
      }
    }
    cache.pool.setBudget(budget);
    engine.assertAll();
    engine.close();
    bench.t.is(cache.metrics.lateErrors, 0);
    assertNothingHeld(bench.t, cache);
  } catch (error) {
    bench.abandon();
    throw error;
  }
  bench.close();
}
