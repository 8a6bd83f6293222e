// Fail the n-th driver call of every kind while an engine runs ahead over everything that copies, unmaps or waits behind its work: no
// memory is touched under queued work, every sequence keeps its own bytes, and the same operations succeed afterwards.

import test from 'ava';

import type { MockCall } from 'virtual-kv/testing';

import type { BenchOptions, CacheBench } from '../helpers/cache.js';
import { failEach, failIn, type Fault } from '../helpers/fail-each.js';
import { assertNothingHeld } from '../helpers/nothing-held.js';
import { RunAheadEngine, type Running } from '../helpers/run-ahead-engine.js';
import { tokensOf } from './prefix/spoken.js';

/** Rows of 8 tokens. */
const options: BenchOptions = {
  pageBytes: 4096, model: { layers: 2, kvHeads: 1, headDim: 256, dtype: 'float16' }, slots: 6, rows: 24, mapper: 'off',
  device: { streams: 'manual', granularityBytes: 4096 },
};
const prompt = tokensOf(1, 21);
const branch = [...prompt.slice(0, 12), ...tokensOf(2, 9)];

const kinds: readonly MockCall[] = [
  'cuMemCreate', 'cuMemRelease', 'cuMemMap', 'cuMemUnmap', 'cuMemSetAccess', 'cuMemcpyDtoDAsync', 'cuStreamCreate',
  'cuStreamSynchronize', 'cuStreamWaitEvent', 'cuEventCreate', 'cuEventRecord', 'cuEventQuery', 'cuEventSynchronize', 'cuEventDestroy',
];

const scenarios: Readonly<Record<string, (engine: RunAheadEngine, first: Running) => void>> = {
  'a fork and its parent write': (engine, first) => {
    const fork = engine.fork(first);
    try {
      engine.step([fork, first]);
    } finally {
      engine.release(fork);
    }
  },
  'the parent writes alone': (engine, first) => {
    const fork = engine.fork(first);
    try {
      engine.step([first]);
    } finally {
      engine.release(fork);
    }
  },
  'a row with queued writes is copied for a request on another stream': (engine) => {
    const other = engine.start(branch, {}, 1);
    try {
      engine.step([other]);
    } finally {
      engine.release(other);
    }
  },
  'tokens are taken back into shared rows': (engine, first) => {
    const other = engine.start([...prompt, 1, 2]);
    try {
      engine.step([other]);
      engine.truncate(first, 10);
      engine.step([first]);
    } finally {
      engine.release(other);
    }
  },
  'a release without a fence, and memory is short': (engine, first) => {
    const other = engine.start(tokensOf(3, 40));
    try {
      engine.step([other]);
    } finally {
      engine.release(other);
    }
    engine.step([first], 30);
  },
};

for (const [title, act] of Object.entries(scenarios)) {
  test(`${title}: any call that fails harms nothing that queued work uses`, (t) => {
    failEach(t, { title, on: 'mock', options, kinds, results: [999] }, (bench, fault) => failOne(bench, act, fault));
  });
}

function failOne(bench: CacheBench, act: (engine: RunAheadEngine, first: Running) => void, fault: Fault): boolean {
  const { t, cache, mock } = bench;
  const engine = new RunAheadEngine(bench, { streams: 2, probes: 0 });
  const first = engine.start(prompt);
  engine.step([first]);
  const { isReached, what } = failIn(bench, fault, () => { act(engine, first); });
  t.deepEqual(mock.misuses(), [], what);
  engine.assertAll();
  if (cache.counts().quarantinedSlots === 0) {
    act(engine, first);
    engine.assertAll();
  }
  engine.close();
  assertNothingHeld(t, cache, what);
  bench.close();
  return isReached;
}
