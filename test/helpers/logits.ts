// Logits compared: what an engine answered with what must come out, as a share of the largest logit.

/** What float32 may cost, whatever the order of the sums. */
export const tolerance = 1e-5;

/** The most likely token; of equals the first. */
export function mostLikely(logits: ArrayLike<number>): number {
  let best = 0;
  for (let token = 1; token < logits.length; token += 1) if (logits[token]! > logits[best]!) best = token;
  return best;
}

export function largestOf(logits: ArrayLike<number>): number {
  let largest = 0;
  for (let token = 0; token < logits.length; token += 1) largest = Math.max(largest, Math.abs(logits[token]!));
  return largest;
}

/** The largest difference, as a share of the largest logit expected. NaN where anything is no number. */
export function difference(actual: ArrayLike<number>, expected: ArrayLike<number>): number {
  if (actual.length !== expected.length) return Number.NaN;
  let worst = 0;
  for (let token = 0; token < expected.length; token += 1) {
    const apart = Math.abs(actual[token]! - expected[token]!);
    if (!(apart <= worst)) worst = apart; // NaN is the worst, and stays
    if (Number.isNaN(worst)) break;
  }
  return worst / largestOf(expected);
}

/** Whether a token is the most likely one, or as likely within what float32 may cost. */
export function isLikeliest(token: number, expected: ArrayLike<number>): boolean {
  return expected[token]! >= expected[mostLikely(expected)]! - 2 * tolerance * largestOf(expected);
}
