// The prefix index against a model: seeded random operations of many sequences, after which every cached token must lie in
// the row that the index names, and nothing may be lost, counted twice or evicted while it is in use.

import test from 'ava';

import { Random } from '#internal/base/random.js';
import { TextScope } from '#internal/prefix/domain.js';
import { prefixDomain } from '#internal/prefix/index.js';
import { seedOf } from '../helpers/seed.js';
import { SimulatedOwner, type OwnerOptions, type SimulatedSequence } from './simulated-owner.js';
import { scale } from '../runner/tier.js';

const domains = [{}, { tenant: 'a' }, { tenant: 'a', adapter: 'x' }, { tenant: 'b' }].map((parts) => prefixDomain(parts));

/** A text that often starts like an earlier one. */
function textLike(random: Random, texts: readonly Int32Array[], tokens: number): Int32Array {
  const model = texts.length > 0 && random.chance(0.9) ? texts[random.integer(texts.length)]! : new Int32Array(0);
  const shared = random.integer(Math.min(model.length, tokens) + 1);
  return Int32Array.from({ length: tokens }, (_, at) => (at < shared ? model[at]! : random.integer(3)));
}

/** What the sequence has computed, and other tokens behind it. */
function continued(random: Random, { text, computed }: SimulatedSequence, tokens: number): Int32Array {
  return textLike(random, [text], tokens).map((token, at) => (at < computed ? text[at]! : token));
}

/** Drops a text, or what is behind its start, or domains; and sees that none of it is found. */
function dropSome(random: Random, owner: SimulatedOwner, texts: readonly Int32Array[]): void {
  const domain = domains[random.integer(domains.length)]!;
  if (random.chance(0.3)) {
    owner.drop(TextScope.ofDomains(domain));
    for (const text of texts) if (owner.cached(text, domain) > 0) throw new Error('text of a dropped domain is found');
    return;
  }
  const text = textLike(random, texts, 1 + random.integer(24));
  const from = random.integer(text.length);
  const through = from + 1 + random.integer(text.length - from);
  owner.drop(TextScope.ofText({ domain, text, from, through }));
  if (owner.cached(text, domain) >= through) throw new Error(`${through} tokens of dropped text are found`);
}

function play(random: Random, owner: SimulatedOwner, operations: number, maxTokens: number): void {
  const texts: Int32Array[] = [];
  for (let operation = 0; operation < operations; operation += 1) {
    const { sequences } = owner;
    const sequence = sequences[random.integer(sequences.length)];
    const choice = random.integer(100);
    if (sequence === undefined || (choice < 20 && sequences.length < 12)) {
      const text = textLike(random, texts, 1 + random.integer(maxTokens));
      texts[texts.length < 40 ? texts.length : random.integer(40)] = text;
      const limit = random.chance(0.5) ? text.length - 1 : random.integer(text.length + 1);
      const domain = domains[random.chance(0.6) ? 0 : random.integer(domains.length)]!;
      owner.acquire(text, { domain, limit, isStored: random.chance(0.9), level: random.integer(3), isAnnounced: random.chance(0.3) });
    } else if (choice < 55) {
      const left = sequence.text.length - sequence.computed;
      if (left > 0) owner.commit(sequence, sequence.computed + 1 + random.integer(random.chance(0.5) ? left : 1));
      else {
        const tokens = Math.min(2 * maxTokens, sequence.text.length + 1 + random.integer(8));
        sequence.text = continued(random, sequence, tokens);
      }
    } else if (choice < 62) {
      const length = Math.max(0, sequence.computed - random.integer(random.chance(0.7) ? 10 : sequence.computed + 1));
      owner.truncate(sequence, length);
      if (random.chance(0.7)) sequence.text = sequence.text.map((token, at) => (at < length ? token : random.integer(3)));
    } else if (choice < 67) {
      if (sequences.length < 12) {
        const fork = owner.fork(sequence);
        fork.text = continued(random, fork, fork.text.length);
      }
    } else if (choice < 85) owner.release(sequence);
    else if (choice < 91) owner.evict(1 + random.integer(4));
    else if (choice < 92) owner.evictText((count) => random.integer(count));
    else if (choice < 93) dropSome(random, owner, texts);
    else if (choice < 94) owner.replaceDuplicates();
    else if (choice < 95) owner.clear(random.chance(0.5) ? undefined : domains[random.integer(domains.length)]);
    else if (choice < 97) {
      if (owner.keepValue(sequence)) owner.examine(sequence.text.slice(0, sequence.path.length), sequence.domain);
    } else owner.examine(textLike(random, texts, 1 + random.integer(maxTokens)), domains[random.integer(domains.length)]);
    if (operation % 23 === 0) owner.verify();
  }
  owner.verify();
}

