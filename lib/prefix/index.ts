// The prefix index: text that is cached, found by its tokens; and the one list of the eviction policies that come with the package.

import { adaptive } from './eviction/adaptive.js';
import { importance } from './eviction/importance.js';
import { lfu } from './eviction/lfu.js';
import { lru } from './eviction/lru.js';
import { priority } from './eviction/priority.js';
import { slru } from './eviction/slru.js';

export {
  domainParts, prefixDomain, sharedDomain, type PrefixDomain, type PrefixDomainPart, type PrefixDomainParts,
} from './domain.js';
export type {
  CachedExtent, EvictionContext, EvictionPolicy, EvictionPolicyFactory, NodeView, OfferedText, ReleasedRequest, SelectedExtent,
} from './eviction/eviction-policy.js';
export type { ImportanceEvictionOptions } from './eviction/importance.js';
export type { LeastFrequentlyUsedOptions } from './eviction/lfu.js';
export type { PriorityOptions } from './eviction/priority.js';
export type { SegmentedLruOptions } from './eviction/slru.js';
export type { PrefixExplanation } from './prefix-explanation.js';
export type { PrefixHit } from './prefix-hit.js';
export { PrefixIndex, type PrefixIndexOptions } from './prefix-index.js';
export type { PathOptions, PrefixPath } from './prefix-path.js';
export type { TextListener } from './prefix-tree.js';
export {
  PromptEncoder, type ItemNames, type PromptEncoderOptions, type PromptItem, type PromptItemKind, type TextSource,
} from './prompt-encoder.js';
export { dropReasons, type DropReason, type DroppedRows } from './dropped-rows.js';
export { rowArithmetic, type RowArithmetic, type RowShape } from '../base/row-arithmetic.js';

/** The eviction policies, by the names that `vkv replay`, results, hints in errors and tests use, the default first. */
export const evictionPolicies = { adaptive, lru, slru, lfu, importance, priority } as const;

export type EvictionPolicyName = keyof typeof evictionPolicies;

export const evictionPolicyNames = Object.keys(evictionPolicies) as readonly EvictionPolicyName[];

export { adaptive, importance, lfu, lru, priority, slru };
