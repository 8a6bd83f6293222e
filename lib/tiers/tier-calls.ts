// TierCalls: calls of one tier that have not been answered, and how many have: by them its cache knows, when it closes,
// whether to go on waiting.

import { createError } from '../base/errors.js';
import { TimeHistogram } from '../base/time-histogram.js';
import { lengthOf, typedArrayKind } from '../base/typed-arrays.js';
import { FreeTime, type LoadClock } from './load-clock.js';
import type {
  BorrowedBlock, GetMiss, PutRefusal, TierGet, TierPut, TierRemoval, TierStatistics, TierTokensGet,
} from './tier.js';

/** So often within the limit it is looked whether a tier has answered. */
const looks = 10;

export class TierCalls {
  /** Calls that have not been answered. Read only. */
  underWay = 0;
  /** Calls that were answered, so far. Read only. */
  answers = 0;

  /** Counts a call until it is answered. Returns it. */
  track<T>(call: Promise<T> | T): Promise<T> {
    this.underWay += 1;
    const answer = Promise.resolve(call);
    const over = (): void => {
      this.underWay -= 1;
      this.answers += 1;
    };
    answer.then(over, over);
    return answer;
  }
}

/**
 * Resolves once `work` is over, true, or once calls are under way of which none was answered for `limitMs` in which
 * this thread could have noticed, false. Rejects as `work` does.
 */
export async function isOverBeforeSilence(
  work: Promise<unknown>, calls: readonly TierCalls[], limitMs: number, clock: LoadClock,
): Promise<boolean> {
  const time = new FreeTime(clock, 0, true);
  let isOver = false;
  const over = work.finally(() => { isOver = true; });
  try {
    let [seen, seenMs] = [-1, 0];
    for (;;) {
      const answers = calls.reduce((sum, call) => sum + call.answers, 0);
      const isSilent = answers === seen && calls.some(({ underWay }) => underWay > 0);
      if (!isSilent) [seen, seenMs] = [answers, time.milliseconds];
      else if (time.milliseconds >= seenMs + limitMs) return false;
      const nextMs = time.milliseconds + limitMs / looks;
      await Promise.race([over, new Promise<void>((resolve) => { time.at(nextMs, resolve); })]);
      if (isOver) return true;
    }
  } finally {
    time.end();
    over.catch(() => { /* it is too late for it */ });
  }
}

// What tiers answer, read once and as it is used: a tier of the user's own may answer anything. What is no answer is a
// failure of the tier's, with an error that says what it should have been. Pure; what a getter throws passes.

const misses: readonly unknown[] = ['absent', 'corrupt', 'timeout', 'failed'] satisfies GetMiss[];
const refusals: readonly unknown[] = ['full', 'busy', 'failed'] satisfies PutRefusal[];

const missText = "`{ isFound: false, reason }`, the reason being 'absent', 'corrupt', 'timeout' or 'failed'";

/** Of `get`. `stripes`: of a block. */
export function readGet(answer: unknown, tier: string, stripes: number): TierGet {
  const { isFound, sums, record, reason, error } = (answer ?? {}) as Record<string, unknown>;
  if (isFound === true && areSums(sums, stripes)) return { isFound, sums, record: (record ?? undefined) as undefined };
  if (isFound === false && misses.includes(reason)) return { isFound, reason: reason as GetMiss, error };
  return { isFound: false, reason: 'failed', error: noAnswer(
    tier, 'get', `\`{ isFound: true, sums }\`, a Uint32Array of one for each stripe, or ${missText}`, answer) };
}

/** Of `getTokens`. */
export function readTokensGet(answer: unknown, tier: string): TierTokensGet {
  const { isFound, reason, error, readBytes, chunks } = (answer ?? {}) as Record<string, unknown>;
  if (Number.isFinite(readBytes) && Number.isFinite(chunks)) {
    const read = { readBytes: readBytes as number, chunks: chunks as number };
    if (isFound === true) return { isFound, ...read };
    if (isFound === false && misses.includes(reason)) return { isFound, reason: reason as GetMiss, error, ...read };
  }
  const expected = `\`{ isFound: true, readBytes, chunks }\`, or ${missText}, with \`readBytes\` and \`chunks\``;
  return {
    isFound: false, reason: 'failed', error: noAnswer(tier, 'getTokens', expected, answer), readBytes: 0, chunks: 0,
  };
}

