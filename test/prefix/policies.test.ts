// Eviction policies: what each keeps, in words, and the contract that all of them keep under random use.

import test from 'ava';

import {
  adaptive, evictionPolicies, evictionPolicyNames, importance, lfu, lru, priority, sharedDomain, slru, type EvictionPolicyFactory, type EvictionPolicyName,
} from '#internal/prefix/index.js';
import { Random } from '#internal/base/random.js';
import { HASH_BLOCK_TOKENS } from '#internal/replay/trace-request.js';
import { evictionHits } from '../bench/eviction-replay.js';
import { evictionWorkloads } from '../bench/eviction-workloads.js';
import { refuses } from '../helpers/refuses.js';
import { seedOf } from '../helpers/seed.js';
import { checkedPolicy } from './checked-policy.js';
import { SimulatedOwner } from './simulated-owner.js';
import { openPath } from './texts.js';
import { costly } from '../runner/slow.js';
import { sampled, scale } from '../runner/tier.js';

/** Rows of one token; a text that shares nothing with others. */
const ownerWith = (policy: EvictionPolicyFactory): SimulatedOwner => new SimulatedOwner({ tokenUnits: 1, rowUnits: 1, policy });
const textOf = (name: number, tokens = 4): Int32Array => Int32Array.from({ length: tokens }, (_, at) => 1000 * name + at);

function use(owner: SimulatedOwner, text: Int32Array, { times = 1, level = 0 } = {}): void {
  for (let time = 0; time < times; time += 1) {
    const sequence = owner.acquire(text, { level });
    if (sequence.computed < text.length) owner.commit(sequence, text.length);
    owner.release(sequence);
  }
}

/** The names of those texts of which something is still there, after as many rows were evicted. */
function left(owner: SimulatedOwner, names: readonly number[], evictedRows: number): number[] {
  owner.evict(evictedRows);
  return names.filter((name) => owner.cached(textOf(name)) > 0);
}

// --- slru

test('slru: what was used twice outlasts a flood of what is used once', (t) => {
  const owner = ownerWith(slru());
  use(owner, textOf(1), { times: 2 });
  for (let name = 2; name <= 30; name += 1) use(owner, textOf(name));
  t.deepEqual(left(owner, [1, 2, 29, 30], 4 * 28), [1, 30]);
});

test('slru: when more than their share is protected, those used longest ago go back behind what was used once', (t) => {
  const owner = ownerWith(slru({ protectedShare: 0.5 }));
  for (const name of [1, 2, 3, 4]) use(owner, textOf(name), { times: 2 });
  use(owner, textOf(5));
  t.deepEqual(left(owner, [1, 2, 3, 4, 5], 8), [2, 3, 4]);
  t.deepEqual(left(owner, [1, 2, 3, 4, 5], 4), [3, 4]);
});

// --- importance

test('importance: without a selection what the fewest requests used of tokens goes first, an extent at a time', (t) => {
  const owner = ownerWith(importance({ extentTokens: 4 }));
  for (const [name, times] of [[1, 3], [2, 1], [3, 2]] as const) use(owner, textOf(name, 8), { times });
  owner.evict(8);
  t.deepEqual([1, 2, 3].map((name) => owner.cached(textOf(name, 8))), [8, 0, 8]);
  owner.evict(4);
  t.deepEqual([1, 2, 3].map((name) => owner.cached(textOf(name, 8))), [8, 0, 4]);
});

test('importance: of two extents the one with two important tokens and two uses outlasts that with one and three, until that is used twice more', (t) => {
  const owner = ownerWith(importance({ extentTokens: 4, importantTokens: ({ copyText, to }) => {
    t.is(copyText().length, to);
    return copyText()[0] === 1_000 ? 1 : 2;
  } }));
  use(owner, textOf(1), { times: 3 });
  use(owner, textOf(2), { times: 2 });
  t.deepEqual(left(owner, [1, 2], 4), [2]);
  use(owner, textOf(1), { times: 2 });
  t.deepEqual(left(owner, [1, 2], 4), [1]);
  const byUses = ownerWith(lfu());
  use(byUses, textOf(1), { times: 3 });
  use(byUses, textOf(2), { times: 2 });
  t.deepEqual(left(byUses, [1, 2], 4), [1]);
});

