// Batches: what each method does in each state, and that a batch prepares and commits exactly what was added to it.

import { KvCache, type Batch } from 'virtual-kv';

import { cacheOptions, cacheTest, cacheTests, rowTokens, type CacheBench } from '../helpers/cache.js';

function prepared(bench: CacheBench): Batch {
  const batch = bench.batchOf([bench.sequenceOf(10), 1]);
  bench.cache.prepare(batch);
  return batch;
}

/** Brings a new batch into a state. */
const states = {
  'empty': ({ cache }) => cache.createBatch(),
  'filled': (bench) => bench.batchOf([bench.sequenceOf(10), 1]),
  prepared,
  'prepared and empty': ({ cache }) => {
    const batch = cache.createBatch();
    cache.prepare(batch);
    return batch;
  },
  'committed': (bench) => {
    const batch = prepared(bench);
    bench.cache.commit(batch);
    return batch;
  },
  'discarded': (bench) => {
    const batch = prepared(bench);
    bench.cache.discard(batch);
    return batch;
  },
  'filled with a released sequence': (bench) => {
    const sequence = bench.sequenceOf(10);
    const batch = bench.batchOf([sequence, 1]);
    sequence.release();
    return batch;
  },
  'filled, its sequence prepared elsewhere': (bench) => {
    const sequence = bench.sequenceOf(10);
    const batch = bench.batchOf([sequence, 1]);
    bench.cache.prepare(bench.batchOf([sequence, 1]));
    return batch;
  },
  'prepared, its sequence released': (bench) => {
    const sequence = bench.sequenceOf(10);
    const batch = bench.batchOf([sequence, 1]);
    bench.cache.prepare(batch);
    sequence.release();
    return batch;
  },
} satisfies Readonly<Record<string, (bench: CacheBench) => Batch>>;

type State = keyof typeof states;

const whilePrepared = {
  'prepared': 'KV_BATCH_STATE', 'prepared and empty': 'KV_BATCH_STATE', 'prepared, its sequence released': 'KV_BATCH_STATE',
} as const;
const unlessPrepared = {
  'empty': 'KV_BATCH_STATE', 'filled': 'KV_BATCH_STATE', 'committed': 'KV_BATCH_STATE', 'discarded': 'KV_BATCH_STATE',
  'filled with a released sequence': 'KV_BATCH_STATE', 'filled, its sequence prepared elsewhere': 'KV_BATCH_STATE',
} as const;

const methods: Readonly<Record<string, {
  readonly call: (batch: Batch, bench: CacheBench) => unknown;
  readonly except?: Readonly<Partial<Record<State, string>>>;
}>> = {
  'add': { call: (batch, { cache }) => batch.add(cache.acquire(), 1), except: whilePrepared },
  'clear': { call: (batch) => batch.clear(), except: whilePrepared },
  'length': { call: ({ length }) => length },
  'isPrepared': { call: ({ isPrepared }) => isPrepared },
  'slotAt': {
    call: (batch) => [batch.slotAt(0), batch.tokensAt(0)],
    except: { 'empty': 'KV_INVALID_OPTION', 'prepared and empty': 'KV_INVALID_OPTION' },
  },
  'cache.prepare': {
    call: (batch, { cache }) => cache.prepare(batch),
    except: {
      ...whilePrepared, 'filled with a released sequence': 'KV_SLOT_RELEASED',
      'filled, its sequence prepared elsewhere': 'KV_SLOT_BUSY',
    },
  },
  'cache.commit': { call: (batch, { cache }) => cache.commit(batch), except: unlessPrepared },
  'cache.discard': { call: (batch, { cache }) => cache.discard(batch), except: unlessPrepared },
};

for (const [method, { call, except = {} }] of Object.entries(methods)) {
  for (const [state, enter] of Object.entries(states)) {
    const code = except[state as State];
    cacheTest(`\`${method}\` of a batch that is ${state} ${code === undefined ? 'is allowed' : `is ${code}`}`, {}, (t, bench) => {
      const batch = enter(bench);
      if (code === undefined) {
        t.notThrows(() => call(batch, bench));
        return;
      }
      const wasPrepared = batch.isPrepared;
      const { length } = batch;
      t.throws(() => call(batch, bench), { code });
      t.is(batch.isPrepared, wasPrepared);
      t.is(batch.length, length);
    });
  }
}