/** Only what adds text: nothing may ever be lost, so each match is known to the token. */
function playWithoutLoss(
  random: Random, owner: SimulatedOwner, operations: number, maxTokens: number,
  found: (cached: number, committed: number) => void,
): void {
  const texts: Int32Array[] = [];
  for (let operation = 0; operation < operations; operation += 1) {
    const { sequences } = owner;
    const sequence = sequences[random.integer(sequences.length)];
    const choice = random.integer(100);
    if (sequence === undefined || (choice < 25 && sequences.length < 8)) {
      const text = textLike(random, texts, 1 + random.integer(maxTokens));
      texts[random.integer(Math.min(texts.length + 1, 30))] = text;
      owner.acquire(text);
    } else if (choice < 70) {
      const left = sequence.text.length - sequence.computed;
      if (left > 0) owner.commit(sequence, sequence.computed + 1 + random.integer(left));
    } else if (choice < 75 && sequences.length < 8) {
      const fork = owner.fork(sequence);
      fork.text = continued(random, fork, fork.text.length);
    } else owner.release(sequence);
    const text = textLike(random, texts, 1 + random.integer(maxTokens));
    found(owner.cached(text), owner.everCommitted(text));
  }
  owner.verify();
}

const shapes = [
  { name: '1 token', tokenUnits: 1, rowUnits: 1, maxTokens: 24 },
  { name: '3.2 tokens', tokenUnits: 5, rowUnits: 16, maxTokens: 40 },
  { name: 'less than half a token', tokenUnits: 5, rowUnits: 2, maxTokens: 20 },
  { name: '16 tokens', tokenUnits: 1, rowUnits: 16, maxTokens: 120 },
  { name: '64 tokens', tokenUnits: 1, rowUnits: 64, maxTokens: 300 },
];

const bounds: { name: string; options: Partial<OwnerOptions> }[] = [
  { name: 'a pool without bound', options: {} },
  { name: 'a pool of 12 rows', options: { poolRows: 12 } },
  { name: 'quotas of 6 rows', options: { poolRows: 20, tenantRows: 6 } },
  { name: 'rows named late', options: { poolRows: 12, namesLate: true } },
  { name: 'hashes of 2 bits', options: { poolRows: 40, hashBits: 2 } },
];

for (const { name, tokenUnits, rowUnits, maxTokens } of shapes) {
  for (const bound of bounds) {
    const seed = seedOf(name + bound.name);
    test(`rows of ${name}, ${bound.name}: each cached token lies in the row that is named (seed ${seed})`, (t) => {
      const random = new Random(seed);
      const owner = new SimulatedOwner({ tokenUnits, rowUnits, ...bound.options });
      t.notThrows(() => { play(random, owner, Math.ceil(5000 * scale), maxTokens); });
      for (const sequence of [...owner.sequences]) owner.release(sequence);
      owner.clear();
      owner.verify();
      t.deepEqual([owner.index.heldRows, owner.index.pooledRows, owner.index.openPaths, owner.index.nodes], [0, 0, 0, 0]);
      t.is(owner.freeRows, owner.rows, 'every row is free again');
    });
  }
}

for (const { name, tokenUnits, rowUnits, maxTokens } of shapes) {
  const seed = seedOf(`${name} without loss`);
  test(`rows of ${name}, nothing evicted: exactly what was committed is found (seed ${seed})`, (t) => {
    const owner = new SimulatedOwner({ tokenUnits, rowUnits });
    const operations = Math.ceil(1500 * scale);
    playWithoutLoss(new Random(seed), owner, operations, maxTokens, (cached, committed) => { t.is(cached, committed); });
  });
}
