// What the prefix index promises, one behaviour at a time, with rows of 4 tokens where nothing else is
// said.

import test from 'ava';

import { prefixDomain, PrefixIndex, rowArithmetic } from '#internal/prefix/index.js';
import { cache, join, openPath, owned, run } from './texts.js';

test('what a released sequence committed is found again, to the token', (t) => {
  const owner = owned();
  t.is(owner.cached(run(0, 10)), 0);
  cache(owner, run(0, 10));
  t.is(owner.cached(run(0, 10)), 10);
  t.is(owner.cached(run(0, 7)), 7, 'a shorter text');
  t.is(owner.cached(join(run(0, 6), run(50, 6))), 6, 'a text that differs inside a row');
  t.is(owner.cached(run(1, 9)), 0, 'a text that starts otherwise');
  t.deepEqual([owner.index.heldRows, owner.index.pooledRows, owner.index.textTokens], [3, 3, 10]);
});

test('what a running sequence has committed is found, and no token more', (t) => {
  const owner = owned();
  const sequence = owner.acquire(run(0, 20));
  for (const length of [1, 4, 5, 11]) {
    owner.commit(sequence, length);
    t.is(owner.cached(run(0, 20)), length);
  }
  t.is(owner.index.pooledRows, 0);
});

test('sequences with the same start share its whole rows and have a partial row each', (t) => {
  const owner = owned();
  cache(owner, run(0, 10));
  const one = owner.acquire(join(run(0, 10), run(20, 5)));
  const other = owner.acquire(join(run(0, 10), run(30, 5)));
  t.deepEqual([...one.rows.subarray(0, 2)], [...other.rows.subarray(0, 2)]);
  t.not(one.rows[2], other.rows[2]);
  owner.commit(one, 15);
  owner.commit(other, 15);
  owner.verify();
  t.is(owner.cached(join(run(0, 10), run(20, 5))), 15);
  t.is(owner.cached(join(run(0, 10), run(30, 5))), 15);
  t.is(owner.index.heldRows, 2 + 2 * 2, 'the row across the branching point exists once below each branch');
});

test('of two sequences that compute the same text, only the rows of the first are held', (t) => {
  const owner = owned();
  const [first, second] = [owner.acquire(run(0, 8)), owner.acquire(run(0, 8))];
  owner.commit(first, 8);
  owner.commit(second, 8);
  t.deepEqual([...second.rows.subarray(0, 2)].map((row) => owner.index.isHolding(row)), [false, false]);
  owner.release(second);
  t.deepEqual(owner.takeDrops(), [], 'rows that were never held are not dropped');
  t.is(owner.freeRows, 2);
  owner.release(first);
  t.is(owner.index.pooledRows, 2);
});

test('of three sequences that compute the same text, the rows of one that runs on are held once the first is released', (t) => {
  const owner = owned();
  const [first, second, third] = [owner.acquire(run(0, 24)), owner.acquire(run(0, 24)), owner.acquire(run(0, 24))];
  owner.commit(first, 24);
  const branch = owner.acquire(join(run(0, 13), run(30, 8)));
  owner.commit(branch, 21);
  owner.commit(second, 18);
  owner.commit(third, 9);
  const held = (): string[] => [first, second, third].map(({ rows }) =>
    [...rows.subarray(0, 6)].map((row) => (owner.index.isHolding(row) ? 'x' : '.')).join(''));
  t.deepEqual(held(), ['xxxxxx', '......', '......']);
  owner.release(first);
  t.deepEqual(held().slice(1), ['...x..', '......'], 'the branch uses the first three rows');
  t.deepEqual(owner.takeDrops().map(({ reason }) => reason), ['replaced']);
  owner.release(branch);
  t.deepEqual(held().slice(1), ['xxxx..', '......']);
  for (const [text, tokens] of [[run(0, 24), 24], [join(run(0, 13), run(30, 8)), 21]] as const) t.is(owner.cached(text), tokens);
  owner.verify();
  owner.release(second);
  t.deepEqual(held().slice(2), ['xx....']);
  owner.release(third);
  t.deepEqual(owner.takeDrops().map(({ reason }) => reason), Array<string>(5).fill('replaced'));
  t.is(owner.index.pooledRows, owner.index.heldRows);
  owner.verify();
});

test('a duplicate that goes on is attached behind rows that are not its own', (t) => {
  const owner = owned();
  const [first, second] = [owner.acquire(run(0, 16)), owner.acquire(run(0, 16))];
  owner.commit(first, 8);
  owner.commit(second, 8);
  owner.commit(second, 16);
  t.is(owner.cached(run(0, 16)), 16);
  owner.verify();
});

