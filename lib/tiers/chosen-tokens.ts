// What selections have chosen of a text, by the running means of the blocks in which tiers have it: for the device's eviction policies, whose text lies
// in rows, not in blocks. A hint. Changes nothing.

import type { PrefixDomain } from '../prefix/domain.js';
import type { CachedExtent } from '../prefix/eviction/eviction-policy.js';
import type { ImportanceMeans } from './importance-means.js';
import type { TierSet } from './tier-set.js';

/** As `ChosenTokens`. */
export function chosenTokens(set: TierSet, means: ImportanceMeans, domain: PrefixDomain, { from, to, copyText }: CachedExtent): number | undefined {
  if (means.blocks === 0) return undefined;
  const { blocks, partial } = set.match(domain, copyText());
  let [chosen, isKnown] = [to - from, false];
  for (const block of partial === undefined ? blocks : [...blocks, partial]) {
    const noted = block.to > from ? means.of(block.key) : undefined;
    if (noted === undefined) continue;
    isKnown = true;
    for (let token = Math.max(from, block.from); token < Math.min(to, block.to); token += 1) chosen -= 1 - noted[token - block.from]!;
  }
  return isKnown ? chosen : undefined;
}
