// Suggestions for a name that is not among those that are known: what was probably meant.

import { distance } from 'fastest-levenshtein';

/** The one of `names` that was probably meant; undefined when none is close enough. */
export function closest(name: string, names: readonly string[]): string | undefined {
  const limit = Math.max(1, Math.floor(name.length / 3));
  let best: { name: string; edits: number; start: number } | undefined;
  for (const candidate of names) {
    const edits = distance(name.toLowerCase(), candidate.toLowerCase());
    const start = commonStart(name, candidate);
    if (edits > limit || (best !== undefined && (edits - best.edits || best.start - start) >= 0)) continue;
    best = { name: candidate, edits, start };
  }
  return best?.name;
}

/** Length of the common start: of equally close names, `closest` takes the one with the longest. */
function commonStart(a: string, b: string): number {
  let at = 0;
  while (at < a.length && a[at] === b[at]) at += 1;
  return at;
}

/** A sentence that ends an error's message; undefined where no choice is near. */
export function didYouMean(text: string, choices: readonly string[]): string | undefined {
  const found = closest(text, choices);
  return found === undefined ? undefined : `Did you mean '${found}'?`;
}
