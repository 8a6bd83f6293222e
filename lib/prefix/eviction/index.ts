// The one list of the eviction policies that come with the package. `lib/index.ts` exports each.

import { adaptive } from './adaptive.js';
import { importance } from './importance.js';
import { lfu } from './lfu.js';
import { lru } from './lru.js';
import { priority } from './priority.js';
import { slru } from './slru.js';

export type { ImportanceEvictionOptions } from './importance.js';
export type { LeastFrequentlyUsedOptions } from './lfu.js';
export type { PriorityOptions } from './priority.js';
export type { SegmentedLruOptions } from './slru.js';

/** The eviction policies, by the names that `vkv replay`, results, hints in errors and tests use, the default first. */
export const evictionPolicies = { adaptive, lru, slru, lfu, importance, priority } as const;

export type EvictionPolicyName = keyof typeof evictionPolicies;

export const evictionPolicyNames = Object.keys(evictionPolicies) as readonly EvictionPolicyName[];

export { adaptive, importance, lfu, lru, priority, slru };