/** Of `put` and `reorder`. */
export function readPut(answer: unknown, tier: string, method: 'put' | 'reorder'): TierPut {
  const { isStored, reason, error } = (answer ?? {}) as Record<string, unknown>;
  if (isStored === true) return { isStored };
  if (isStored === false && refusals.includes(reason)) return { isStored, reason: reason as PutRefusal, error };
  const expected =
    "`{ isStored: true }`, or `{ isStored: false, reason }`, the reason being 'full', 'busy' or 'failed'";
  return { isStored: false, reason: 'failed', error: noAnswer(tier, method, expected, answer) };
}

/** Of `remove`: whether it did. A tier that says nothing did. */
export function readRemoval(answer: unknown): TierRemoval {
  const { isRemoved, error } = (answer ?? {}) as Record<string, unknown>;
  return isRemoved === false ? { isRemoved, error } : { isRemoved: true };
}

/**
 * Of `borrow` of a payload of so many bytes: undefined where it has no such block. Throws KV_INVALID_OPTION for what is
 * no answer.
 */
export function readBorrowed(answer: unknown, tier: string, bytes: number, stripes: number): BorrowedBlock | undefined {
  if (answer === undefined) return undefined;
  const { payload, sums, release } = (answer ?? {}) as Record<string, unknown>;
  if (typedArrayKind(payload) === 'Uint8Array' && lengthOf(payload as Uint8Array) === bytes && areSums(sums, stripes)
    && typeof release === 'function') return answer as BorrowedBlock;
  throw noAnswer(
    tier, 'borrow',
    `\`{ payload, sums, release }\`, a Uint8Array of ${bytes} bytes, a Uint32Array of one for each stripe and a function, or undefined`,
    answer);
}

/**
 * Of `statistics`: a copy, without what is no finite number, string or boolean. Throws KV_INVALID_OPTION for what is no
 * answer.
 */
export function readStatistics(answer: unknown, tier: string): TierStatistics {
  const entries = Object.entries((answer ?? {}) as Record<string, unknown>);
  const plain = Object.fromEntries(
    entries.filter(([, value]) => Number.isFinite(value) || typeof value === 'string' || typeof value === 'boolean'));
  const { blocks, bytes } = plain;
  if (typeof blocks === 'number' && typeof bytes === 'number') return plain as unknown as TierStatistics;
  throw noAnswer(tier, 'statistics', '`{ blocks, bytes }`, two numbers', answer);
}

function areSums(sums: unknown, stripes: number): sums is Uint32Array {
  return typedArrayKind(sums) === 'Uint32Array' && lengthOf(sums as Uint32Array) === stripes;
}

function noAnswer(tier: string, method: string, answer: string, received: unknown): Error {
  // An async method that fails ends no process; that it is async is reported.
  if (received instanceof Promise) received.catch(() => {});
  return createError('KV_INVALID_OPTION', {
    reason: 'type', owner: 'Tier', option: `${tier}.${method}`, expected: `a method whose answer is ${answer}`,
    received,
  });
}

// TierCounts: what one tier did for a cache, in sums since it was opened; and why it lacks blocks, for an operator's
// questions.

/**
 * Why a tier does not have a block: `evicted`: it went to make room · `corrupt`: it was not what was stored, and was
 * dropped · `lost`: the store no longer had it · `full`, `busy`, `failed`: it was refused · `seen-once`: the tier takes
 * what was seen more often · `part-of-block`: the tier takes whole blocks only · `out-of-service`: the tier is not open
 * · `unreachable`: its store did not say, when it was last asked, what others have stored in it · `never-offered`: its
 * text was never finished here, was evicted from the device before it was read, or it is not known any more.
 */
export type BlockAbsence = PutRefusal | 'evicted' | 'corrupt'
  | 'lost' | 'seen-once' | 'part-of-block' | 'out-of-service' | 'unreachable' | 'never-offered';

const bounds = [0.1, 0.25, 0.5, 1, 2.5, 5, 10, 25, 50, 100, 250, 500, 1_000, 2_500, 5_000];

export class TierCounts {
  storedBlocks = 0;
  storedBytes = 0;
  loadedBytes = 0;
  /** Tokens that came to the device from it. */
  promotedTokens = 0;
  /** Blocks that the cache removed to make room. */
  evicted = 0;
  /** Blocks that came back with bytes that were not what was stored. */
  damaged = 0;
  /** Calls of `statistics` that threw, or were answered by none. */
  failedStatistics = 0;
  /** Gets that were answered with a block. */
  readonly getTimes = new TimeHistogram(bounds);
  /** Puts that stored one. */
  readonly putTimes = new TimeHistogram(bounds);
  readonly refusals: Record<PutRefusal, number> = { full: 0, busy: 0, failed: 0 };
  readonly misses: Record<GetMiss, number> = { absent: 0, corrupt: 0, timeout: 0, failed: 0 };
}