test('importance: from no text more goes than its last extent before the next is chosen', (t) => {
  const owner = ownerWith(importance({ extentTokens: 4, importantTokens: ({ from }) => (from === 0 ? 4 : 1) }));
  for (const name of [1, 2]) use(owner, textOf(name, 8));
  owner.evict(8);
  t.deepEqual([1, 2].map((name) => owner.cached(textOf(name, 8))), [4, 4]);
});

test('importance: of equal worth what was used longest ago goes first, and what was popular once is overtaken', (t) => {
  const owner = ownerWith(importance({ extentTokens: 4 }));
  for (const name of [3, 1, 2]) use(owner, textOf(name));
  t.deepEqual(left(owner, [1, 2, 3], 4), [1, 2]);
  use(owner, textOf(4), { times: 4 });
  for (let name = 10; name < 40; name += 1) {
    use(owner, textOf(name));
    owner.evict(4);
  }
  t.is(owner.cached(textOf(4)), 0);
});

// --- lfu

test('lfu: what was used least often goes first, and of those what was used longest ago', (t) => {
  const owner = ownerWith(lfu());
  for (const [name, times] of [[1, 3], [2, 1], [3, 2], [4, 1]] as const) use(owner, textOf(name), { times });
  t.deepEqual(left(owner, [1, 2, 3, 4], 4), [1, 3, 4]);
  t.deepEqual(left(owner, [1, 2, 3, 4], 4), [1, 3]);
  t.deepEqual(left(owner, [1, 2, 3, 4], 4), [1]);
});

test('lfu: what was popular once is overtaken by what comes later', (t) => {
  const owner = ownerWith(lfu());
  use(owner, textOf(1), { times: 8 });
  for (let name = 2; owner.cached(textOf(1)) > 0; name += 1) {
    t.true(name < 30, 'it leaves after a while');
    use(owner, textOf(name), { times: 2 });
    if (owner.index.pooledRows > 12) owner.evict(4);
  }
});

test('lfu: uses beyond the counted ones make no difference', (t) => {
  const owner = ownerWith(lfu({ countedUses: 2 }));
  use(owner, textOf(1), { times: 9 });
  use(owner, textOf(2), { times: 2 });
  t.deepEqual(left(owner, [1, 2], 4), [2]);
});

// --- priority

test('priority: the lowest level goes first, and within a level what was used longest ago', (t) => {
  const owner = ownerWith(priority());
  for (const [name, level] of [[1, 1], [2, 0], [3, 7], [4, 0]] as const) use(owner, textOf(name), { level });
  t.deepEqual(left(owner, [1, 2, 3, 4], 4), [1, 3, 4]);
  t.deepEqual(left(owner, [1, 2, 3, 4], 4), [1, 3]);
  t.deepEqual(left(owner, [1, 2, 3, 4], 4), [3]);
});

test('priority: a text has the highest level of the requests that used it', (t) => {
  const owner = ownerWith(priority());
  use(owner, textOf(1), { level: 3 });
  use(owner, textOf(1), { level: 0 });
  use(owner, textOf(2), { level: 2 });
  t.deepEqual(left(owner, [1, 2], 4), [1]);
});

test('priority: pinned levels stay, and evict answers that it freed less', (t) => {
  const owner = ownerWith(priority({ pinnedLevel: 9 }));
  use(owner, textOf(1), { level: 9 });
  use(owner, textOf(2), { level: 8 });
  t.is(owner.evict(100), 4);
  t.is(owner.cached(textOf(1)), 4);
});

