// virtual-kv: the public API. virtual-kv/testing has the simulated device, virtual-kv/prometheus the metrics.

export { DenseKernels } from './kernels/dense/dense-kernels.js';
export type {
  Activation, FloatBuffer, HeadPairs, Norm, Product, RotationShape, Weight, WeightDtype,
} from './kernels/dense/dense-operands.js';
export type { DenseKernelsOptions } from './kernels/dense/dense-options.js';
export { Kernels, type RowBuffer, type StepSequences } from './kernels/kernels.js';
export type { AttentionRules } from './kernels/attention-rules.js';
export type { KernelsOptions } from './kernels/kernels-options.js';
export type { Instructions } from './device/native-kernels.js';
export type { CapturedSteps, CaptureOptions } from './kernels/captured-steps.js';
export type { RecordedStep } from './kernels/recorded-step.js';
export { loadKernels, type LoadKernelsOptions } from './kernels/load-kernels.js';
export type { SequenceSpans } from './kernels/step-spans.js';
export type { TokenCopy } from './kernels/token-copies.js';
export { Batch } from './cache/batch.js';
export { DeviceMemory, type DeviceMemoryOptions } from './device/device-memory.js';
export {
  Driver, type DriverChoice, type DriverInfo, type DriverKind, type DriverMemory, type DriverOptions,
  type SynchronizeOptions,
} from './device/driver.js';
export type { Tensor } from './cache/slots.js';
export { KvCache } from './kv-cache/kv-cache.js';
export type { PassArrays } from './kv-cache/native-structs.js';
export type { CacheLayer, ElementStrides, LayerTensor } from './kv-cache/cache-layers.js';
export type { CacheCounts, CacheMetrics } from './kv-cache/statistics.js';
export type { AcquireOptions, PromptOptions } from './kv-cache/acquire-options.js';
export type { Tokens } from './prefix/prompt-tokens.js';
export type { KvCacheOptions } from './kv-cache/kv-cache-options.js';
export type { PrefixCacheOptions, PrefixEventsOptions } from './kv-cache/kv-cache-options.js';
export type {
  PrefixClearedEvent, PrefixDroppedEvent, PrefixDropReason, PrefixEvent, PrefixRemovedEvent, PrefixStoredEvent,
  TierRemovedEvent, TierStoredEvent,
} from './kv-cache/prefix-events.js';
export { prefixBlockKeys, type PrefixBlockKeysOptions } from './kv-cache/prefix-block-keys.js';
export { contentHash, type PromptItem, type PromptItemKind } from './prefix/prompt-encoder.js';
export type { PrefixDrop, PrefixExplanation, PrefixLookup } from './kv-cache/cached-texts.js';
export {
  Prefixes, type PrefixDropOptions, type PrefixLookupOptions, type PrefetchOptions, type PrefixResetOptions,
  type PromoteOptions,
} from './kv-cache/prefixes.js';
export type { PrefixMetrics } from './kv-cache/statistics.js';
export type { CopyStaging } from './tiers/transfers.js';
export type { CacheTiers } from './tiers/cache-tiers.js';
export type { TierMetrics, TiersMetrics } from './tiers/tiers-metrics.js';
export type { ReorderingCounts, ReorderOptions } from './tiers/selection/reordering.js';
export type { LeftInTiers, Promotion, PromotionEnd } from './tiers/promotion.js';
export type { TextPlace, TiersExplanation } from './tiers/text-places.js';
export type { BlockAbsence } from './tiers/tier-calls.js';
export type { LoadComparison, LoadPart } from './tiers/load-plan.js';
export type { Durability } from './store/disk-store-options.js';
export { diskTier, type DiskTierOptions } from './tiers/disk-tier.js';
export { hostTier, type HostTierOptions } from './tiers/host-tier.js';
export type {
  BlockRecord, BorrowedBlock, GetMiss, PutRefusal, Tier, TierContext, TierGet, TierKeeping, TierPut, TierRemoval,
  TierStatistics, TierTokens, TierTokensGet,
} from './tiers/tier.js';
export type { ImportanceOptions } from './tiers/selection/probes.js';
export type { SelectedText } from './tiers/selection/selected-text.js';
export type { SelectionOptions } from './tiers/selection/selected-text.js';
export type { SelectionCounts } from './cache/sequence.js';
export type { LayerQueries, SelectedRows, TokenSelection } from './cache/sequence.js';
export {
  allHeads, firstAndLast, probeHeads, randomTokens,
  type FirstAndLastOptions, type LayerChoice, type RandomTokensOptions, type TokenSelector,
} from './tiers/selection/selectors.js';
export type { CachedBy } from './cache/admission.js';
export {
  byteOffset, computeLayout, layoutKinds,
  type ConstantSetLayout, type LayerSetLayout, type Layout, type LayoutKind, type LayoutOptions, type LayoutReason,
  type ReservationSpec, type RowLayout, type TensorPlacement, type TensorStrides,
} from './layout/layout.js';
export type {
  ChunkSetShape, FixedSetShape, FullSetShape, LayerSetHeads, LayerSetShape, SharedSetShape, StateSetShape,
  StateTensorShape, WindowSetShape,
} from './layout/layer-set-shape.js';
export { tensorsOf, type LayerShape, type ModelShape, type ParallelShape } from './layout/model-shape.js';
export { PagePool, type PagePoolOptions, type PoolCounts } from './device/page-pool.js';
export type { CommitOptions, Fence, ReleaseOptions } from './cache/slot-fences.js';
export { Sequence } from './cache/sequence.js';
export { HandOver } from './side/hand-over.js';
export type { DeviceRows } from './side/side-rows.js';
export type { SideRowsByName } from './side/side-rows.js';
export type { SideTensorShape, SideTensorShapes } from './side/open-side-tensors.js';
export type { SideCounts } from './side/side-budget.js';
export type { SideTensorInfo } from './side/side-tensors.js';
export {
  dtypeBytes, dtypes, sideDtypes,
  type Dtype, type RowDtype, type SideDtype, type SideView, type TensorSpec, type TensorView,
} from './base/dtypes.js';
export type { WaitOptions } from './device/wait.js';
export { ahead, onDemand, type GrowthPolicy } from './cache/steps.js';
export {
  adaptive, importance, lfu, lru, priority, slru, type CachedExtent, type DropReason, type EvictionContext,
  type EvictionPolicy, type EvictionPolicyFactory,
  type ImportanceEvictionOptions, type LeastFrequentlyUsedOptions, type NodeView, type OfferedText,
  type PriorityOptions, type ReleasedRequest,
  type SegmentedLruOptions, type SelectedExtent,
} from './prefix/index.js';
export { byArrival, byTenantShare, type OrderedRequest, type RequestOrder } from './serving/request-order.js';
export type { Engine, EngineOutput, EnginePass } from './serving/engine.js';
export type { AnswerTokenizer, TokenPieces } from './serving/answer-text.js';
export type { FinishReason, GenerationAdmission, GenerationResult } from './serving/generation-result.js';
export type { LikelyToken, TokenLogProbability } from './serving/plain-sampling.js';
export { NaiveScheduler } from './serving/naive.js';
export { OfflineScheduler, type OfflineSchedulerOptions } from './serving/offline.js';
export { OnlineScheduler, type OnlineSchedulerOptions } from './serving/online.js';
export type { ServingTotals } from './serving/open-requests.js';
export type { BadLogitsEvent } from './serving/bad-logits.js';
export { ServingTimes } from './serving/serving-times.js';
export { TimeHistogram } from './base/time-histogram.js';
export type { GenerationOutcome } from './serving/outcome.js';
export type { GenerationRequest } from './serving/request.js';
export type { SampledText } from './serving/sampled-text.js';
export { greedy, randomSampler, type Sampler, type SamplerOptions } from './serving/sampling.js';
export type { SchedulerOptions } from './serving/scheduler-options.js';
export { TokenStream } from './serving/token-stream.js';
export { EncoderCache, type EncoderCounts, type EncoderMetrics } from './side/encoder-cache.js';
export { EncoderHold } from './side/encoder-items.js';
export type {
  EncoderAcquireOptions, EncoderCacheOptions, EncoderComputation, EncoderItemName, EncoderKindOptions,
} from './side/encoder-options.js';
export {
  SideTensorSuggestion, suggestSideTensors, type PassedThrough, type PassThroughReason, type SuggestedSideTensor,
} from './side/suggest-side-tensors.js';
export { redisTier, type RedisBreakerOptions, type RedisClient, type RedisTierOptions } from './tiers/redis-tier.js';
export type { PrefixDomainParts } from './prefix/domain.js';
export {
  isKvError, KvAbortError, KvCapacityError, KvDriverError, KvError, KvStateError,
  type CodedError, type DriverCall, type ErrorCode, type ErrorDetails, type Recovery, type RemoteRefusal,
  type UnavailableReason,
} from './base/errors.js';
