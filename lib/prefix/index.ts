// The prefix index: text that is cached, found by its tokens; and the eviction policies that come with the package.

export {
  domainParts, prefixDomain, sharedDomain, type PrefixDomain, type PrefixDomainPart, type PrefixDomainParts,
} from './domain.js';
export type {
  CachedExtent, EvictionContext, EvictionPolicy, EvictionPolicyFactory, NodeView, OfferedText, ReleasedRequest,
  SelectedExtent,
} from './eviction/eviction-policy.js';
export * from './eviction/index.js';
export type { PrefixExplanation, PrefixHit } from './prefix-hit.js';
export { PrefixIndex, type PrefixIndexOptions } from './prefix-index.js';
export type { PathOptions, PrefixPath, TextListener } from './prefix-tree.js';
export {
  PromptEncoder, type ItemNames, type PromptEncoderOptions, type PromptItem, type PromptItemKind, type TextSource,
} from './prompt-encoder.js';
export { dropReasons, type DropReason, type DroppedRows } from './row-ledger.js';
export { rowArithmetic, type RowArithmetic, type RowShape } from '../base/row-arithmetic.js';