test('priority: text that a transfer brought at a level keeps it, also where requests used it as often as what follows', (t) => {
  const { index } = ownerWith(priority({ pinnedLevel: 9 }));
  const rows = Int32Array.from({ length: 8 }, (_, row) => row);
  const request = openPath(index, textOf(1, 8), 8, rows);
  index.commit(request, textOf(1, 8), 8);
  index.release(request);
  const hit = index.match(sharedDomain, textOf(1, 8), 4);
  index.release(index.open(hit, { rows: new Int32Array(8), isStored: false, level: 9, isTransfer: true }));
  index.verify();
  t.is(index.evict(8), 4);
  t.is(index.match(sharedDomain, textOf(1, 8), 8).tokens, 4);
});

test('priority: what has expired goes first whatever its level, pinned or not', (t) => {
  let nowMs = 0;
  const owner = ownerWith(priority({ pinnedLevel: 9, lifetimeMs: (level) => (level === 9 ? 1_000 : Infinity), now: () => nowMs }));
  use(owner, textOf(1), { level: 9 });
  use(owner, textOf(2));
  nowMs = 999;
  t.is(owner.evict(4), 4);
  t.deepEqual(left(owner, [1, 2], 0), [1], 'its time has not come');
  use(owner, textOf(2));
  nowMs = 1_000;
  t.deepEqual(left(owner, [1, 2], 4), [2]);
});

test('priority: a use begins the lifetime anew', (t) => {
  let nowMs = 0;
  const owner = ownerWith(priority({ lifetimeMs: () => 1_000, now: () => nowMs }));
  use(owner, textOf(1), { level: 1 });
  use(owner, textOf(2));
  nowMs = 900;
  use(owner, textOf(1), { level: 1 });
  nowMs = 1_100;
  t.deepEqual(left(owner, [1, 2], 4), [1]);
});

test('priority: an expired text waits for what goes on from it', (t) => {
  let nowMs = 0;
  const owner = ownerWith(priority({ lifetimeMs: (level) => (level === 1 ? 10 : Infinity), now: () => nowMs }));
  const front = textOf(1);
  use(owner, front, { level: 1 });
  use(owner, Int32Array.of(...front, 7, 8)); // level 0, which does not expire
  use(owner, textOf(2));
  nowMs = 10;
  t.is(owner.evict(2), 2);
  t.is(owner.cached(Int32Array.of(...front, 7, 8)), 4, 'the end, which is older than text 2, went');
  t.deepEqual(left(owner, [1, 2], 4), [2], 'then the expired front');
});

test('priority: lifetimes need a clock and are numbers', (t) => {
  refuses(t, () => priority({ lifetimeMs: () => 1 }), 'KV_INVALID_OPTION', { option: 'now' });
  refuses(t, () => priority({ lifetimeMs: () => -1, now: () => 0 }), 'KV_INVALID_OPTION', { option: 'lifetimeMs(0)' });
});

// --- adaptive

test('adaptive: before it has learnt anything, what was used longest ago goes first', (t) => {
  const owner = ownerWith(adaptive());
  for (const name of [1, 2, 3, 4]) use(owner, textOf(name));
  use(owner, textOf(1));
  t.deepEqual(left(owner, [1, 2, 3, 4], 4), [1, 3, 4]);
  t.deepEqual(left(owner, [1, 2, 3, 4], 4), [1, 4]);
});

test('adaptive: learns that long texts never return and short ones do, and lets the long ones go', (t) => {
  const owner = ownerWith(adaptive());
  for (let turn = 0; turn < 300; turn += 1) {
    use(owner, textOf(turn % 20));
    use(owner, textOf(100 + turn, 40));
    if (owner.index.pooledRows > 200) owner.evict(owner.index.pooledRows - 200);
  }
  const short = Array.from({ length: 20 }, (_, name) => name);
  t.deepEqual(short.filter((name) => owner.cached(textOf(name)) > 0), short);
});

