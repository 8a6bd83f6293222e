// The prefix index: text that is cached, found by its tokens.

export {
  domainParts, prefixDomain, sharedDomain, type PrefixDomain, type PrefixDomainPart, type PrefixDomainParts,
} from './domain.js';
export { dropReasons, type DropReason, type DroppedRows } from './dropped-rows.js';
export type { EvictionContext, EvictionPolicy, EvictionPolicyFactory } from './eviction-policy.js';
export { lru } from './lru.js';
export type { NodeView } from './node-table.js';
export type { PrefixExplanation } from './prefix-explanation.js';
export { PrefixIndex } from './prefix-index.js';
export type { PrefixIndexOptions } from './prefix-index-options.js';
export type { PrefixMatch } from './prefix-match.js';
export type { PathOptions, PrefixPath } from './prefix-path.js';
export {
  PrefixTexts, type PrefixTextsOptions, type PromptItem, type PromptItemKind, type TextSource,
} from './prefix-text.js';
export { rowArithmetic, type RowArithmetic, type RowShape } from './row-arithmetic.js';
export type { TextListener } from './text-listener.js';
