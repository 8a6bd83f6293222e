// Reads tiers from options: ours, and objects of the user's that implement `Tier`.

import { createError } from '../base/errors.js';
import type { Field, FieldPlace } from '../base/options.js';
import { tierKeepings, type Tier } from './tier.js';

const methods = ['open', 'put', 'get', 'remove', 'statistics', 'close'] as const;

/** A Tier. Throws KV_INVALID_OPTION for anything without its members. */
export const tierField: Field<Tier> = (value, place) => {
  const missing = typeof value === 'object' && value !== null
    ? missingIn(value as Partial<Tier>)
    : 'any member of one';
  if (missing === undefined) return value as Tier;
  throw createError('KV_INVALID_OPTION', {
    reason: 'type', ...place, expected: 'a Tier (hostTier, diskTier, redisTier, or your own)', received: value,
    hint: `It lacks ${missing}.`,
  });
};

function missingIn(tier: Partial<Tier>): string | undefined {
  if (typeof tier.name !== 'string' || tier.name === '') return 'a `name`';
  if (typeof tier.isLasting !== 'boolean') return '`isLasting`';
  if (typeof tier.takesOnlyWholeBlocks !== 'boolean') return '`takesOnlyWholeBlocks`';
  if (tier.keeps !== undefined && !tierKeepings.includes(tier.keeps)) {
    return "a `keeps` of 'recent', 'frequent', 'important' or 'adaptive'";
  }
  if (tier.tenantBytes !== undefined && !(typeof tier.tenantBytes === 'number' && tier.tenantBytes > 0)) {
    return 'a `tenantBytes` that is a number of bytes, above 0';
  }
  if (tier.chunkBytes !== undefined && !(Number.isSafeInteger(tier.chunkBytes) && tier.chunkBytes > 0)) {
    return 'a `chunkBytes` that is a number of bytes, at least 1';
  }
  const method = methods.find((name) => typeof tier[name] !== 'function');
  return method === undefined ? undefined : `\`${method}\``;
}

/** The same tiers. Throws KV_INVALID_OPTION where two have one name. */
export function checkTierNames(tiers: readonly Tier[], place: FieldPlace): readonly Tier[] {
  const names = new Set<string>(['device']); // what the device is called among them
  for (const { name } of tiers) {
    if (names.has(name)) {
      throw createError('KV_INVALID_OPTION', {
        reason: 'range', ...place, expected: 'tiers of different names, none of which is `device`', received: name,
      });
    }
    names.add(name);
  }
  return tiers;
}

/**
 * The same tiers, which are asked in their order. Throws KV_INVALID_OPTION where host memory stands behind a tier that
 * outlives the process and is none: what both have would always be read from the disk or the network.
 */
export function checkTierOrder(tiers: readonly Tier[], place: FieldPlace): readonly Tier[] {
  const lasting = tiers.findIndex(({ isLasting, borrow }) => isLasting && borrow === undefined);
  const behind =
    lasting < 0 ? undefined : tiers.slice(lasting).find(({ isLasting, borrow }) => !isLasting && borrow !== undefined);
  if (behind === undefined) return tiers;
  const received = tiers.map(({ name }) => name).join(', ');
  throw createError('KV_INVALID_OPTION', {
    reason: 'range', ...place, expected: 'the fastest tier first: host memory before disks and stores', received,
    hint: `Put \`${behind.name}\` before \`${tiers[lasting]!.name}\`.`,
  });
}

/** A tier is given to a second cache, or to one again. */
export function tierInUse(owner: string): Error {
  return createError('KV_INVALID_OPTION', {
    reason: 'range', owner: 'KvCache', option: 'prefixCache.tiers', expected: 'a tier that no cache was given before',
    received: owner,
    hint: 'Make one for each cache.',
  });
}
