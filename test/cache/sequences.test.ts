// Sequences as handles: what each member does in each state of its life, and that a stale one touches nobody else's memory.

import { type ExecutionContext } from 'ava';

import { KvCache, type Sequence } from 'virtual-kv';

import { cacheOptions, cacheTest, cacheTests, rowTokens, type CacheBench } from '../helpers/cache.js';

/** Brings a new sequence into a state; its slot has two rows. */
const states = {
  'acquired': (bench) => bench.cache.acquire(),
  'with tokens': (bench) => bench.sequenceOf(100),
  'prepared': (bench) => {
    const sequence = bench.sequenceOf(100);
    bench.cache.prepare(bench.batchOf([sequence, 1]));
    return sequence;
  },
  'discarded': (bench) => {
    const sequence = bench.sequenceOf(100);
    bench.prepare(sequence, 1);
    bench.discard();
    return sequence;
  },
  'released': (bench) => {
    const sequence = bench.sequenceOf(100);
    sequence.release();
    return sequence;
  },
  'released while prepared': (bench) => {
    const sequence = bench.sequenceOf(100);
    bench.cache.prepare(bench.batchOf([sequence, 1]));
    sequence.release();
    return sequence;
  },
  'released behind a fence': (bench) => {
    const sequence = bench.sequenceOf(100);
    sequence.release({ fence: { step: 3 } });
    return sequence;
  },
  'replaced by another request': (bench) => {
    const sequence = bench.sequenceOf(100);
    sequence.release();
    bench.t.is(bench.sequenceOf(100).slot, sequence.slot);
    return sequence;
  },
  'of a closed cache': (bench) => {
    const sequence = bench.sequenceOf(100);
    bench.cache.close();
    return sequence;
  },
} satisfies Readonly<Record<string, (bench: CacheBench) => Sequence>>;

type State = keyof typeof states;
type Outcome = 'ok' | 'KV_SLOT_RELEASED' | 'KV_SLOT_BUSY' | 'KV_COPY_OUT_OF_RANGE' | 'KV_CLOSED';

const stale = {
  'released': 'KV_SLOT_RELEASED', 'released while prepared': 'KV_SLOT_RELEASED', 'released behind a fence': 'KV_SLOT_RELEASED',
  'replaced by another request': 'KV_SLOT_RELEASED', 'of a closed cache': 'KV_CLOSED',
} as const;

/** Every member of a sequence, and every method that takes one: what it does where it is not simply allowed. */
const members: Readonly<Record<string, {
  readonly call: (sequence: Sequence, bench: CacheBench) => unknown;
  readonly except?: Readonly<Partial<Record<State, Outcome>>>;
}>> = {
  slot: { call: ({ slot }) => slot },
  cachedTokens: { call: ({ cachedTokens }) => cachedTokens },
  isReleased: { call: ({ isReleased }) => isReleased },
  dispose: { call: (sequence) => sequence[Symbol.dispose]() },
  length: { call: ({ length }) => length, except: stale },
  mappedRows: { call: ({ mappedRows }) => mappedRows, except: stale },
  address: { call: (sequence) => sequence.address(3), except: stale },
  view: { call: (sequence) => sequence.view(3), except: stale },
  truncate: { call: (sequence) => sequence.truncate(0), except: { ...stale, 'prepared': 'KV_SLOT_BUSY' } },
  release: { call: (sequence) => sequence.release(), except: stale },
  'batch.add': {
    call: (sequence, { cache }) => cache.createBatch().add(sequence, 1),
    except: stale,
  },
  'cache.stamp': {
    call: (sequence, { cache }) => cache.stamp(sequence, 0, 10, 1),
    except: { ...stale, 'acquired': 'KV_COPY_OUT_OF_RANGE' },
  },
  'cache.verifyStamp': {
    call: (sequence, { cache }) => cache.verifyStamp(sequence, 0, 10, 1),
    except: { ...stale, 'acquired': 'KV_COPY_OUT_OF_RANGE' },
  },
};

for (const [member, { call, except = {} }] of Object.entries(members)) {
  for (const [state, enter] of Object.entries(states)) {
    const code = except[state as State];
    const outcome = code === undefined ? 'is allowed' : `is ${code}`;
    cacheTest(`\`${member}\` of a sequence that is ${state} ${outcome}`, { on: 'host' }, (t, bench) => {
      const sequence = enter(bench);
      if (code === undefined) t.notThrows(() => call(sequence, bench));
      else assertRefused(t, bench, code, () => call(sequence, bench));
    });
  }
}

/** The call throws and changes nothing that can be seen. */
function assertRefused(t: ExecutionContext, { cache }: CacheBench, code: string, call: () => unknown): void {
  const before = cache.isClosed ? undefined : cache.inspect();
  t.throws(call, { code });
  if (before !== undefined) t.deepEqual(cache.inspect(), before);
}

cacheTests('a stale handle names its generation and the current one', {}, (t, bench) => {
  const first = bench.sequenceOf(1);
  first.release();
  const second = bench.sequenceOf(1);
  t.is(second.slot, first.slot);
  second.release();
  const third = bench.sequenceOf(1);
  t.is(third.slot, first.slot);
  const error = t.throws(() => first.length, { code: 'KV_SLOT_RELEASED' });
  t.like(error, { recovery: 'fix', details: { slot: first.slot, generation: 0, currentGeneration: 2 } });
  t.true(first.isReleased);
  t.false(third.isReleased);
});

