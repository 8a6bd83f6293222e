// What selections have made of a text, by the running means and the uses of the blocks in which tiers have it: for the
// device's eviction policies, whose text lies in rows, not in blocks. A hint. Changes nothing.

import type { PrefixDomain } from '../prefix/domain.js';
import type { CachedExtent, SelectedExtent } from '../prefix/eviction/eviction-policy.js';
import type { ImportanceMeans } from './importance-means.js';
import type { TierSet } from './tier-set.js';

/** As `SelectedOf`. */
export function selectedOf(
  set: TierSet, means: ImportanceMeans, domain: PrefixDomain, { from, to, copyText }: CachedExtent,
): SelectedExtent | undefined {
  if (means.blocks === 0) return undefined;
  const { blocks, partial } = set.match(domain, copyText());
  let [chosenTokens, uses, isKnown] = [to - from, 0, false];
  for (const block of partial === undefined ? blocks : [...blocks, partial]) {
    const noted = block.to > from ? means.of(block.key) : undefined;
    if (noted === undefined) continue;
    [isKnown, uses] = [true, block.uses];
    for (let token = Math.max(from, block.from); token < Math.min(to, block.to); token += 1) {
      chosenTokens -= 1 - noted[token - block.from]!;
    }
  }
  return isKnown ? { chosenTokens, uses } : undefined;
}