test('the partial row of a text gives way to a fuller one of a sequence that goes on', (t) => {
  const owner = owned();
  cache(owner, run(0, 6));
  const sequence = owner.acquire(run(0, 9));
  owner.takeDrops();
  owner.commit(sequence, 9);
  t.deepEqual(owner.takeDrops().map(({ reason }) => reason), ['replaced']);
  t.is(owner.index.heldRows, 3);
});

test('a sequence that is not stored uses what is cached and adds nothing', (t) => {
  const owner = owned();
  cache(owner, run(0, 8));
  const sequence = owner.acquire(run(0, 16), { isStored: false });
  t.is(sequence.path.length, 8);
  owner.commit(sequence, 16);
  t.is(owner.cached(run(0, 16)), 8);
  t.is(owner.evict(9), 0, 'its text is in use');
  owner.release(sequence);
  t.is(owner.evict(9), 2);
});

test('domains do not share, whichever part differs', (t) => {
  const owner = owned();
  const parts = [
    {}, { tenant: 'a' }, { salt: 'a' }, { adapter: 'a' }, { namespace: 'a' }, { tenant: '' }, { tenant: 'a', salt: 'a' },
  ].map((part) => prefixDomain(part));
  for (const [index, domain] of parts.entries()) {
    t.is(owner.cached(run(0, 8), domain), 0);
    cache(owner, run(0, 8), domain);
    t.is(owner.index.heldRows, 2 * (index + 1));
  }
  t.is(owner.clear(parts[1]), 2);
  t.deepEqual(parts.map((domain) => owner.cached(run(0, 8), domain)), [8, 0, 8, 8, 8, 8, 8]);
});

test('a fork shares the whole rows, and both go on alone', (t) => {
  const owner = owned();
  const parent = owner.acquire(run(0, 12));
  owner.commit(parent, 6);
  const child = owner.fork(parent);
  t.is(child.path.length, 6);
  t.is(child.rows[0], parent.rows[0]);
  child.text = join(run(0, 6), run(40, 6));
  owner.commit(child, 12);
  owner.commit(parent, 12);
  owner.verify();
  owner.release(parent);
  t.is(owner.cached(run(0, 12)), 12);
  t.is(owner.evict(9), 2, 'what the child does not use');
  t.is(owner.cached(child.text), 12);
});

test('tokens that a sequence takes back are not found any more, and can be written anew', (t) => {
  const owner = owned();
  const sequence = owner.acquire(run(0, 12));
  owner.commit(sequence, 11);
  owner.truncate(sequence, 5);
  t.is(owner.cached(run(0, 12)), 5);
  t.true(owner.index.isWritable(sequence.path, 1), 'the row is its own');
  sequence.text = join(run(0, 5), run(90, 7));
  owner.commit(sequence, 12);
  t.is(owner.cached(sequence.text), 12);
  t.is(owner.cached(run(0, 12)), 5);
  owner.verify();
});

test('a sequence that takes back tokens within its last row keeps the row', (t) => {
  const owner = owned();
  const sequence = owner.acquire(run(0, 12));
  owner.commit(sequence, 11);
  owner.truncate(sequence, 9);
  t.deepEqual(owner.takeDrops(), []);
  owner.truncate(sequence, 7);
  t.deepEqual(owner.takeDrops(), [{ row: sequence.rows[2], reason: 'truncated' }], 'the row that had been whole stays');
  owner.release(sequence);
  t.is(owner.cached(run(0, 12)), 7);
});

test('branches that are gone leave no trace', (t) => {
  const owner = owned();
  const long = run(0, 40);
  const sequence = owner.acquire(long);
  owner.commit(sequence, 40);
  for (let at = 1; at < 40; at += 1) cache(owner, join(long.subarray(0, at), run(100 * at, 8)));
  owner.release(sequence);
  const withBranches = owner.index.nodes;
  owner.clear();
  t.is(owner.index.nodes, 0);
  cache(owner, long);
  for (let at = 1; at < 40; at += 1) {
    const branch = owner.acquire(join(long.subarray(0, at), run(100 * at, 8)));
    owner.commit(branch, at + 8);
    owner.truncate(branch, at);
    owner.release(branch);
  }
  t.true(owner.index.nodes <= 1 + 2 * owner.index.heldRows, `${owner.index.nodes} of ${withBranches} nodes, ${owner.index.heldRows} rows`);
  owner.verify();
});

