// What the fault tests make fail: each scenario is one public call (or two) in a cache with bytes worth keeping. It can be
// tried again after a failure.

import { KvCache, type Sequence } from 'virtual-kv';

import { cacheOptions, rowTokens, type BenchOptions, type CacheBench, type DriverName } from '../helpers/cache.js';

/** A sequence whose tokens were stamped under its key. */
export interface Kept {
  readonly sequence: Sequence;
  readonly key: number;
}

export interface Prepared {
  readonly kept: readonly Kept[];
  act(): void;
  /** Ends what else was opened: caches, and sequences that are not kept. */
  clean?(): void;
}

export interface FaultScenario {
  readonly title: string;
  readonly options?: BenchOptions;
  /** Where it makes calls that can fail. Default everywhere. */
  readonly on?: DriverName;
  /**
   * What a failed `act` may change besides nothing. `idle rows`: some were taken back before it failed. `release`: if it did
   * not throw, it happened, and what failed is a late error. `close`: it is half done.
   */
  readonly mayChange?: 'idle rows' | 'release' | 'close';
  prepare(bench: CacheBench): Prepared;
}

let keys = 0;

/** A stamped sequence of so many whole rows. */
export function keptSequence(bench: CacheBench, rows: number, tenant = ''): Kept {
  const sequence = bench.sequenceOf(rows * rowTokens, tenant);
  const key = keys += 1;
  bench.cache.stamp(sequence, 0, sequence.length, key);
  return { sequence, key };
}

export const scenarios: readonly FaultScenario[] = [
  {
    title: 'opening a second cache',
    prepare: (bench) => {
      let second: KvCache | undefined;
      return {
        kept: [keptSequence(bench, 1)],
        act: () => { second = new KvCache(cacheOptions({}, bench.driver)); },
        clean: () => second?.close(),
      };
    },
  },
  {
    title: 'growing a batch, from an earmark and without one',
    prepare: (bench) => {
      const kept = [keptSequence(bench, 1), keptSequence(bench, 2)];
      const earmarked = bench.cache.acquire({ promptTokens: 3 * rowTokens });
      bench.compute(earmarked, rowTokens);
      const act = () => {
        const batch = bench.batchOf([kept[0]!.sequence, 2 * rowTokens], [earmarked, 2 * rowTokens]);
        bench.cache.prepare(batch);
        bench.cache.discard(batch);
      };
      return { kept, act, clean: () => { earmarked.release(); } };
    },
  },
  {
    title: 'growing into free pages',
    options: { idleRowsLimit: 0 },
    prepare: (bench) => {
      bench.idleSlotOf(4);
      const kept = [keptSequence(bench, 1), keptSequence(bench, 1)];
      return { kept, act: () => { bench.prepare(kept[1]!.sequence, 2 * rowTokens); bench.discard(); } };
    },
  },
  {
    title: 'taking idle rows and a tail back to grow',
    options: { rows: 8 },
    mayChange: 'idle rows',
    prepare: (bench) => {
      const kept = [keptSequence(bench, 1), keptSequence(bench, 2)];
      const [idle, other] = [bench.sequenceOf(2 * rowTokens), bench.sequenceOf(3 * rowTokens)];
      idle.release();
      other.release();
      kept[1]!.sequence.truncate(rowTokens);
      return { kept, act: () => { bench.prepare(kept[0]!.sequence, 4 * rowTokens); bench.discard(); } };
    },
  },
  {
    title: 'setting aside pages for a prompt, from idle rows',
    options: { rows: 6 },
    mayChange: 'idle rows',
    prepare: (bench) => {
      const kept = [keptSequence(bench, 1)];
      const [small, large] = [bench.sequenceOf(2 * rowTokens), bench.sequenceOf(3 * rowTokens)];
      small.release();
      large.release();
      return { kept, act: () => bench.cache.acquire({ promptTokens: 5 * rowTokens }).release() };
    },
  },
  {
    title: 'handing a slot to another tenant, and growing it',
    options: { scrub: 'between-tenants', device: { hasGarbage: true } },
    prepare: (bench) => {
      const kept = [keptSequence(bench, 1, 'a')];
      keptSequence(bench, 2, 'a').sequence.release();
      const act = () => {
        const sequence = bench.cache.acquire({ promptTokens: 2 * rowTokens, reserve: 'none', tenant: 'b' });
        try {
          bench.prepare(sequence, 3 * rowTokens);
          bench.discard();
        } finally {
          sequence.release();
        }
      };
      return { kept, act };
    },
    mayChange: 'idle rows',
  },
  {
    title: 'lowering the budget',
    options: { rows: 12 },
    mayChange: 'idle rows',
    prepare: (bench) => {
      const kept = [keptSequence(bench, 2), keptSequence(bench, 3)];
      bench.idleSlotOf(3);
      kept[1]!.sequence.truncate(rowTokens);
      return { kept, act: () => bench.cache.pool.setBudget(4 * bench.cache.layout.rowBytes) };
    },
  },
  {
    title: 'trimming the pool',
    options: { idleRowsLimit: 0 },
    prepare: (bench) => {
      const kept = [keptSequence(bench, 1)];
      bench.idleSlotOf(3);
      return { kept, act: () => bench.cache.pool.trim() };
    },
  },
  {
    title: 'releasing behind a stream',
    on: 'mock',
    mayChange: 'release',
    prepare: (bench) => {
      const kept = [keptSequence(bench, 1)];
      const sequence = bench.sequenceOf(rowTokens);
      const act = () => {
        if (!sequence.isReleased) sequence.release({ fence: { stream: 0n } });
        bench.cache.counts();
      };
      return { kept, act };
    },
  },
  {
    title: 'releasing above a limit of idle rows and a lowered budget',
    options: { rows: 12, idleRowsLimit: 1 },
    mayChange: 'release',
    prepare: (bench) => {
      const kept = [keptSequence(bench, 2)];
      const sequences = [bench.sequenceOf(3 * rowTokens), bench.sequenceOf(2 * rowTokens)];
      bench.cache.pool.setBudget(5 * bench.cache.layout.rowBytes);
      const act = () => sequences.find(({ isReleased }) => !isReleased)?.release();
      return { kept, act, clean: act };
    },
  },
  {
    title: 'closing with sequences, idle rows and fences',
    mayChange: 'close',
    prepare: (bench) => {
      bench.sequenceOf(2 * rowTokens);
      bench.idleSlotOf(1);
      bench.sequenceOf(1).release({ fence: { stream: 0n } });
      return { kept: [], act: () => bench.cache.close() };
    },
  },
];
