import test from 'ava';

import { Random } from '#internal/base/random.js';
import { RequestText } from '#internal/replay/request-text.js';
import { oneKey, StampRuns, type StampKeys } from '#internal/replay/stamps.js';
import { Verification, type StampedMemory, type VerifyMode } from '#internal/replay/verification.js';
import { seedOf } from '../helpers/seed.js';

const KEYS = oneKey(5);

/** A sequence that remembers which token was stamped with which key. */
interface FakeSequence {
  readonly stamps: Map<number, number>;
}

const memory: StampedMemory<FakeSequence> = {
  stamp: ({ stamps }, from, tokens, key) => {
    for (let token = from; token < from + tokens; ++token) stamps.set(token, key);
    return tokens;
  },
  verifyStamp: ({ stamps }, from, tokens, key) => {
    let wrong = 0;
    for (let token = from; token < from + tokens; ++token) if (stamps.get(token) !== key) wrong += 1;
    return wrong;
  },
};

function setUp(mode: VerifyMode, pageBytes = 64, commonTokenBytes = 1): {
  verification: Verification<FakeSequence>; sequence: FakeSequence; runs: StampRuns; stamped: () => number[];
} {
  const sequence = { stamps: new Map<number, number>() };
  const verification = new Verification({ cache: memory, mode, seed: 1, layout: { pageBytes, commonTokenBytes } });
  const stamped = (): number[] => [...sequence.stamps.keys()].sort((a, b) => a - b);
  return { verification, sequence, runs: new StampRuns(), stamped };
}

test('with `full` every token is stamped and read, as one run', (t) => {
  const { verification, sequence, runs, stamped } = setUp('full');
  verification.stamp(sequence, runs, KEYS, 0, 300);
  verification.stamp(sequence, runs, KEYS, 300, 1);
  t.is(stamped().length, 301);
  t.is(runs.length, 1);
  verification.verify(sequence, runs, KEYS);
  t.deepEqual([verification.verifiedTokens, verification.mismatches, runs.length], [301, 0, 0]);
});

test('with `off` nothing is stamped and nothing read', (t) => {
  const { verification, sequence, runs, stamped } = setUp('off');
  verification.stamp(sequence, runs, KEYS, 0, 300);
  verification.verify(sequence, runs, KEYS);
  t.deepEqual([stamped().length, verification.verifiedTokens], [0, 0]);
});

test('with `sampled` the ends of a chunk and both sides of every row border are stamped', (t) => {
  const { verification, sequence, runs, stamped } = setUp('sampled');
  verification.stamp(sequence, runs, KEYS, 0, 200);
  t.deepEqual(stamped(), [0, 63, 64, 127, 128, 191, 192, 199]);
  verification.stamp(sequence, runs, KEYS, 200, 56); // ends right before a border
  t.deepEqual(stamped().slice(8), [200, 255]);
  verification.stamp(sequence, runs, KEYS, 256, 2); // begins right at it
  t.deepEqual(stamped().slice(10), [256, 257]);
  verification.verify(sequence, runs, KEYS);
  t.deepEqual([verification.verifiedTokens, verification.mismatches], [12, 0]);
});

test('of a row border inside a token, that token and the one before it are stamped', (t) => {
  const { verification, sequence, runs, stamped } = setUp('sampled', 100, 30); // borders at 3.33, 6.67, 10, 13.3
  verification.stamp(sequence, runs, KEYS, 0, 20);
  t.deepEqual(stamped(), [0, 2, 3, 5, 6, 9, 10, 12, 13, 15, 16, 19]);
});

test('of tokens larger than a page all are stamped', (t) => {
  const { verification, sequence, runs, stamped } = setUp('sampled', 64, 120);
  verification.stamp(sequence, runs, KEYS, 0, 12);
  t.is(stamped().length, 12);
});

test('of decoded tokens one in sixty-four is stamped, and those at a border', (t) => {
  const { verification, sequence, runs, stamped } = setUp('sampled', 1_000, 1);
  for (let token = 1; token < 10_000; ++token) verification.stamp(sequence, runs, KEYS, token, 1);
  const borders = stamped().filter((token) => token % 1_000 === 0 || token % 1_000 === 999);
  t.is(borders.length, 19);
  t.true(stamped().length > 100 && stamped().length < 250, `${stamped().length} tokens`);
});

