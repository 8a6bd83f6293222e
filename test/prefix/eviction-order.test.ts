// Which cached rows go first, and which never do. Rows of 4 tokens.

import test from 'ava';

import { lru, prefixDomain, rowArithmetic, sharedDomain, type EvictionPolicyFactory } from '#internal/prefix/index.js';
import { cache, join, owned, run } from './texts.js';

test('a text loses its end first, row by row', (t) => {
  const owner = owned();
  cache(owner, run(0, 14));
  for (const left of [12, 8, 4, 0]) {
    t.is(owner.evict(1), 1);
    t.is(owner.cached(run(0, 14)), left);
    owner.verify();
  }
  t.is(owner.evict(1), 0);
  t.is(owner.index.nodes, 0);
});

test('where a row ends inside a token, that token goes with either row', (t) => {
  const owner = owned({ tokenUnits: 3, rowUnits: 8 }); // 2⅔ tokens a row
  cache(owner, run(0, 8));
  for (const left of [5, 2, 0]) {
    t.is(owner.evict(1), 1);
    t.is(owner.cached(run(0, 8)), left);
    owner.verify();
  }
});

test('of several texts, the one used longest ago goes first', (t) => {
  const owner = owned();
  for (const first of [0, 100, 200]) cache(owner, run(first, 8));
  cache(owner, run(0, 8));
  t.is(owner.evict(3), 3);
  t.deepEqual([0, 100, 200].map((first) => owner.cached(run(first, 8))), [8, 0, 4]);
});

test('a shared start outlives all that goes on from it', (t) => {
  const owner = owned();
  const system = run(0, 8);
  for (const first of [100, 200, 300]) cache(owner, join(system, run(first, 8)));
  t.is(owner.evict(6), 6);
  t.is(owner.cached(system), 8);
  t.deepEqual([100, 200, 300].map((first) => owner.cached(join(system, run(first, 8)))), [8, 8, 8]);
  t.is(owner.evict(1), 1);
  t.is(owner.cached(system), 4);
  owner.verify();
});

test('a start that was used lately does not inherit the age of its only continuation', (t) => {
  const owner = owned();
  const system = run(0, 8);
  cache(owner, join(system, run(100, 8)));
  cache(owner, run(500, 8));
  cache(owner, system);
  t.is(owner.evict(4), 4);
  t.is(owner.cached(run(500, 8)), 0, 'older than the start, younger than its continuation');
  t.is(owner.cached(join(system, run(100, 8))), 8);
});

test('an eviction that ends inside a row shared by two branches leaves whole rows only', (t) => {
  const owner = owned();
  cache(owner, join(run(0, 6), run(100, 4)));
  cache(owner, join(run(0, 6), run(200, 4)));
  t.is(owner.index.heldRows, 5);
  t.is(owner.evict(4), 4);
  t.is(owner.cached(run(0, 6)), 4);
  owner.verify();
});

test('rows of running sequences are never evicted, nor is what their text needs', (t) => {
  const owner = owned();
  const sequence = owner.acquire(run(0, 10));
  owner.commit(sequence, 10);
  cache(owner, join(run(0, 10), run(50, 10)));
  t.is(owner.evict(100), 3, 'what only the released one had');
  t.is(owner.cached(run(0, 10)), 10);
  owner.verify();
});

test('a sequence keeps no rows from eviction that it did not find', (t) => {
  const owner = owned();
  cache(owner, run(0, 20));
  for (const isStored of [true, false]) {
    cache(owner, run(0, 20));
    const sequence = owner.acquire(run(0, 20), { limit: 9, isStored });
    t.is(owner.index.pooledRows, 2, 'the row it has copied from stays with it');
    t.is(owner.evict(9), 2);
    t.is(owner.cached(run(0, 20)), 12);
    owner.verify();
    owner.release(sequence);
  }
});

test('where a row ends inside a token, the row that a sequence has copied from stays with it as well', (t) => {
  const owner = owned({ tokenUnits: 3, rowUnits: 8 }); // 2⅔ tokens a row
  cache(owner, run(0, 16));
  owner.acquire(run(0, 16), { limit: 4 });
  t.is(owner.evict(9), 4);
  t.is(owner.cached(run(0, 16)), 5);
});

test('text that goes on from a released one has its own count of uses', (t) => {
  const uses: number[] = [];
  const owner = owned({
    policy: (context) => {
      const policy = lru()(context);
      return { ...bound(policy), add: (node) => { uses.push(context.nodes.uses[node]!); policy.add(node); } };
    },
  });
  for (let time = 1; time <= 3; time += 1) cache(owner, run(0, 4));
  cache(owner, run(0, 12));
  t.deepEqual(uses, [1, 2, 3, 1, 4]);
});

