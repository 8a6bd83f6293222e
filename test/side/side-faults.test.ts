// Fail the n-th driver call of every kind, for every n until a scenario no longer makes so many, in everything that side tensors do: no
// row of another text is ever read, the books agree, and the same call succeeds afterwards.

import { constants } from 'node:os';

import test from 'ava';

import type { MockCall } from 'virtual-kv/testing';

import { drivers, type BenchOptions, type CacheBench, type DriverName } from '../helpers/cache.js';
import { failEach, failIn, hostKinds, type Fault } from '../helpers/fail-each.js';
import { assertNothingHeld } from '../helpers/nothing-held.js';
import { slow } from '../runner/slow.js';
import { DeviceSource } from './device-source.js';
import { SideSpeaker, type Spoken } from './side-speaker.js';

const KiB = 1024;

/** Pages of 4 tokens, and of less than one. */
const shapes: Readonly<Record<DriverName, BenchOptions>> = {
  mock: {
    pageBytes: 4 * KiB, model: { layers: 1, kvHeads: 1, headDim: 256, dtype: 'float32' }, device: { granularityBytes: 4 * KiB }, slots: 3, maxTokens: 64,
    sideTensors: { whole: { width: 256, dtype: 'float32', place: 'device' }, large: { width: 1500, dtype: 'float32', place: 'device' } },
    sideBudgetBytes: 1024 * KiB, handOverSlots: 2, mapper: 'off',
  },
  host: {
    pageBytes: 64 * KiB, model: { layers: 1, kvHeads: 16, headDim: 256, dtype: 'float32' }, slots: 3, maxTokens: 64,
    sideTensors: { whole: { width: 4096, dtype: 'float32', place: 'device', pageBytes: 64 * KiB }, large: { width: 20_000, dtype: 'float32', place: 'device', pageBytes: 64 * KiB } },
    sideBudgetBytes: 16_384 * KiB, handOverSlots: 2, mapper: 'off',
  },
};

const text = [1, 2, 3, 4, 5, 6, 7, 8, 9, 10];
const branch = [1, 2, 3, 4, 5, 6, 20, 21, 22];

interface Scenario {
  readonly title: string;
  prepare(bench: CacheBench, speaker: SideSpeaker): { readonly alive: readonly Spoken[]; act(): void };
}

const scenarios: readonly Scenario[] = [
  {
    title: 'sharing a text that no slot maps, and going on',
    prepare: (_, speaker) => {
      speaker.cacheText(text);
      for (const first of [30, 40, 50, 60, 70]) speaker.cacheText([first, first + 1]);
      return { alive: [], act: () => void speaker.cacheText(branch) };
    },
  },
  {
    title: 'adopting a slot, and decoding',
    prepare: (_, speaker) => {
      speaker.cacheText(text);
      return {
        alive: [],
        act: () => {
          const spoken = speaker.say([...text, 11, 12]);
          try {
            speaker.decode(spoken, 13);
          } finally {
            spoken.sequence.release();
          }
        },
      };
    },
  },
  {
    title: 'forking, and writing on both sides',
    prepare: (_, speaker) => {
      const parent = speaker.say(text);
      return {
        alive: [parent],
        act: () => {
          const fork: Spoken = { sequence: parent.sequence.fork(), text: [...parent.text] };
          try {
            decodeOrTakeBack(speaker, fork, 80);
            decodeOrTakeBack(speaker, parent, 90);
          } finally {
            fork.sequence.release();
          }
        },
      };
    },
  },
  {
    title: 'taking cached tokens back, and writing others',
    prepare: (_, speaker) => {
      const [one, other] = [speaker.say(text), speaker.say([...text, 12])];
      return {
        alive: [one, other],
        act: () => {
          other.sequence.truncate(6);
          other.text.length = 6;
          decodeOrTakeBack(speaker, other, 100);
        },
      };
    },
  },
  {
    title: 'evicting for new rows, beside a hand-over',
    prepare: ({ cache }, speaker) => {
      const kept = speaker.say(text);
      const handOver = kept.sequence.handOver();
      kept.sequence.release();
      speaker.cacheText([30, 31, 32, 33, 34, 35, 36, 37]);
      cache.setSideBudget(cache.sideCounts().usedBytes);
      return {
        alive: [],
        act: () => {
          let wrong: number;
          try {
            speaker.cacheText([40, 41, 42, 43, 44]);
          } finally {
            try {
              wrong = speaker.wrongRows(handOver, text);
            } finally {
              handOver.close();
              cache.setSideBudget(16_384 * KiB);
            }
          }
          if (wrong > 0) throw new Error(`${wrong} rows of a hand-over are wrong`);
        },
      };
    },
  },
];

/** A token that cannot be computed is not part of the text. */
function decodeOrTakeBack(speaker: SideSpeaker, spoken: Spoken, token: number): void {
  try {
    speaker.decode(spoken, token);
  } catch (error) {
    spoken.text.length = spoken.sequence.length;
    spoken.sequence.truncate(spoken.sequence.length);
    throw error;
  }
}

