// virtual-kv: the public API. virtual-kv/testing has the simulated device, virtual-kv/prometheus the metrics.

export { DenseKernels } from './kernels/dense/dense-kernels.js';
export type { FloatBuffer, Norm, Product, Weight } from './kernels/dense/dense-operands.js';
export type { DenseKernelsOptions } from './kernels/dense/dense-options.js';
export { Kernels, type RowBuffer, type StepSequences } from './kernels/kernels.js';
export type { Instructions, KernelsOptions, RowDtype } from './kernels/kernels-options.js';
export type { CapturedSteps, CaptureOptions } from './kernels/captured-steps.js';
export type { RecordedStep } from './kernels/recorded-step.js';
export { loadKernels, type LoadKernelsOptions } from './kernels/load-kernels.js';
export type { SequenceSpans } from './kernels/step-spans.js';
export type { TokenCopy } from './kernels/token-copies.js';
export { Batch } from './cache/batch.js';
export { DeviceMemory, type DeviceMemoryOptions } from './device/device-memory.js';
export { Driver, type DriverInfo, type DriverKind, type DriverMemory, type DriverOptions } from './device/driver.js';
export type { Tensor } from './cache/slot-memory.js';
export { KvCache } from './cache/kv-cache.js';
export type { CacheCounts, CacheMetrics } from './cache/statistics.js';
export type { AcquireOptions, PromptOptions, Tokens } from './cache/acquire-options.js';
export type { KvCacheOptions } from './cache/kv-cache-options.js';
export type { PrefixCacheOptions, PrefixEventsOptions } from './cache/prefix-options.js';
export type { PrefixClearedEvent, PrefixEvent, PrefixRemovedEvent, PrefixStoredEvent } from './cache/prefix-events.js';
export { prefixBlockKeys, type PrefixBlockKeysOptions } from './cache/prefix-block-keys.js';
export type { PromptItem, PromptItemKind } from './prefix/prompt-encoder.js';
export { Prefixes, type PrefixExplanation, type PrefixLookup, type PrefixLookupOptions, type PrefixMetrics, type PrefixResetOptions } from './cache/prefixes.js';
export type { CachedBy } from './cache/admission-request.js';
export {
  byteOffset, computeLayout, layoutKinds,
  type Layout, type LayoutKind, type LayoutOptions, type ReservationSpec, type TensorPlacement, type TensorStrides,
} from './layout/layout.js';
export {
  dtypeBytes, dtypes, tensorsOf, type Dtype, type LayerShape, type ModelShape, type ParallelShape, type TensorSpec,
} from './layout/model-shape.js';
export { PagePool, type PagePoolOptions, type PoolCounts } from './device/page-pool.js';
export type { CommitOptions, Fence, ReleaseOptions } from './cache/fence.js';
export { Sequence } from './cache/sequence.js';
export { HandOver } from './side/hand-over.js';
export type { SideRowsByName } from './side/side-rows.js';
export type { SideTensorShape, SideTensorShapes } from './side/side-tensor-options.js';
export type { SideCounts, SideTensorInfo } from './side/side-tensors.js';
export type { TensorView } from './layout/dtype-arrays.js';
export type { WaitOptions } from './cache/wait.js';
export {
  ahead, bestFit, leastRecentlyUsed, onDemand, type GrowthPolicy, type IdleSlots, type PlacementPolicy, type ReclaimPolicy,
} from './cache/memory-policies.js';
export {
  adaptive, lfu, lru, priority, slru, type DropReason, type EvictionContext, type EvictionPolicy, type EvictionPolicyFactory,
  type LeastFrequentlyUsedOptions, type NodeView, type PriorityOptions, type SegmentedLruOptions,
} from './prefix/index.js';
export { byArrival, byTenantShare, type OrderedRequest, type RequestOrder } from './serving/request-order.js';
export * from './serving/index.js';
export { contentHash } from './side/content-hash.js';
export { EncoderCache, type EncoderCounts, type EncoderMetrics } from './side/encoder-cache.js';
export { EncoderHold } from './side/encoder-hold.js';
export type {
  EncoderAcquireOptions, EncoderCacheOptions, EncoderComputation, EncoderItemName, EncoderKindOptions,
} from './side/encoder-options.js';
export {
  SideTensorSuggestion, suggestSideTensors, type PassedThrough, type PassThroughReason, type SuggestedSideTensor,
} from './side/suggest-side-tensors.js';
export type { PrefixDomainParts } from './prefix/domain.js';
export {
  isKvError, KvAbortError, KvCapacityError, KvDriverError, KvError, KvStateError,
  type CodedError, type DriverCall, type ErrorCode, type ErrorDetails, type Recovery, type UnavailableReason,
} from './base/errors.js';
