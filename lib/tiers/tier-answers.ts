// What tiers answer, read once and as it is used: a tier of the user's own may answer anything. What is no answer is a
// failure of the tier's, with an error that says what it should have been. Pure; what a getter throws passes.

import { createError } from '../base/errors.js';
import { lengthOf, typedArrayKind } from '../base/typed-arrays.js';
import type {
  BorrowedBlock, GetMiss, PutRefusal, TierGet, TierPut, TierRemoval, TierStatistics, TierTokensGet,
} from './tier.js';

const misses: readonly unknown[] = ['absent', 'corrupt', 'timeout', 'failed'] satisfies GetMiss[];
const refusals: readonly unknown[] = ['full', 'busy', 'failed'] satisfies PutRefusal[];

const missText = "`{ isFound: false, reason }`, the reason being 'absent', 'corrupt', 'timeout' or 'failed'";

/** Of `get`. `stripes`: of a block. */
export function readGet(answer: unknown, tier: string, stripes: number): TierGet {
  const { isFound, sums, record, reason, error } = (answer ?? {}) as Record<string, unknown>;
  if (isFound === true && areSums(sums, stripes)) return { isFound, sums, record: record as undefined };
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

/** Of `borrow`: undefined where it has no such block. Throws KV_INVALID_OPTION for what is no answer. */
export function readBorrowed(answer: unknown, tier: string, stripes: number): BorrowedBlock | undefined {
  if (answer === undefined) return undefined;
  const { payload, sums, release } = (answer ?? {}) as Record<string, unknown>;
  if (typedArrayKind(payload) === 'Uint8Array' && areSums(sums, stripes) && typeof release === 'function') {
    return answer as BorrowedBlock;
  }
  throw noAnswer(
    tier, 'borrow',
    '`{ payload, sums, release }`, a Uint8Array, a Uint32Array of one for each stripe and a function, or undefined',
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
  return createError('KV_INVALID_OPTION', {
    reason: 'type', owner: 'Tier', option: `${tier}.${method}`, expected: `a method whose answer is ${answer}`,
    received,
  });
}
