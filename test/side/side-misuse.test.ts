// What callers may get wrong with side tensors: a typed error before anything changes, and never rows of another text.

import test from 'ava';

import { KvCache, type Batch, type Sequence } from 'virtual-kv';

import { refuses } from '../helpers/refuses.js';
import { SideSpeaker, type Spoken } from './side-speaker.js';

const text = [1, 2, 3, 4, 5, 6, 7, 8];

function open(options: Partial<ConstructorParameters<typeof KvCache>[0]> = {}): KvCache {
  return new KvCache({
    model: { layers: 1, kvHeads: 1, headDim: 64, dtype: 'float32' }, slots: 3, maxTokens: 256, memoryBudgetBytes: 2 ** 23, driver: 'host',
    pageBytes: 65_536, mapper: 'off', sideTensors: { hidden: { width: 8, dtype: 'float32' }, code: { width: 2, dtype: 'int8' } }, ...options,
  });
}

/** A batch with so many tokens of each sequence. */
function batchOf(cache: KvCache, ...added: readonly (readonly [Sequence, number])[]): Batch {
  const batch = cache.createBatch();
  for (const [sequence, tokens] of added) batch.add(sequence, tokens);
  return batch;
}

test('where the rows of one tensor are refused, those of the others do not count as written', (t) => {
  using cache = open();
  const sequence = cache.acquire({ tokens: text });
  const batch = batchOf(cache, [sequence, 4]);
  cache.prepare(batch);
  const hidden = new Float32Array(4 * 8);
  t.throws(() => cache.writeSide(batch, { hidden, code: new Int8Array(7) }), { code: 'KV_INVALID_OPTION' });
  t.is(sequence.sideTokens('hidden'), 0);
  cache.writeSide(batch, { hidden, code: new Int8Array(8) });
  t.deepEqual([sequence.sideTokens('hidden'), sequence.sideTokens('code')], [4, 4]);
  cache.commit(batch);
});

test('a policy cannot close a hand-over while it decides', (t) => {
  let decide = (): void => {};
  using cache = open({ growth: (length) => (decide(), length) });
  const sequence = cache.acquire({ tokens: text });
  using handOver = sequence.handOver();
  const batch = batchOf(cache, [sequence, 4]);
  cache.prepare(batch);
  let refusals = 0;
  decide = () => {
    t.throws(() => { handOver.close(); }, { code: 'KV_POLICY_REENTRY' });
    refusals += 1;
  };
  cache.commit(batch);
  t.deepEqual([refusals, handOver.isClosed], [1, false]);
});

test('rows are written between prepare and commit, for the prepared tokens, and in order', (t) => {
  using cache = open();
  const sequence = cache.acquire({ tokens: text });
  const batch = batchOf(cache, [sequence, 4]);
  const rows = (tokens: number): { hidden: Float32Array } => ({ hidden: new Float32Array(8 * tokens) });
  t.throws(() => cache.writeSide(batch, rows(4)), { code: 'KV_BATCH_STATE' });
  t.throws(() => sequence.writeSide(0, rows(1)), { code: 'KV_SIDE_STATE', message: /end at 0/ });
  cache.prepare(batch);
  t.throws(() => sequence.writeSide(0, rows(5)), { code: 'KV_SIDE_STATE', message: /end at 4/ });
  t.throws(() => sequence.writeSide(2, rows(2)), { code: 'KV_SIDE_STATE', message: /tokens 0 to 1/ });
  sequence.writeSide(0, rows(2));
  sequence.writeSide(2, rows(2));
  cache.commit(batch);
  t.throws(() => cache.writeSide(batch, rows(4)), { code: 'KV_BATCH_STATE' });
  t.throws(() => sequence.writeSide(3, rows(1)), { code: 'KV_SIDE_STATE', message: /token 3/ });
  cache.prepare(batch);
  cache.commit(batch); // without rows: the tensor ends here for this sequence
  batch.clear();
  batch.add(sequence, 1);
  cache.prepare(batch);
  t.throws(() => cache.writeSide(batch, rows(1)), { code: 'KV_SIDE_STATE', message: /tokens 4 to 7/ });
  cache.discard(batch);
  t.is(cache.prefixes.lookup({ tokens: [...text, 9], needs: ['hidden'] }).cachedTokens, 4, 'and what was written stays');
});

