// The prefix index: text that is cached, found by its tokens.

export { adaptive } from './eviction/adaptive.js';
export { blockKey, blockKeys, domainKey, formatBlockKey, type BlockKey } from './chain-key.js';
export {
  domainParts, prefixDomain, sharedDomain, type PrefixDomain, type PrefixDomainPart, type PrefixDomainParts,
} from './domain.js';
export { dropReasons, type DropReason, type DroppedRows } from './dropped-rows.js';
export type { EvictionContext, EvictionPolicy, EvictionPolicyFactory, NodeView } from './eviction/eviction-policy.js';
export { lfu, type LeastFrequentlyUsedOptions } from './eviction/lfu.js';
export type { ItemNames } from './key-words.js';
export { lru } from './eviction/lru.js';
export type { PrefixExplanation } from './prefix-explanation.js';
export type { PrefixHit } from './prefix-hit.js';
export { PrefixIndex } from './prefix-index.js';
export type { PrefixIndexOptions } from './prefix-index-options.js';
export type { PathOptions, PrefixPath } from './prefix-path.js';
export {
  PrefixTexts, type PrefixTextsOptions, type PromptItem, type PromptItemKind, type TextSource,
} from './prefix-text.js';
export { priority, type PriorityOptions } from './eviction/priority.js';
export { rowArithmetic, type RowArithmetic, type RowShape } from '../layout/row-arithmetic.js';
export { slru, type SegmentedLruOptions } from './eviction/slru.js';
export type { BlockChanges, RemovedBlocks, StoredBlocks, StoredBlocksOptions, StoredRun } from './stored-blocks.js';
export type { TextListener } from './text-listener.js';
