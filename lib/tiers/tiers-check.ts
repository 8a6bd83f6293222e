// checkTiers: looks through all that is known of stored text for what must always hold, and throws KV_INTERNAL at the
// first thing that does not. For tests: it takes time in proportion to everything that is stored.

import { createError } from '../base/errors.js';
import type { OpenTier } from './open-tier.js';
import type { StoredBlock, StoredTexts } from './stored-texts.js';

export function checkTiers(texts: StoredTexts, tiers: readonly OpenTier[]): void {
  let places = 0;
  let blocks = 0;
  for (const block of texts.all()) {
    blocks += 1;
    places += tiers.filter((_, number) => (block.tiers & (1 << number)) !== 0).length;
    expect(
      block.parent !== undefined && block.parent.to === block.from,
      'a stored block does not begin where the one before it ends', block.from, block.parent?.to);
    expect(
      block.parent.children.filter((child) => child === block).length === 1,
      'a stored block does not hang on the one before it', block.from);
    expect(
      block.parent.parent === undefined || texts.find(block.parent.key) === block.parent,
      'the block before a stored one is not known', block.from);
    expect(
      block.level <= block.parent.level, 'a stored block has a higher priority level than the one before it',
      block.from, block.level);
    expect(
      block.tiers !== 0 || block.pins > 0 || block.children.length > 0, 'a block that no tier has is kept for nothing',
      block.from);
  }
  expect(blocks === texts.blocks, 'the count of stored blocks is wrong', texts.blocks, blocks);
  const told = tiers.reduce((sum, tier) => sum + checkContents(texts, tier), 0);
  expect(told === places, 'tiers have other blocks than the texts say', places, told);
}

/** Returns how many blocks the tier has. */
function checkContents(texts: StoredTexts, { contents }: OpenTier): number {
  const seen = new Set<StoredBlock>();
  let bytes = 0;
  for (const block of contents.blocks()) {
    expect(
      texts.find(block.key) === block && (block.tiers & (1 << contents.number)) !== 0,
      'a tier has a block that the texts do not know there', block.from);
    expect(
      block.parent === undefined || !seen.has(block.parent), 'a block was used later than the one before it',
      block.from);
    seen.add(block);
    bytes += contents.bytesOf(block);
  }
  expect(bytes === contents.bytes, 'the bytes of a tier are counted wrong', contents.bytes, bytes);
  expect(
    contents.tenants === undefined || contents.tenants.bytes === contents.bytes,
    'the bytes of tenants in a tier are counted wrong', contents.bytes, contents.tenants?.bytes);
  expect(seen.size === contents.count, 'the blocks of a tier are counted wrong', contents.count, seen.size);
  return seen.size;
}

function expect(isRight: boolean, problem: string, what = 0, howMany = 0): asserts isRight {
  if (!isRight) throw createError('KV_INTERNAL', { problem, what, howMany });
}