test('rows for a batch or under a name of another cache are refused', (t) => {
  using cache = open();
  using other = open({ sideTensors: { theirs: { width: 8, dtype: 'float32' } } });
  const sequence = other.acquire({ tokens: text });
  const batch = batchOf(other, [sequence, 4]);
  other.prepare(batch);
  const rows = new Float32Array(32);
  refuses(t, () => cache.writeSide(batch, { hidden: rows }), 'KV_BATCH_STATE', { problem: 'belongs to another cache' });
  t.throws(() => other.writeSide(batch, { hidden: rows }), { code: 'KV_INVALID_OPTION' });
  other.writeSide(batch, { theirs: rows });
  other.commit(batch);
  using handOver = sequence.handOver();
  t.throws(() => handOver.rows('hidden'), { code: 'KV_INVALID_OPTION' });
  t.deepEqual(handOver.rows('theirs'), rows);
});

test('a sequence reads and writes only what it carries, and only while it has its slot', (t) => {
  using cache = open();
  const sequence = cache.acquire({ tokens: text, needs: ['hidden'] });
  refuses(t, () => sequence.sideTokens('code'), 'KV_SIDE_STATE', { operation: 'read', sideTensor: 'code' });
  t.throws(() => sequence.handOver(['code']), { code: 'KV_SIDE_STATE' });
  const plain = cache.acquire({ tokens: text, needs: [] });
  t.throws(() => plain.handOver(), { code: 'KV_SIDE_STATE' });
  sequence.release();
  t.throws(() => sequence.writeSide(0, {}), { code: 'KV_SLOT_RELEASED' });
  t.throws(() => sequence.handOver(), { code: 'KV_SLOT_RELEASED' });
  t.throws(() => sequence.sideTokens('hidden'), { code: 'KV_SLOT_RELEASED' });
});

test('a hand-over reads what was committed, and nothing once it is closed or its cache is', (t) => {
  const cache = open();
  const speaker = new SideSpeaker(open({ sideTensors: { hidden: { width: 8, dtype: 'float32' } } }));
  t.is(speaker.wrongRows(speaker.say(text).sequence.handOver(), text), 0);
  const sequence = cache.acquire({ tokens: text });
  const handOver = sequence.handOver(['hidden']);
  t.is(handOver.tokens, 0);
  const batch = batchOf(cache, [sequence, 4]);
  cache.prepare(batch);
  cache.writeSide(batch, { hidden: new Float32Array(32).fill(3), code: new Int8Array(8) });
  t.is(handOver.tokens, 0, 'not before commit');
  cache.commit(batch);
  t.is(handOver.tokens, 4);
  t.throws(() => handOver.rows('code'), { code: 'KV_SIDE_STATE' });
  const rows = handOver.rows('hidden', 1, 3);
  t.deepEqual([...rows], new Array<number>(16).fill(3));
  t.true(handOver.address('hidden') > 0n);
  handOver.close();
  handOver.close();
  sequence.release();
  t.is(rows.length, 0, 'a view does not outlive what it shows');
  t.throws(() => handOver.tokens, { code: 'KV_SIDE_STATE', message: /closed/ });
  const second = cache.acquire({ tokens: text }).handOver();
  cache.close();
  t.throws(() => second.tokens, { code: 'KV_CLOSED' });
  t.notThrows(() => second.close());
});

test('rows under a hand-over outlive release, eviction and the next use of the slot', (t) => {
  using cache = open({ slots: 1, sideTensors: { hidden: { width: 8, dtype: 'float32' } }, handOverSlots: 2 });
  const speaker = new SideSpeaker(cache);
  const texts = [text, [50, 51, 52, 53], [60, 61, 62, 63, 64]];
  const handOvers = texts.slice(0, 2).map((one) => {
    const { sequence } = speaker.say(one);
    const handOver = sequence.handOver();
    sequence.release();
    t.true(handOver.isComplete);
    return handOver;
  });
  cache.prefixes.reset();
  t.is(cache.sideCounts().leasedSlots, 2);
  speaker.cacheText(texts[2]!);
  handOvers.forEach((handOver, index) => t.is(speaker.wrongRows(handOver, texts[index]!), 0));

  const last = speaker.say(texts[2]!).sequence;
  const third = last.handOver();
  last.release();
  refuses(t, () => cache.acquire({ tokens: text }), 'KV_NO_FREE_SLOT', { slots: 3, leasedSlots: 3 });
  t.notThrows(() => cache.acquire({ tokens: text, needs: [] }).release());
  handOvers[0]!.close();
  t.notThrows(() => cache.acquire({ tokens: text }).release());
  third.close();
  handOvers[1]!.close();
  cache.verify();
});

