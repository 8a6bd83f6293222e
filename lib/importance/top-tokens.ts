// Top tokens: the tokens with the highest scores, and those with the most votes of several heads. Ties go to the earlier token, so that a
// choice is the same wherever it is made. Pure.

/** The `count` tokens with the highest scores, ascending. What is no number is lowest. */
export function topTokens(scores: Float32Array, count: number): Int32Array {
  if (count <= 0) return new Int32Array(0);
  if (count >= scores.length) return Int32Array.from(scores, (_, token) => token);
  const known = scores.map((score) => (Number.isNaN(score) ? -Infinity : score));
  const least = known.slice().sort()[known.length - count]!;
  let ties = count;
  for (const score of known) if (score > least) ties -= 1;
  const top = new Int32Array(count);
  let at = 0;
  for (let token = 0; token < known.length; token += 1) {
    if (known[token]! < least) continue;
    if (known[token] === least && ties-- <= 0) continue;
    top[at++] = token;
  }
  return top;
}

/** The `count` tokens that most heads chose, ascending; of as many votes the one with the higher sum of scores, then the earlier one. */
export function mostVoted(sets: readonly Int32Array[], scores: readonly Float32Array[], count: number): Int32Array {
  const votes = new Map<number, number>();
  for (const set of sets) for (const token of set) votes.set(token, (votes.get(token) ?? 0) + 1);
  const sumOf = (token: number): number => scores.reduce((sum, head) => sum + (head[token] ?? 0), 0);
  const candidates = [...votes].map(([token, count]) => ({ token, count, sum: sumOf(token) }));
  candidates.sort((a, b) => b.count - a.count || b.sum - a.sum || a.token - b.token);
  return Int32Array.from(candidates.slice(0, count), ({ token }) => token).sort();
}
