// Fail each driver call of prompts, steps, forks and releases over layer sets with windows: a call that throws has changed
// nothing but rows ahead, what fails behind a commit is a late error and is made up for, no byte is lost and nothing is
// held at the end.

import { constants } from 'node:os';

import type { ExecutionContext } from 'ava';

import { isKvError, type ModelShape, type Sequence } from 'virtual-kv';
import type { MockCall } from 'virtual-kv/testing';

import type { BenchOptions, CacheBench } from '../../helpers/cache.js';
import { failEach, hostKinds } from '../../helpers/fail-each.js';
import { assertNothingHeld } from '../../helpers/nothing-held.js';
import { costly } from '../../runner/slow.js';

const model: ModelShape = {
  layers: 3, kvHeads: 64, headDim: 128, dtype: 'float16',
  layerSets: [
    { kind: 'full', layers: [0] }, { kind: 'window', layers: [1], windowTokens: 6, layout: 'per-layer' },
    { kind: 'chunk', layers: [2], chunkTokens: 9, layout: 'fused' },
  ],
};
const options: BenchOptions = {
  model, prefixCache: 'off', mapper: 'off', slots: 3, maxTokens: 100, memoryBudgetBytes: 120 * 65_536, passTokens: 8,
};
/** Not those that reading stamps makes too. */
const mockKinds: readonly MockCall[] = [
  'cuMemCreate', 'cuMemMap', 'cuMemUnmap', 'cuMemSetAccess', 'cuMemcpyDtoDAsync',
];
const kinds = { mock: mockKinds, host: hostKinds } as const;

/** What a sequence has computed, each token stamped with its number. */
class Computed {
  readonly #bench: CacheBench;
  readonly sequence: Sequence;

  constructor(bench: CacheBench, sequence: Sequence) {
    this.#bench = bench;
    this.sequence = sequence;
  }

  compute(tokens: number): void {
    const from = this.sequence.length;
    const stamp = (): void => { this.#bench.cache.stamp(this.sequence, from, tokens, 1); };
    this.#bench.compute(this.sequence, tokens);
    try {
      stamp();
    } catch { // no call of the cache under test
      this.#bench.forgiveAll();
      stamp();
    }
  }

  fork(): Computed {
    return new Computed(this.#bench, this.sequence.fork());
  }

  assertIntact(what: string): void {
    const { t, cache } = this.#bench;
    t.is(cache.verifyStamp(this.sequence, 0, this.sequence.length, 1), 0, what);
  }
}

/** What may fail, step by step; each step ends before the next one begins, and can be tried again. */
function stepsOf(bench: CacheBench, running: Map<string, Computed>): readonly (() => void)[] {
  const { cache } = bench;
  const of = (name: string): Computed => running.get(name)!;
  const release = (name: string): void => {
    of(name).sequence.release();
    running.delete(name);
  };
  return [
    () => running.set('a', new Computed(bench, cache.acquire({ promptTokens: 20 }))),
    ...[8, 8, 4, 1, 1, 1].map((tokens) => () => { of('a').compute(tokens); }),
    () => running.set('b', of('a').fork()),
    () => { of('b').compute(3); },
    () => { of('a').compute(5); },
    () => { release('a'); },
    () => running.set('c', new Computed(bench, cache.acquire({ promptTokens: 9, reserve: 'none' }))),
    () => { of('c').compute(9); },
    () => { of('b').compute(7); },
    () => { release('b'); },
    () => { release('c'); },
  ];
}

for (const on of ['mock', 'host'] as const) {
  costly('sweeps a sample of calls')(`any call of windows that fails is undone or made up for (${on})`, (t) => {
    const results = on === 'mock' ? [999, 2] : [constants.errno.ENOMEM];
    failEach(t, { title: 'windows', on, options, kinds: kinds[on], results }, (bench, { kind, nth, result }) => {
      const running = new Map<string, Computed>();
      const { lateErrors } = bench.cache.metrics;
      bench.device?.resetCallCounts();
      bench.fail(kind, nth, result);
      const hasThrown = runAll(t, bench, running);
      const isReached = bench.device === undefined ? hasThrown || bench.cache.metrics.lateErrors > lateErrors
        : bench.device.callCounts()[kind as MockCall] >= nth;
      bench.forgiveAll();
      end(t, bench, running, `${kind} number ${nth}`);
      return isReached;
    });
  });
}

/** Runs each step, and again, with nothing that fails, where it throws; says whether one did. */
function runAll(t: ExecutionContext, bench: CacheBench, running: Map<string, Computed>): boolean {
  let hasThrown = false;
  for (const step of stepsOf(bench, running)) {
    try {
      step();
    } catch (error) {
      hasThrown = true;
      t.true(isKvError(error) && /^KV_(DRIVER_CALL_FAILED|OUT_OF_)/.test(error.code), String(error));
      t.notThrows(() => { bench.cache.verify(); }, String(error));
      for (const computed of running.values()) computed.assertIntact(String(error));
      bench.forgiveAll();
      step();
    }
    for (const computed of running.values()) computed.assertIntact('after a step');
    bench.cache.verify();
  }
  return hasThrown;
}

function end(t: ExecutionContext, bench: CacheBench, running: ReadonlyMap<string, Computed>, what: string): void {
  for (const { sequence } of running.values()) sequence.release();
  assertNothingHeld(t, bench.cache, what);
  const { createdPages, freePages, mappedPages, quarantinedPages } = bench.pool();
  t.is(freePages + mappedPages + quarantinedPages, createdPages, what);
  bench.close();
}
