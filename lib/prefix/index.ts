// The prefix index: text that is cached, found by its tokens.

export {
  domainParts, prefixDomain, sharedDomain, type PrefixDomain, type PrefixDomainPart, type PrefixDomainParts,
} from './domain.js';
export { adaptive } from './eviction/adaptive.js';
export type { EvictionContext, EvictionPolicy, EvictionPolicyFactory, NodeView, ReleasedRequest } from './eviction/eviction-policy.js';
export { importance, type CachedExtent, type ImportanceEvictionOptions } from './eviction/importance.js';
export { lfu, type LeastFrequentlyUsedOptions } from './eviction/lfu.js';
export { lru } from './eviction/lru.js';
export { priority, type PriorityOptions } from './eviction/priority.js';
export { slru, type SegmentedLruOptions } from './eviction/slru.js';
export type { PrefixExplanation } from './prefix-explanation.js';
export type { PrefixHit } from './prefix-hit.js';
export { PrefixIndex, type PrefixIndexOptions } from './prefix-index.js';
export type { PathOptions, PrefixPath } from './prefix-path.js';
export type { TextListener } from './prefix-tree.js';
export {
  PromptEncoder, type ItemNames, type PromptEncoderOptions, type PromptItem, type PromptItemKind, type TextSource,
} from './prompt-encoder.js';
export { dropReasons, type DropReason, type DroppedRows } from './dropped-rows.js';
export { rowArithmetic, type RowArithmetic, type RowShape } from '../layout/row-arithmetic.js';
