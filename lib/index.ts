// virtual-kv: the public API. The simulated device for tests is in virtual-kv/testing.

export { DenseKernels, type FloatBuffer, type Norm, type Product, type Weight } from './kernels/dense-kernels.js';
export type { DenseKernelsOptions } from './kernels/dense-options.js';
export { Kernels, type RowBuffer, type StepSequences } from './kernels/kernels.js';
export type { Instructions, KernelsOptions, RowDtype } from './kernels/kernels-options.js';
export type { CapturedSteps, CaptureOptions, RecordedStep } from './kernels/captured-steps.js';
export { loadKernels, type LoadKernelsOptions } from './kernels/load-kernels.js';
export type { SequenceSpans } from './kernels/step-spans.js';
export type { TokenCopy } from './kernels/token-copies.js';
export { Batch } from './memory/batch.js';
export { DeviceMemory, type DeviceMemoryOptions } from './memory/device-memory.js';
export { Driver, type DriverInfo, type DriverKind, type DriverMemory, type DriverOptions } from './memory/driver.js';
export type { Tensor } from './memory/cache-rooms.js';
export { KvCache } from './memory/kv-cache.js';
export type { CacheCounts, CacheMetrics } from './memory/accounts.js';
export type { AcquireOptions, PromptOptions, Tokens } from './memory/acquire-options.js';
export type { KvCacheOptions } from './memory/kv-cache-options.js';
export type { PrefixCacheOptions, PrefixEventsOptions } from './memory/prefix/prefix-options.js';
export type { PrefixMetrics } from './memory/prefix/prefix-statistics.js';
export type { PrefixClearedEvent, PrefixEvent, PrefixRemovedEvent, PrefixStoredEvent } from './memory/prefix/prefix-events.js';
export { prefixBlockKeys, type PrefixBlockKeysOptions } from './memory/prefix/prefix-block-keys.js';
export type { PrefixExplanation } from './policy/prefix/prefix-explanation.js';
export type { PromptItem, PromptItemKind } from './policy/prefix/prefix-text.js';
export { Prefixes, type PrefixLookup, type PrefixResetOptions } from './memory/prefix/prefixes.js';
export type { CachedBy } from './memory/prefix/prompt.js';
export {
  byteOffset, computeLayout, layoutKinds,
  type Layout, type LayoutKind, type LayoutOptions, type ReservationSpec, type TensorPlacement, type TensorStrides,
} from './memory/layout.js';
export {
  dtypeBytes, dtypes, tensorsOf, type Dtype, type LayerShape, type ModelShape, type ParallelShape, type TensorSpec,
} from './memory/model-shape.js';
export { PagePool, type PagePoolOptions, type PoolCounts } from './memory/page-pool.js';
export type { CommitOptions, Fence, ReleaseOptions } from './memory/fence.js';
export { Sequence } from './memory/sequence.js';
export type { TensorView } from './memory/views.js';
export type { WaitOptions } from './memory/wait.js';
export { ahead, onDemand, type GrowthPolicy } from './policy/growth.js';
export type { IdleSlots } from './policy/idle-slots.js';
export { bestFit, type PlacementPolicy } from './policy/placement.js';
export {
  adaptive, lfu, lru, priority, slru, type DropReason, type EvictionContext, type EvictionPolicy, type EvictionPolicyFactory,
  type LeastFrequentlyUsedOptions, type NodeView, type PriorityOptions, type SegmentedLruOptions,
} from './policy/prefix/index.js';
export { leastRecentlyUsed, type ReclaimPolicy } from './policy/reclaim.js';
export { byArrival, byTenantShare, type OrderedRequest, type RequestOrder } from './policy/request-order.js';
export * from './serving/index.js';
export {
  isKvError, KvAbortError, KvCapacityError, KvDriverError, KvError, KvStateError,
  type CodedError, type DriverCall, type ErrorCode, type ErrorDetails, type Recovery, type UnavailableReason,
} from './errors/index.js';
