// Why no more of a text is cached: what `explain` answers for each way a match can end. Rows of 4 tokens.

import test from 'ava';

import { prefixDomain, sharedDomain } from '#internal/prefix/index.js';
import { SimulatedOwner, type OwnerOptions } from './simulated-owner.js';
import { cache, join, run } from './texts.js';

function owned(options: Partial<OwnerOptions> = {}): { owner: SimulatedOwner; clock: { ms: number } } {
  const clock = { ms: 0 };
  return { clock, owner: new SimulatedOwner({ tokenUnits: 1, rowUnits: 4, now: () => clock.ms, ...options }) };
}

test('a text that is cached as a whole is complete', (t) => {
  const { owner } = owned();
  cache(owner, run(0, 10));
  t.deepEqual(owner.index.explain(sharedDomain, run(0, 10)), { tokens: 10, reason: 'complete' });
  t.deepEqual(owner.index.explain(sharedDomain, run(0, 3)), { tokens: 3, reason: 'complete' });
});

test('where cached texts go on otherwise, it says with which token', (t) => {
  const { owner } = owned();
  cache(owner, run(0, 10));
  const asked = join(run(0, 6), run(70, 3));
  t.deepEqual(owner.index.explain(sharedDomain, asked), { tokens: 6, reason: 'differs', askedToken: 70, cachedToken: 6 });
  cache(owner, asked);
  t.like(owner.index.explain(sharedDomain, join(run(0, 6), run(80, 1))), { tokens: 6, reason: 'differs', askedToken: 80 });
  t.deepEqual(owner.index.explain(sharedDomain, run(9, 2)), { tokens: 0, reason: 'differs', askedToken: 9, cachedToken: 0 });
});

test('where no cached text went on, the rest was never cached', (t) => {
  const { owner } = owned();
  t.deepEqual(owner.index.explain(sharedDomain, run(0, 10)), { tokens: 0, reason: 'never-cached' });
  cache(owner, run(0, 10));
  t.deepEqual(owner.index.explain(sharedDomain, run(0, 12)), { tokens: 10, reason: 'never-cached' });
});

test('what was evicted is remembered with the time and the reason', (t) => {
  const { owner, clock } = owned();
  cache(owner, run(0, 10));
  clock.ms = 500;
  owner.evict(1);
  t.deepEqual(owner.index.explain(sharedDomain, run(0, 10)), { tokens: 8, reason: 'evicted', atMs: 500, dropReason: 'evicted' });
  clock.ms = 900;
  owner.clear();
  t.deepEqual(owner.index.explain(sharedDomain, run(0, 10)), { tokens: 0, reason: 'evicted', atMs: 900, dropReason: 'cleared' });
  t.deepEqual(owner.index.explain(sharedDomain, run(1, 10)), { tokens: 0, reason: 'never-cached' }, 'another text');
});

test('of many continuations of one start, each is remembered', (t) => {
  const { owner, clock } = owned();
  const system = run(0, 8);
  for (const first of [100, 200, 300, 400]) cache(owner, join(system, run(first, 4)));
  for (let ms = 1; ms <= 3; ms += 1) {
    clock.ms = ms;
    owner.evict(1);
  }
  for (const [index, first] of [100, 200, 300].entries()) {
    const explanation = owner.index.explain(sharedDomain, join(system, run(first, 4)));
    t.deepEqual(explanation, { tokens: 8, reason: 'evicted', atMs: index + 1, dropReason: 'evicted' });
  }
});

test('text that is cached again is not said to be evicted', (t) => {
  const { owner } = owned();
  cache(owner, run(0, 12));
  owner.evict(1);
  cache(owner, run(0, 12));
  t.deepEqual(owner.index.explain(sharedDomain, run(0, 12)), { tokens: 12, reason: 'complete' });
  t.deepEqual(owner.index.explain(sharedDomain, run(0, 13)), { tokens: 12, reason: 'never-cached' });
});

test('what was lost behind a text is not said of another text that took its place', (t) => {
  const { owner } = owned();
  const sequence = owner.acquire(run(0, 8));
  owner.commit(sequence, 8);
  const longer = owner.acquire(run(0, 12));
  owner.commit(longer, 12);
  owner.truncate(longer, 3);
  t.deepEqual(owner.index.explain(sharedDomain, run(0, 12)), { tokens: 8, reason: 'evicted', atMs: 0, dropReason: 'truncated' });

  owner.truncate(sequence, 5);
  const other = join(run(0, 5), run(50, 3));
  sequence.text = other;
  owner.commit(sequence, 8);
  t.deepEqual(owner.index.explain(sharedDomain, join(other, run(8, 4))), { tokens: 8, reason: 'never-cached' });
});

test('only so many places are remembered, the latest', (t) => {
  const { owner } = owned({ rememberedCuts: 2 });
  for (const first of [0, 100, 200]) cache(owner, run(first, 4));
  owner.evict(3);
  const reasons = [0, 100, 200].map((first) => owner.index.explain(sharedDomain, run(first, 4)).reason);
  t.deepEqual(reasons, ['never-cached', 'evicted', 'evicted']);
});

test('a place is forgotten with its node, also when the number comes back for another text', (t) => {
  const { owner } = owned();
  cache(owner, join(run(0, 8), run(50, 4)));
  cache(owner, join(run(0, 8), run(60, 4)));
  owner.evict(1);
  owner.clear();
  for (let text = 0; text < 40; text += 1) cache(owner, run(1000 + 10 * text, 8));
  for (let text = 0; text < 40; text += 1) {
    t.is(owner.index.explain(sharedDomain, join(run(1000 + 10 * text, 8), run(50, 4))).reason, 'never-cached');
  }
});

test('a longer match in another domain of the same tenant is named with the parts that differ', (t) => {
  const { owner } = owned();
  const domain = prefixDomain({ tenant: 'a', adapter: 'x' });
  cache(owner, run(0, 8), prefixDomain({ tenant: 'a', adapter: 'y', salt: 's' }));
  const explain = (): object => owner.index.explain(domain, run(0, 12));
  t.deepEqual(explain(), { tokens: 0, reason: 'other-domain', otherTokens: 8, parts: ['salt', 'adapter'] });
  cache(owner, run(0, 10), prefixDomain({ tenant: 'a' }));
  t.deepEqual(explain(), { tokens: 0, reason: 'other-domain', otherTokens: 10, parts: ['adapter'] });
  cache(owner, run(0, 12), domain);
  t.is(owner.index.explain(domain, run(0, 12)).reason, 'complete');
});

test('texts of other tenants are never told of', (t) => {
  const { owner } = owned();
  cache(owner, run(0, 8), prefixDomain({ tenant: 'a' }));
  cache(owner, run(0, 8));
  t.deepEqual(owner.index.explain(prefixDomain({ tenant: 'b' }), run(0, 8)), { tokens: 0, reason: 'never-cached' });
});
