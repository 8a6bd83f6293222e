// What a match finds: how many tokens, in which rows, what is pending, and for how long that is true. Rows of 4 tokens where nothing
// else is said.

import test from 'ava';

import { sharedDomain, type PrefixHit } from '#internal/prefix/index.js';
import { cache, join, openPath, owned, run } from './texts.js';

function facts({ tokens, wholeRows, tailRow, isTailWhole, pendingTokens }: PrefixHit): object {
  return { tokens, wholeRows, tailRow, isTailWhole, pendingTokens };
}

test('a match is never longer than its limit, and names its whole rows and the tail row', (t) => {
  const owner = owned();
  cache(owner, run(0, 10));
  const { index } = owner;
  const at = (limit: number): object => {
    const { tokens, wholeRows, tailRow, isTailWhole } = index.match(sharedDomain, run(0, 10), limit);
    return { tokens, wholeRows, hasTail: tailRow >= 0, isTailWhole };
  };
  t.deepEqual(at(10), { tokens: 10, wholeRows: 2, hasTail: true, isTailWhole: true });
  t.deepEqual(at(9), { tokens: 9, wholeRows: 2, hasTail: true, isTailWhole: false });
  t.deepEqual(at(8), { tokens: 8, wholeRows: 2, hasTail: false, isTailWhole: false });
  t.deepEqual(at(0), { tokens: 0, wholeRows: 0, hasTail: false, isTailWhole: false });
});

test('of a text of no tokens nothing is found', (t) => {
  const owner = owned();
  const { tokens, wholeRows, pendingTokens } = owner.index.match(sharedDomain, new Int32Array(0));
  t.deepEqual([tokens, wholeRows, pendingTokens], [0, 0, 0]);
});

test('a hit that is shortened is what a match with that limit finds', (t) => {
  for (const shape of [{}, { tokenUnits: 3, rowUnits: 8 }]) {
    const owner = owned(shape);
    for (const first of [100, 200]) cache(owner, join(run(0, 6), run(first, 9)));
    const running = owner.acquire(join(run(0, 6), run(100, 20)), { isAnnounced: true });
    owner.commit(running, 22);
    const text = running.text;
    for (let tokens = 24; tokens >= 0; tokens -= 1) {
      const expected = facts(owner.index.match(sharedDomain, text, tokens));
      const hit = owner.index.match(sharedDomain, text);
      for (let limit = 25; limit >= tokens; limit -= 1) hit.limitTo(limit);
      t.deepEqual(facts(hit), expected, `${tokens} tokens`);
    }
  }
});

test('a hit cannot be opened once the index has changed, unless it found nothing', (t) => {
  const owner = owned();
  cache(owner, run(0, 10));
  const { index } = owner;
  const rows = new Int32Array(8).fill(-1);
  const path = openPath(index, run(0, 10), 10, rows);
  const changes: (() => unknown)[] = [
    () => { index.commit(path, run(0, 10), 10); }, () => { index.truncate(path, 10); }, () => { index.splitAt(path); },
    () => index.keepValue(path, 1), () => { index.replaceDuplicates(() => false); }, () => index.evict(1),
    () => { index.release(index.fork(path, rows.slice())); }, () => index.clear(), () => { index.release(path); },
  ];
  for (const change of changes) {
    const hit = index.match(sharedDomain, run(0, 12));
    t.is(hit.tokens, 10);
    change();
    t.throws(() => index.open(hit, { rows, isStored: true, level: 0 }), { code: 'KV_INTERNAL' }, String(change));
  }
  const hit = index.match(sharedDomain, run(900, 4));
  index.evict(9);
  t.is(index.open(hit, { rows, isStored: true, level: 0 }).length, 0);
  index.verify();
});

test('a text that a running sequence has announced is pending until it is committed', (t) => {
  const { index } = owned();
  const pending = (text: Int32Array, limit = text.length): number => index.match(sharedDomain, text, limit).pendingTokens;
  const path = openPath(index, run(0, 12), 11, Int32Array.from([0, 1, 2, 3]), true);
  t.is(pending(run(0, 12)), 12);
  t.is(pending(run(0, 12), 7), 7, 'not more than the limit');
  t.is(pending(join(run(0, 5), run(70, 5))), 5, 'as far as it is the same');
  t.is(pending(run(3, 5)), 0);
  index.commit(path, run(0, 12), 6);
  t.is(pending(run(0, 12)), 12);
  t.is(pending(join(run(0, 5), run(70, 5))), 0, 'it is there now');
  index.commit(path, run(0, 12), 12);
  t.is(pending(run(0, 12)), 0);
  index.release(path);
});

test('what a sequence announced is pending no longer once it is released', (t) => {
  const { index } = owned();
  const path = openPath(index, run(0, 12), 11, new Int32Array(3).fill(-1), true);
  index.release(path);
  t.is(index.match(sharedDomain, run(0, 12)).pendingTokens, 0);
  t.is(index.nodes, 0);
});

test('matching reads each token once, however much is cached', (t) => {
  const owner = owned();
  for (let text = 0; text < 200; text += 1) cache(owner, join(run(0, 40), run(1000 * text, 20)));
  let reads = 0;
  const text = new Proxy(join(run(0, 40), run(5000, 20)), {
    get: (target, name) => {
      if (typeof name === 'string' && /^\d+$/.test(name)) reads += 1;
      return Reflect.get(target, name, target) as unknown;
    },
  });
  t.is(owner.index.match(sharedDomain, text, 60).tokens, 60);
  t.true(reads <= 60 + 2, `${reads} reads: one for each token and one for each node`);
});