cacheTests('a stale handle never reaches the memory of the next request', {}, (t, bench) => {
  const { cache } = bench;
  const first = bench.sequenceOf(100);
  first.release();
  const second = bench.sequenceOf(100);
  t.is(second.slot, first.slot);
  cache.stamp(second, 0, 100, 2);
  t.throws(() => cache.stamp(first, 0, 100, 1), { code: 'KV_SLOT_RELEASED' });
  t.throws(() => first.truncate(0), { code: 'KV_SLOT_RELEASED' });
  t.throws(() => first.release(), { code: 'KV_SLOT_RELEASED' });
  t.is(second.length, 100);
  t.true(bench.isIntact(second, 2));
});

cacheTests('every slot can be leased at once, and each sequence is at its own addresses', { slots: 5 }, (t, { cache }) => {
  const sequences = Array.from({ length: 5 }, () => cache.acquire());
  t.is(new Set(sequences.map(({ slot }) => slot)).size, 5);
  for (const { index, address, strides } of cache.tensors) {
    for (const sequence of sequences) t.is(sequence.address(index), address + BigInt(sequence.slot * strides.slotBytes));
  }
  const error = t.throws(() => cache.acquire(), { code: 'KV_NO_FREE_SLOT' });
  t.like(error, { recovery: 'free', details: { slots: 5, retiringSlots: 0 } });
});

cacheTests('`using` releases a sequence at the end of its block, once', {}, (t, bench) => {
  const { cache } = bench;
  {
    using first = bench.sequenceOf(10);
    using second = bench.sequenceOf(10);
    second.release();
    t.false(first.isReleased);
  }
  t.like(cache.counts(), { activeSlots: 0 });
  t.like(cache.metrics, { acquired: 2, released: 2 });
});

cacheTests('arguments out of range are refused and change nothing', {}, (t, bench) => {
  const { cache } = bench;
  const sequence = bench.sequenceOf(100);
  const wrong: readonly (() => unknown)[] = [
    () => sequence.truncate(101), () => sequence.truncate(-1), () => sequence.truncate(1.5), () => sequence.truncate(NaN),
    () => sequence.address(4), () => sequence.address(-1), () => sequence.view(4), () => sequence.view(0.5),
    () => cache.stamp(sequence, -1, 1, 1), () => cache.stamp(sequence, 0, 1025, 1), () => cache.stamp(sequence, 1024, 1, 1),
    () => cache.stamp(sequence, 0, 1, 0.5), () => cache.verifyStamp(sequence, 0, 1, NaN),
    () => sequence.release({ fence: { step: -1 } }), () => sequence.release({ fence: { step: 0.5 } }),
    () => sequence.release({ fence: { stream: 1 as never } }), () => sequence.release({ fence: {} as never }),
    () => sequence.release({ fence: 'now' as never }), () => sequence.release({ fence: null as never }),
    () => cache.acquire({ promptTokens: -1 }), () => cache.acquire({ promptTokens: 1.5 }),
    () => cache.acquire({ reserve: 'all' as never }), () => cache.acquire({ tenant: 3 as never }),
  ];
  for (const call of wrong) assertRefused(t, bench, 'KV_INVALID_OPTION', call);
  const unknown = [() => sequence.release({ fences: 1 } as never), () => cache.acquire({ promptToken: 1 } as never)];
  for (const call of unknown) assertRefused(t, bench, 'KV_UNKNOWN_OPTION', call);
  t.is(sequence.length, 100);
});

cacheTest('a sequence of another cache is refused', {}, (t, bench) => {
  using other = new KvCache(cacheOptions({}, bench.driver));
  const foreign = other.acquire();
  for (const call of [
    () => bench.cache.createBatch().add(foreign, 1), () => bench.cache.stamp(foreign, 0, 0, 1),
    () => bench.cache.verifyStamp(foreign, 0, 0, 1),
  ]) assertRefused(t, bench, 'KV_INVALID_OPTION', call);
});

cacheTests('only tokens that have memory can be stamped, up to the last of the last row', {}, (t, bench) => {
  const { cache } = bench;
  const sequence = bench.sequenceOf(1);
  t.is(cache.stamp(sequence, 0, rowTokens, 1), rowTokens * 4096, 'bytes written: 1,024 in each of 4 tensors');
  const error = t.throws(() => cache.stamp(sequence, 0, rowTokens + 1, 1), { code: 'KV_COPY_OUT_OF_RANGE' });
  t.like(error, { details: { call: 'stamp', bytes: (rowTokens + 1) * 4096 } });
  t.is(cache.verifyStamp(sequence, 0, rowTokens, 1), 0);
  t.is(cache.verifyStamp(sequence, 0, rowTokens, 1n), 0, 'keys may be bigints');
  t.is(cache.verifyStamp(sequence, 0, 0, 2), 0);
  cache.stamp(sequence, 10, 5, -7);
  t.is(cache.verifyStamp(sequence, 0, rowTokens, 1), 5);
  t.is(cache.verifyStamp(sequence, 10, 5, -7), 0);
});