test('a policy is told of each request: its prompt, what of it was new, and its answer', (t) => {
  const told: object[] = [];
  const { index } = owned({
    policy: (context) => ({ ...bound(lru()(context)), observe: (_node, tokens, request) => { told.push({ tokens, ...request }); } }),
  });
  const arithmetic = rowArithmetic({ tokenBytes: 1, pageBytes: 4 });
  let rows = 0;
  const speak = (text: Int32Array, promptTokens: number | undefined, forks = 0): void => {
    const options = { rows: new Int32Array(arithmetic.rowsFor(text.length)), isStored: true, level: 0, promptTokens };
    const path = index.open(index.match(sharedDomain, text, promptTokens), options);
    options.rows.forEach((_, row) => { if (row >= arithmetic.wholeRows(path.length)) options.rows[row] = rows++; });
    index.commit(path, text, text.length);
    for (let fork = 0; fork < forks; fork += 1) index.release(index.fork(path, options.rows.slice()));
    index.release(path);
  };
  speak(run(0, 20), 16);
  speak(join(run(0, 20), run(50, 12)), 28);
  speak(run(0, 8), undefined);
  speak(run(100, 12), 8, 1);
  t.deepEqual(told, [
    { tokens: 20, promptTokens: 16, newTokens: 16, answerTokens: 4 },
    { tokens: 32, promptTokens: 28, newTokens: 8, answerTokens: 4 },
    { tokens: 8, promptTokens: 8, newTokens: 1, answerTokens: 0 }, // the last token is always computed
    { tokens: 12, promptTokens: 8, newTokens: 0, answerTokens: 4 },
    { tokens: 12, promptTokens: 8, newTokens: 8, answerTokens: 4 },
  ]);
});

test('a pool never has more rows than its bound after a release', (t) => {
  const owner = owned({ poolRows: 5 });
  for (let text = 0; text < 30; text += 1) {
    cache(owner, run(100 * text, 4 + (text % 3) * 4));
    t.true(owner.index.pooledRows <= 5);
  }
  t.is(owner.index.pooledRows, 5);
  t.is(owner.cached(run(2900, 12)), 12, 'the last one is there');
  t.true(owner.takeDrops().every(({ reason }) => reason === 'bound'));
});

test('a tenant that has too much loses its own oldest text, not that of others', (t) => {
  const owner = owned({ tenantRows: 4 });
  const [a, b] = [prefixDomain({ tenant: 'a' }), prefixDomain({ tenant: 'b' })];
  cache(owner, run(0, 12), b);
  for (let text = 0; text < 5; text += 1) cache(owner, run(100 * text, 8), a);
  t.is(owner.cached(run(0, 12), b), 12);
  t.deepEqual([0, 1, 2, 3, 4].map((text) => owner.cached(run(100 * text, 8), a)), [0, 0, 0, 8, 8]);
  t.true(owner.takeDrops().every(({ reason }) => reason === 'quota'));
  owner.verify();
});

test('a quota counts all domains of a tenant together', (t) => {
  const owner = owned({ tenantRows: 4 });
  const domains = ['x', 'y', 'z'].map((adapter) => prefixDomain({ tenant: 'a', adapter }));
  for (const domain of domains) cache(owner, run(0, 8), domain);
  t.deepEqual(domains.map((domain) => owner.cached(run(0, 8), domain)), [0, 8, 8]);
});

test('the policy decides, also to let nothing go', (t) => {
  const owner = owned({ poolRows: 2, policy: (context) => ({ ...bound(lru()(context)), victim: () => -1 }) });
  cache(owner, run(0, 16));
  t.is(owner.index.pooledRows, 4);
  t.is(owner.evict(1), 0);
});

test('a policy is told of each node once: added when nobody uses it, removed when someone does or it is gone', (t) => {
  const pooled = new Set<number>();
  const watched: EvictionPolicyFactory = (context) => {
    const policy = lru()(context);
    return {
      add: (node) => { t.false(pooled.has(node)); pooled.add(node); policy.add(node); },
      remove: (node) => { t.true(pooled.delete(node)); policy.remove(node); },
      split: (upper, lower) => { t.true(pooled.has(lower)); pooled.add(upper); policy.split(upper, lower); },
      victim: () => {
        const victim = policy.victim();
        t.true(victim === -1 || (pooled.has(victim) && context.nodes.firstChild[victim] === -1), 'a victim is a leaf');
        return victim;
      },
    };
  };
  const owner = owned({ policy: watched, poolRows: 20 });
  for (let text = 0; text < 60; text += 1) cache(owner, join(run(0, (text * 7) % 20), run(1000 + 100 * (text % 13), 9)));
  t.true(pooled.size > 0);
  owner.clear();
  t.is(pooled.size, 0);
});

test('evicting asks the policy once for each text it takes from, whatever the pool\'s size', (t) => {
  let calls = 0;
  const owner = owned({
    policy: (context) => {
      const policy = lru()(context);
      return {
        add: (node) => { calls += 1; policy.add(node); },
        remove: (node) => { calls += 1; policy.remove(node); },
        split: (upper, lower) => { calls += 1; policy.split(upper, lower); },
        victim: () => { calls += 1; return policy.victim(); },
      };
    },
  });
  for (let text = 0; text < 500; text += 1) cache(owner, run(1000 * text, 40));
  calls = 0;
  t.is(owner.evict(95), 95);
  t.is(calls, 10 + 9, 'ten victims, nine of them gone altogether');
});

/** The policy's methods, free of `this`. */
function bound(policy: ReturnType<EvictionPolicyFactory>): ReturnType<EvictionPolicyFactory> {
  return {
    add: (node) => { policy.add(node); },
    remove: (node) => { policy.remove(node); },
    split: (upper, lower) => { policy.split(upper, lower); },
    victim: () => policy.victim(),
  };
}