test('a fork that lacks a side slot leaves the idle rows of the slot that it would have had', (t) => {
  using cache = open({ slots: 2, handOverSlots: 0 });
  const [sequence, gone] = [cache.acquire({ tokens: text }), cache.acquire({ tokens: text, caching: 'off' })];
  const batch = batchOf(cache, [sequence, 4], [gone, 4]);
  cache.prepare(batch);
  cache.commit(batch);
  const handOver = gone.handOver();
  gone.release();
  const before = cache.counts();
  t.is(before.idleRows, 1);
  t.throws(() => sequence.fork(), { code: 'KV_NO_FREE_SLOT' });
  t.deepEqual(cache.counts(), before);
  handOver.close();
  sequence.fork().release();
  sequence.release();
  cache.verify();
});

test('side tensors that no address space holds are refused, and a cache without any takes no needs', (t) => {
  t.throws(() => open({ sideTensors: { a: { width: 2 ** 20, dtype: 'float32' } }, maxTokens: 2 ** 30 }), { code: 'KV_OUT_OF_ADDRESS_SPACE' });
  using plain = open({ sideTensors: undefined });
  t.deepEqual([plain.sideTensors, plain.sideCounts()], [[], { budgetBytes: plain.sideCounts().budgetBytes, usedBytes: 0, heldBytes: 0, quarantinedBytes: 0, leasedSlots: 0, registeredBytes: 0, pageableBytes: 0 }]);
  t.throws(() => plain.acquire({ tokens: text, needs: ['hidden'] }), { code: 'KV_INVALID_OPTION', message: /left out/ });
});

test('writes refused for one sequence leave the rest of the batch as it was, which commits', (t) => {
  using cache = open({ sideTensors: { hidden: { width: 8, dtype: 'float32' } } });
  const speaker = new SideSpeaker(cache);
  const [first, second] = [speaker.say(text), speaker.say([9, 9, 9])];
  for (const { sequence } of [first, second]) sequence.append(1);
  const batch = batchOf(cache, [first.sequence, 1], [second.sequence, 1]);
  cache.prepare(batch);
  t.throws(() => cache.writeSide(batch, { hidden: new Float32Array(8) }), { code: 'KV_INVALID_OPTION' });
  second.sequence.release();
  first.text.push(1);
  cache.writeSide(batch, { hidden: Float32Array.from([...speaker.rowsOf([first], 1)['hidden']!, ...new Float32Array(8)]) });
  cache.commit(batch);
  using handOver = first.sequence.handOver();
  t.is(speaker.wrongRows(handOver, first.text), 0);
});

test('where the rows of one sequence of a batch are refused, both grow in K and V, and only the other has its rows', (t) => {
  const texts = [[1, 2, 3, 4, 5, 6], [9, 9, 9, 9]] as const;
  const wrong: readonly [string, number, (rows: Float32Array) => Parameters<Sequence['writeSide']>[1], string][] = [
    ['another width', 0, (rows) => ({ hidden: rows.subarray(1) }), 'KV_INVALID_OPTION'],
    ['another dtype', 0, (rows) => ({ hidden: new Uint16Array(rows.length) as never }), 'KV_INVALID_OPTION'],
    ['a row too many', 0, (rows) => ({ hidden: Float32Array.from([...rows, ...rows.subarray(0, 8)]) }), 'KV_SIDE_STATE'],
    ['behind a gap', 1, (rows) => ({ hidden: rows.subarray(8) }), 'KV_SIDE_STATE'],
  ];
  for (const [what, from, rowsOf, code] of wrong) {
    using cache = open({ sideTensors: { hidden: { width: 8, dtype: 'float32' } } });
    const speaker = new SideSpeaker(cache);
    const [one, two] = texts.map((tokens) => ({ sequence: cache.acquire({ tokens }), text: [...tokens] })) as [Spoken, Spoken];
    const batch = batchOf(cache, [one.sequence, 6], [two.sequence, 4]);
    cache.prepare(batch);
    t.throws(() => { one.sequence.writeSide(from, rowsOf(speaker.rowsOf([one], 6)['hidden']!)); }, { code }, what);
    two.sequence.writeSide(0, speaker.rowsOf([two], 4));
    cache.commit(batch);
    t.deepEqual([one, two].map(({ sequence }) => [sequence.length, sequence.sideTokens('hidden')]), [[6, 0], [4, 4]], what);
    const found = (text: readonly number[], needs?: readonly string[]): number => cache.prefixes.lookup({ tokens: [...text, 0], needs }).cachedTokens;
    t.deepEqual(texts.map((text) => [found(text, []), found(text)]), [[6, 0], [4, 4]], what);
    t.like(cache.prefixes.explain({ tokens: [...texts[0], 0] }), { reason: 'side-never-written', keyValueTokens: 6 }, what);
    using handOver = two.sequence.handOver();
    t.is(speaker.wrongRows(handOver, two.text), 0, what);
    cache.verify();
  }
});