cacheTests('a commit advances every sequence by its own tokens', {}, (t, bench) => {
  const { cache } = bench;
  const [first, second, third] = [cache.acquire(), bench.sequenceOf(10), bench.sequenceOf(20)];
  const batch = bench.batchOf([third, 3], [first, 1], [second, 2]);
  t.deepEqual([0, 1, 2].map((index) => batch.slotAt(index)), [third.slot, first.slot, second.slot]);
  t.deepEqual([0, 1, 2].map((index) => batch.tokensAt(index)), [3, 1, 2]);
  cache.prepare(batch);
  t.deepEqual([first.length, second.length, third.length], [0, 10, 20], 'not before the commit');
  cache.commit(batch);
  t.deepEqual([first.length, second.length, third.length], [1, 12, 23]);
  cache.prepare(batch);
  cache.commit(batch);
  t.deepEqual([first.length, second.length, third.length], [2, 14, 26], 'a batch that is not cleared can run again');
});

cacheTests('a batch grows beyond its capacity', { slots: 40, rows: 50 }, (t, { cache }) => {
  const batch = cache.createBatch(1);
  const sequences = Array.from({ length: 40 }, () => cache.acquire());
  for (const [index, sequence] of sequences.entries()) batch.add(sequence, index + 1);
  t.is(batch.length, 40);
  cache.prepare(batch);
  cache.commit(batch);
  t.deepEqual(sequences.map(({ length }) => length), sequences.map((_, index) => index + 1));
});

cacheTests('a sequence is in a batch once, also when it was added to another in between', {}, (t, bench) => {
  const { cache } = bench;
  const sequence = bench.sequenceOf(rowTokens);
  const [one, two] = [cache.createBatch(), cache.createBatch()];
  one.add(sequence, 1);
  two.add(sequence, 1);
  for (const batch of [one, two]) t.throws(() => batch.add(sequence, 1), { code: 'KV_BATCH_STATE' });
  t.is(one.length, 1);
  one.clear();
  one.add(sequence, 2);
  cache.prepare(one);
  t.throws(() => cache.prepare(two), { code: 'KV_SLOT_BUSY' });
  cache.commit(one);
  cache.prepare(two);
  cache.commit(two);
  t.is(sequence.length, rowTokens + 3);
});

cacheTests('a refused batch leaves every sequence free for another one', {}, (t, bench) => {
  const { cache } = bench;
  const [first, second] = [bench.sequenceOf(1), bench.sequenceOf(1)];
  const batch = bench.batchOf([first, 1], [second, 1]);
  second.release();
  t.like(t.throws(() => cache.prepare(batch), { code: 'KV_SLOT_RELEASED' }), { details: { slot: second.slot } });
  bench.compute(first, 1);
  t.is(first.length, 2);
});

cacheTests('tokens beyond `maxTokens` are refused at `add`, and at `prepare` when the length has changed since', {}, (t, bench) => {
  const { cache } = bench;
  const sequence = bench.sequenceOf(1000);
  const batch = cache.createBatch();
  const refused = { code: 'KV_LENGTH_OUT_OF_RANGE', instanceOf: RangeError };
  t.like(t.throws(() => batch.add(sequence, 25), refused), { details: { slot: sequence.slot, tokens: 1025, maxTokens: 1024 } });
  t.is(batch.length, 0);
  batch.add(sequence, 24);
  bench.compute(sequence, 1);
  t.throws(() => cache.prepare(batch), refused);
  sequence.truncate(1000);
  cache.prepare(batch);
  cache.commit(batch);
  t.is(sequence.length, 1024);
});

cacheTests('a sequence released after `prepare` is passed over by `commit`, and the others advance', {}, (t, bench) => {
  const { cache } = bench;
  const [first, second] = [bench.sequenceOf(10), bench.sequenceOf(10)];
  const batch = bench.batchOf([first, 1], [second, 1]);
  cache.prepare(batch);
  first.release();
  t.like(cache.counts(), { retiringSlots: 1, activeSlots: 1 });
  cache.commit(batch);
  t.is(second.length, 11);
  t.like(cache.counts(), { retiringSlots: 0, idleSlots: 7 });
});

cacheTest('a batch of another cache is refused', {}, (t, bench) => {
  using other = new KvCache(cacheOptions({}, bench.driver));
  const foreign = other.createBatch();
  for (const call of [
    () => bench.cache.prepare(foreign), () => bench.cache.commit(foreign), () => bench.cache.discard(foreign),
  ]) t.throws(call, { code: 'KV_BATCH_STATE' });
});

cacheTest('a capacity may be none, and large', {}, (t, { cache }) => {
  t.is(cache.createBatch(0).length, 0);
  t.is(cache.createBatch(10 ** 9).length, 0);
});