test('tokens that another sequence uses stay when one takes them back, and their row cannot be written', (t) => {
  const owner = owned();
  const first = owner.acquire(run(0, 12));
  owner.commit(first, 11);
  const second = owner.acquire(run(0, 12), { limit: 11 });
  owner.truncate(first, 5);
  t.is(owner.cached(run(0, 12)), 11);
  t.false(owner.index.isWritable(first.path, 1));
  t.true(owner.index.isWritable(second.path, 2), 'its own copy of the tail');
  first.text = join(run(0, 5), run(90, 7));
  owner.commit(first, 12);
  owner.verify();
  t.is(owner.cached(run(0, 12)), 11);
});

test('what was cached before a sequence came stays when it takes tokens back', (t) => {
  const owner = owned();
  cache(owner, run(0, 12));
  const sequence = owner.acquire(run(0, 20));
  owner.commit(sequence, 20);
  owner.truncate(sequence, 3);
  t.is(owner.cached(run(0, 20)), 12);
  owner.release(sequence);
  t.is(owner.cached(run(0, 20)), 12);
});

test('what another sequence computed first stays when a duplicate takes tokens back', (t) => {
  const owner = owned();
  const [first, second] = [owner.acquire(run(0, 8)), owner.acquire(run(0, 8))];
  owner.commit(first, 8);
  owner.release(first);
  owner.commit(second, 8);
  owner.truncate(second, 3);
  t.is(owner.cached(run(0, 8)), 8);
});

test('tokens whose row is gone are not found until a sequence has one for them', (t) => {
  const owner = owned();
  for (const first of [100, 200]) cache(owner, join(run(0, 6), run(first, 4)));
  const withoutRow = openPath(owner.index, run(0, 6), 6, new Int32Array(2).fill(-1));
  t.is(withoutRow.length, 6);
  const second = owner.acquire(run(0, 6), { limit: 0 });
  owner.evict(9);
  t.is(owner.cached(run(0, 6)), 4);
  owner.commit(second, 6);
  t.is(owner.cached(run(0, 6)), 6);
  owner.index.release(withoutRow);
  owner.verify();
});

test('clear drops what no sequence uses and leaves the rest', (t) => {
  const owner = owned();
  cache(owner, join(run(0, 8), run(20, 8)));
  cache(owner, join(run(0, 8), run(30, 8)));
  const sequence = owner.acquire(join(run(0, 8), run(40, 3)));
  owner.commit(sequence, 11);
  t.is(owner.clear(), 4);
  t.deepEqual([...new Set(owner.takeDrops().map(({ reason }) => reason))], ['cleared']);
  t.is(owner.cached(sequence.text), 11);
  owner.release(sequence);
  t.is(owner.clear(), 3);
  t.is(owner.index.nodes, 0);
});

test('a pool of no rows keeps nothing after release', (t) => {
  const owner = owned({ poolRows: 0 });
  cache(owner, run(0, 10));
  t.deepEqual(owner.takeDrops().map(({ reason }) => reason), ['bound', 'bound', 'bound']);
  t.deepEqual([owner.index.heldRows, owner.index.nodes, owner.freeRows], [0, 0, 3]);
});

test('a match changes nothing: neither what is cached nor what is evicted next', (t) => {
  const owner = owned();
  cache(owner, run(0, 4));
  cache(owner, run(100, 4));
  for (let time = 0; time < 3; time += 1) owner.cached(run(0, 4));
  owner.evict(1);
  t.is(owner.cached(run(0, 4)), 0);
  t.is(owner.cached(run(100, 4)), 4);
});

test('a row that the index holds for other tokens is not taken again', (t) => {
  const index = new PrefixIndex({ arithmetic: rowArithmetic({ tokenBytes: 1, pageBytes: 4 }) });
  const first = openPath(index, run(0, 4), 4, Int32Array.of(7));
  index.commit(first, run(0, 4), 4);
  const second = openPath(index, run(50, 4), 4, Int32Array.of(7));
  t.throws(() => { index.commit(second, run(50, 4), 4); }, { code: 'KV_INTERNAL' });
  const third = openPath(index, run(60, 4), 4, Int32Array.of(-1));
  t.throws(() => { index.commit(third, run(60, 4), 4); }, { code: 'KV_INTERNAL' });
  index.verify();
  index.release(first);
  t.throws(() => { index.release(first); }, { code: 'KV_INTERNAL' });
});

test('a conversation that goes on turn by turn is one text', (t) => {
  const owner = owned();
  for (let turn = 1; turn <= 20; turn += 1) {
    const sequence = owner.acquire(run(0, 10 * turn), { limit: 10 * turn - 1 });
    t.is(sequence.path.length, 10 * (turn - 1));
    owner.commit(sequence, 10 * turn);
    owner.release(sequence);
  }
  t.is(owner.index.textTokens, 200);
  t.is(owner.index.heldRows, 50);
  owner.verify();
});