test('a prompt in chunks has the stamps of the whole prompt, and those at the ends of chunks', (t) => {
  const whole = setUp('sampled');
  whole.verification.stamp(whole.sequence, whole.runs, KEYS, 0, 1_000);
  const cut = setUp('sampled');
  for (let from = 0; from < 1_000; from += 100) cut.verification.stamp(cut.sequence, cut.runs, KEYS, from, 100);
  t.deepEqual(whole.stamped().filter((token) => !cut.stamped().includes(token)), []);
});

test('a wrong token is a mismatch; another key is another pattern', (t) => {
  const { verification, sequence, runs } = setUp('sampled');
  verification.stamp(sequence, runs, KEYS, 0, 200);
  sequence.stamps.set(128, 6);
  verification.verify(sequence, runs, KEYS);
  t.is(verification.mismatches, 1);
  verification.stamp(sequence, runs, KEYS, 200, 2);
  verification.verify(sequence, runs, oneKey(6));
  t.is(verification.mismatches, 3);
});

test('no two admissions have the same key', (t) => {
  const { verification } = setUp('full');
  const keys = new Set(Array.from({ length: 10_000 }, (_, admission) => verification.keyOf(admission)));
  t.is(keys.size, 10_000);
});

const says = (promptTokens: number, hashIds: readonly number[], ownId: number, outputTokens = 0): RequestText =>
  new RequestText({ request: { line: 1, arrivalMs: 0, promptTokens, outputTokens, hashIds: Int32Array.from(hashIds) }, ownId, seed: 1 });

test('a token from the cache is read under the key of its text, and never written', (t) => {
  for (const mode of ['full', 'sampled'] as const) {
    const { verification, sequence, runs } = setUp(mode, 100);
    const first = says(1_500, [1, 2, 3], 9);
    verification.stamp(sequence, runs, first, 0, 1_500);
    verification.verify(sequence, runs, first);
    const before = verification.verifiedTokens;
    const stamps = new Map(sequence.stamps);
    verification.recall(runs, says(2_000, [1, 2, 4, 5], 9), 1_024);
    verification.verify(sequence, runs, says(2_000, [1, 2, 4, 5], 9));
    t.is(verification.verifiedTokens - before, mode === 'full' ? 1_024 : 10 * 2 + 4, mode);
    t.deepEqual([verification.mismatches, sequence.stamps], [0, stamps]);

    verification.recall(runs, says(2_000, [1, 2, 4, 5], 9), 1_025); // one too many: the third block is another
    verification.verify(sequence, runs, says(2_000, [1, 2, 4, 5], 9));
    t.is(verification.mismatches, 1, mode);
    verification.recall(runs, says(2_000, [7, 2, 4, 5], 9), 1_024); // the second block is the same, but what is before it is not
    verification.verify(sequence, runs, says(2_000, [7, 2, 4, 5], 9));
    t.is(verification.mismatches - 1, mode === 'full' ? 1_024 : 24, mode);
  }
});

const seed = seedOf('marks');

test(`the tokens that are verified of a cached text were stamped when it was computed, in whatever chunks (seed ${seed})`, (t) => {
  const random = new Random(seed);
  for (let round = 0; round < 200; ++round) {
    const { verification, sequence, runs } = setUp('sampled', 1 + random.integer(300), 1 + random.integer(40));
    const ids = Array.from({ length: 8 }, () => random.integer(1_000));
    const promptTokens = 1 + random.integer(4_096);
    const outputTokens = random.integer(1_200);
    const blocks = Math.ceil(promptTokens / 512);
    const writer: StampKeys = says(promptTokens, ids.slice(0, random.integer(blocks + 1)), 2_000, outputTokens);
    const end = promptTokens + outputTokens;
    for (let from = 0; from < end;) {
      const tokens = random.chance(0.3) ? 1 : Math.min(end - from, 1 + random.integer(900));
      verification.stamp(sequence, runs, writer, from, tokens);
      from += tokens;
    }
    verification.verify(sequence, runs, writer);
    verification.recall(runs, writer, 1 + random.integer(end));
    verification.verify(sequence, runs, writer);
    t.is(verification.mismatches, 0);
  }
});