/** Hits per prompt of four tokens when 30 texts return in turn and 20 of them have room. */
function hitsOfRound(policy: EvictionPolicyFactory): number {
  const prompts = Array.from({ length: 3_000 }, (_, turn) => textOf(turn % 30));
  return evictionHits({ prompts, policy, capacityBlocks: 80 }).reduce((sum, hits) => sum + hits, 0) / prompts.length / 4 / HASH_BLOCK_TOKENS;
}

test('adaptive: keeps most of what has room when texts return in turn, where lru keeps nothing', (t) => {
  t.is(hitsOfRound(lru()), 0);
  const share = hitsOfRound(adaptive());
  t.true(share > 0.5, `${share} of at most 0.66`);
});

/** Share of prompt tokens found when of 12 texts at a time, each a prompt of 16 blocks, those that `returns` says come once more, when 8 have room. */
function hitsOfReturning(policy: EvictionPolicyFactory, returns: (name: number) => boolean, answerTokens: (name: number) => number): number {
  const names = Array.from({ length: 1_200 }, (_, turn) => Math.floor(turn / 24) * 12 + (turn % 12))
    .filter((name, turn) => turn % 24 < 12 || returns(name));
  const prompts = names.map((name) => Int32Array.from({ length: 16 }, (_, at) => 16 * name + at));
  const replay = { prompts, policy, answerTokens: names.map(answerTokens), capacityBlocks: 8 * 17 };
  return evictionHits(replay).reduce((sum, hits) => sum + hits, 0) / prompts.length / 16 / HASH_BLOCK_TOKENS;
}

test('adaptive: learns that texts with long answers return, and keeps them', (t) => {
  const returns = (name: number): boolean => name % 2 === 0;
  const tell = (name: number): number => (returns(name) ? 200 : 10);
  const [plain, learnt, untold] = [[lru(), tell], [adaptive(), tell], [adaptive(), () => 10]] as const;
  const [ofLru, ofLearnt, ofUntold] = [plain, learnt, untold].map(([policy, answers]) => hitsOfReturning(policy, returns, answers));
  t.true(ofLearnt! > ofLru! + 0.1 && ofLearnt! > ofUntold! + 0.1, `${ofLearnt}, untold ${ofUntold}, lru ${ofLru}, of at most 0.33`);
});

for (const { name, requests } of sampled(evictionWorkloads, 3)) {
  costly('replays a workload')(`adaptive: on the workload "${name}" it is at most a point worse than lru`, (t) => {
    const prompts = requests(2_000, 7); // fewer teach it too little
    const tokens = prompts.reduce((sum, { length }) => sum + length, 0) * HASH_BLOCK_TOKENS;
    for (const capacityBlocks of [500, 2_000]) {
      const [plain, learning] = [lru(), adaptive()].map((policy) => (
        (100 * evictionHits({ prompts, policy, capacityBlocks }).reduce((sum, hits) => sum + hits, 0)) / tokens
      ));
      t.true(learning! > plain! - 1, `${learning} % and ${plain} % with ${capacityBlocks} blocks`);
    }
  });
}

// --- all of them

/** Options that small texts need. */
const withOptions: Partial<Record<EvictionPolicyName, (now: () => number) => EvictionPolicyFactory>> = {
  lfu: () => lfu({ countedUses: 3 }),
  importance: () => importance({ extentTokens: 4 }),
  priority: (now) => priority({ lifetimeMs: (level) => (level === 2 ? Infinity : 50 + 30 * level), now }),
};
const everyPolicy = evictionPolicyNames.map((name) => [name, withOptions[name] ?? (() => evictionPolicies[name]())] as const);

