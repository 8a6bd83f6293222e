// The demand for a pass: whether an open request needs what it computes. That is each request in it, and where all of
// these have ended one that waits and begins with the same text, which it would find in the prefix cache. Searches only
// then. Ends and drops nothing.

import type { Generation } from './generation.js';
import type { Pass } from './step-passes.js';

/**
 * Whether one of the `open` requests needs the answer to a pass. `minTokens`: tokens that a request which waits must
 * save by it, as `minPendingTokens` of schedulers; Infinity: such requests do not count.
 */
export function isPassNeeded(pass: Pass, open: Iterable<Generation>, minTokens: number): boolean {
  if (!pass.hasEnded) return true;
  if (minTokens === Infinity || pass.totalTokens < minTokens) return false;
  for (const waiting of open) {
    if (waiting.sequence !== undefined) continue;
    for (let index = 0; index < pass.length; index += 1) {
      const computed = Math.min(pass.tokenCounts[index]!, savedTokens(waiting, pass.generations[index]!));
      if (computed >= minTokens) return true;
    }
  }
  return false;
}

/** Tokens that `waiting` would not have to compute if those of `ended` were cached which it has not computed yet. */
function savedTokens(waiting: Generation, ended: Generation): number {
  const { request, sequence, text } = ended;
  const isCached = request.input === undefined && sequence?.isLossy !== true && ended.sharesWith(waiting);
  if (!isCached || text[0] !== waiting.text[0] || text[ended.length] !== waiting.text[ended.length]) return 0;
  return commonTokens(waiting, ended) - ended.length;
}

/** Tokens that are compared at once: native code does that 4 times as fast. */
const comparedTokens = 1_024;

/** Tokens from the start that both texts have. */
export function commonTokens(generation: Generation, other: Generation): number {
  const end = Math.min(generation.textTokens, other.textTokens);
  let at = 0;
  if (end > comparedTokens) {
    const [a, b] = [bytesOf(generation.text), bytesOf(other.text)];
    for (let next = 4 * comparedTokens; next <= 4 * end && a.compare(b, 4 * at, next, 4 * at, next) === 0;
        next += 4 * comparedTokens) at = next / 4;
  }
  while (at < end && generation.text[at] === other.text[at]) at += 1;
  return at;
}

function bytesOf({ buffer, byteOffset, byteLength }: Int32Array): Buffer {
  return Buffer.from(buffer, byteOffset, byteLength);
}