const results = { mock: [999, 2], host: [constants.errno.ENOMEM] } as const;
const mockKinds: readonly MockCall[] = [
  'cuCtxPushCurrent', 'cuMemAddressReserve', 'cuMemCreate', 'cuMemRelease', 'cuMemMap', 'cuMemUnmap', 'cuMemSetAccess', 'cuMemcpyDtoDAsync',
  'cuMemcpyHtoDAsync', 'cuStreamSynchronize',
];

/** Rows from the device to the CPU's memory, by copies that are still under way when the next thing happens. */
const copyShape: BenchOptions = {
  ...shapes.mock, device: { granularityBytes: 4 * KiB, streams: 'manual' }, pageBytes: 4 * KiB, slots: 12, handOverSlots: 8, rows: 60,
  sideTensors: { whole: { width: 4096, dtype: 'float32', pageBytes: 64 * KiB }, large: { width: 20_000, dtype: 'float32', pageBytes: 64 * KiB } },
  sideBudgetBytes: 16_384 * KiB,
};
const copyKinds: readonly MockCall[] = [
  'cuCtxPushCurrent', 'cuMemHostRegister', 'cuMemHostUnregister', 'cuMemHostGetDevicePointer', 'cuModuleLoadDataEx', 'cuModuleGetFunction', 'cuLaunchKernel', 'cuMemcpyDtoHAsync', 'cuStreamCreate', 'cuStreamWaitEvent', 'cuStreamSynchronize', 'cuEventCreate',
  'cuEventRecord', 'cuEventQuery', 'cuEventSynchronize', 'cuEventDestroy',
];
const copyScenarios: readonly Scenario[] = [
  ...scenarios.filter(({ title }) => !title.startsWith('evicting')),
  { title: 'writing the first rows of a cache', prepare: (_, speaker) => ({ alive: [], act: () => void speaker.cacheText(text) }) },
  {
    title: 'decoding two texts in one batch',
    prepare: (_, speaker) => {
      const both = [speaker.say(text), speaker.say([30, 31, 32])];
      return {
        alive: both,
        act: () => {
          for (const { sequence, text: own } of both) {
            sequence.append(50);
            own.push(50);
          }
          try {
            speaker.compute(both, 1);
          } finally {
            for (const { sequence, text: own } of both) {
              own.length = sequence.length;
              sequence.truncate(sequence.length);
            }
          }
        },
      };
    },
  },
  {
    title: 'giving registered pages back',
    prepare: ({ cache, mock }, speaker) => {
      speaker.cacheText([30, 31, 32, 33, 34, 35, 36, 37]);
      mock.completeAll();
      const running = speaker.say(text);
      return {
        alive: [running],
        act: () => {
          try {
            cache.setSideBudget(128 * KiB);
          } finally {
            cache.setSideBudget(16_384 * KiB);
          }
        },
      };
    },
  },
];

for (const scenario of copyScenarios) {
  slow('sweeps a sample of calls')(`${scenario.title}, with rows from the device: any call that fails leaves no wrong row`, (t) => {
    const needed = ['cuMemcpyDtoHAsync', 'cuLaunchKernel', 'cuMemHostUnregister'];
    const sweep = { title: scenario.title, on: 'mock', options: copyShape, kinds: copyKinds, results: results.mock, needed } as const;
    failEach(t, sweep, (bench, fault) => failOne(bench, scenario, fault, new DeviceSource(bench.driver)));
  });
}

for (const on of drivers) {
  for (const scenario of scenarios) {
    test(`${scenario.title}: any call that fails leaves no wrong row (${on})`, (t) => {
      const kinds = on === 'mock' ? mockKinds : hostKinds;
      const sweep = { title: scenario.title, on, options: shapes[on], kinds, results: results[on], needed: on === 'host' ? [] : kinds };
      failEach(t, sweep, (bench, fault) => failOne(bench, scenario, fault));
    });
  }
}

function failOne(bench: CacheBench, scenario: Scenario, fault: Fault, source?: DeviceSource): boolean {
  const { t, cache } = bench;
  const speaker = new SideSpeaker(cache, source);
  const { alive, act } = scenario.prepare(bench, speaker);
  const { isReached, what } = failIn(bench, fault, act);
  if (source !== undefined) bench.mock.completeAll();
  cache.verify();
  for (const spoken of alive) {
    if (spoken.sequence.isReleased) continue;
    const handOver = spoken.sequence.handOver();
    t.is(speaker.wrongRows(handOver, spoken.text, handOver.tokens), 0, what);
    handOver.close();
  }
  for (const tokens of [[...text, 1], branch, [40, 41, 42, 43, 44]]) {
    const again = speaker.say(tokens);
    const handOver = again.sequence.handOver();
    t.is(speaker.wrongRows(handOver, tokens), 0, what);
    handOver.close();
    again.sequence.release();
  }
  for (const { sequence } of alive) if (!sequence.isReleased) sequence.release();
  if (source !== undefined) bench.mock.completeAll();
  assertNothingHeld(t, cache, what);
  if (source !== undefined) {
    cache.close();
    source.free();
  }
  bench.close();
  return isReached;
}