function play(random: Random, owner: SimulatedOwner, operations: number, step: () => void): void {
  const texts: Int32Array[] = [];
  for (let operation = 0; operation < operations; operation += 1) {
    step();
    const { sequences } = owner;
    const sequence = sequences[random.integer(sequences.length)];
    const choice = random.integer(100);
    if (sequence === undefined || (choice < 30 && sequences.length < 8)) {
      const model = texts[random.integer(texts.length)] ?? new Int32Array(0);
      const shared = random.integer(model.length + 1);
      const text = Int32Array.from({ length: 1 + random.integer(40) }, (_, at) => (at < shared ? model[at]! : random.integer(3)));
      texts[texts.length < 40 ? texts.length : random.integer(40)] = text;
      owner.acquire(text, { level: random.integer(3) });
    } else if (choice < 60) {
      const tokens = sequence.text.length - sequence.computed;
      if (tokens > 0) owner.commit(sequence, sequence.computed + 1 + random.integer(tokens));
    } else if (choice < 65) owner.truncate(sequence, random.integer(sequence.computed + 1));
    else if (choice < 85) owner.release(sequence);
    else if (choice < 90) owner.evict(1 + random.integer(6));
    else owner.evictText((count) => random.integer(count));
    if (operation % 50 === 0) owner.verify();
  }
}

for (const [name, factory] of everyPolicy) {
  for (const rowUnits of [1, 16]) {
    const seed = seedOf(`${name} ${rowUnits}`);
    test(`${name}, rows of ${rowUnits}: a victim is an unused leaf, and all that is unused can be evicted (seed ${seed})`, (t) => {
      const random = new Random(seed);
      let nowMs = 0;
      const policy = checkedPolicy(factory(() => nowMs));
      const owner = new SimulatedOwner({ tokenUnits: 1, rowUnits, policy });
      t.notThrows(() => { play(random, owner, Math.ceil(6_000 * scale), () => { nowMs += random.integer(3); }); });
      owner.evict(Infinity);
      t.is(owner.index.pooledRows, 0, 'nothing that is unused is kept from being evicted');
      for (const sequence of [...owner.sequences]) owner.release(sequence);
      owner.evict(Infinity);
      owner.verify();
      t.deepEqual([owner.index.heldRows, owner.index.nodes], [0, 0]);
    });
  }
}

/** What neither a policy that pins level 2 gives, nor what is above it: counted by the index, and left when all else is evicted. */
for (const lifetimeMs of [undefined, (level: number): number => (level === 2 ? 200 : Infinity)]) {
  for (const rowUnits of [1, 16]) {
    const name = lifetimeMs === undefined ? 'for ever' : 'until it expires';
    const seed = seedOf(`pinned ${name} ${rowUnits}`);
    test(`priority, rows of ${rowUnits}: what is withheld ${name} is what is left when all is evicted (seed ${seed})`, (t) => {
      const random = new Random(seed);
      let nowMs = 0;
      const pinning = priority(lifetimeMs === undefined ? { pinnedLevel: 2 } : { pinnedLevel: 2, lifetimeMs, now: () => nowMs });
      const owner = new SimulatedOwner({ tokenUnits: 1, rowUnits, policy: checkedPolicy(pinning) });
      const withheldRows = (): number => {
        let rows = 0;
        owner.index.withheld.forRows(() => { rows += 1; });
        return rows;
      };
      let most = 0;
      for (let round = 0; round < Math.ceil(60 * scale); round += 1) {
        play(random, owner, 100, () => { nowMs += random.integer(3); });
        for (const sequence of [...owner.sequences]) owner.release(sequence);
        const rows = withheldRows();
        most = Math.max(most, rows);
        const pooled = owner.index.pooledRows;
        t.is(owner.evict(Infinity), pooled - rows);
        t.is(owner.index.pooledRows, rows);
        t.is(withheldRows(), rows);
        owner.verify();
        if (lifetimeMs === undefined && round % 10 === 9) owner.index.clear();
      }
      t.true(most > 5, 'something was withheld');
    });
  }
}
