// The kernels of decode attention: decode_inl.h for each type, head dim and number of query heads, and the sum of the
// splits.
#include "kernels/cuda/decode_inl.h"

namespace vkv::kernels::cuda {

// The largest, or the sum, of one number of each thread of a block, in all of them.
struct MergeShared {
  float factors[kMostSplits];
  float warps[2][kDecodeThreads / 32];
};
template <typename Join>
__device__ inline float JoinThreads(float value, float (&warps)[kDecodeThreads / 32], const Join& join) {
  for (int other = 16; other > 0; other /= 2) value = join(value, __shfl_xor_sync(0xffffffffu, value, other));
  if (threadIdx.x % 32 == 0) warps[threadIdx.x / 32] = value;
  __syncthreads();
  value = warps[0];
  for (int warp = 1; warp < kDecodeThreads / 32; ++warp) value = join(value, warps[warp]);
  return value;
}

// Sums of so many splits a thread loads before it uses the first.
constexpr int kMergeAtOnce = 32;

// One element's sums in the splits from `first` on, `stride` floats apart; zeros beyond the last.
__device__ inline void LoadSums(float (&sums)[kMergeAtOnce], const float* partials, int stride, int first, int splits) {
  VKV_UNROLL
  for (int k = 0; k < kMergeAtOnce; ++k) sums[k] = first + k < splits ? partials[(first + k) * stride] : 0.0f;
}

// Sums up the splits of one query head. The threads share the splits first, and then the elements. Its time is that of
// loads which wait for each other, so the first sums come while their factors are found, and all others many at once.
VKV_KERNEL vkv_merge(const __grid_constant__ DecodeParameters parameters) {
  __shared__ MergeShared shared;
  const AttentionCommand& command = parameters.command;
  const Span span = SpanAt(parameters.spans, blockIdx.y);
  if (span.tokens == 0) return;
  const int dim = command.values.dim;
  const int stride = kPartialHeader + dim;
  const int seen = span.length + 1 - FirstSeen(command, span.length);
  const int split_tokens = SplitTokensOf(parameters, seen);
  const int splits = (seen - 1) / split_tokens + 1;
  const int64_t out = static_cast<int64_t>(span.first_row) * command.query_heads + blockIdx.x;
  const float* const partials =
      reinterpret_cast<const float*>(parameters.partials) +
      (static_cast<int64_t>(blockIdx.y) * command.query_heads + blockIdx.x) * parameters.splits * stride;
  const int own = threadIdx.x;
  float sums[kMergeAtOnce];
  LoadSums(sums, partials + kPartialHeader + own, stride, 0, own < dim ? splits : 0);
  float most = kLeastScore;
  for (int s = own; s < splits; s += kDecodeThreads) most = fmaxf(most, partials[s * stride]);
  most = JoinThreads(most, shared.warps[0], [](float a, float b) { return fmaxf(a, b); });
  float whole = 0;
  for (int s = own; s < splits; s += kDecodeThreads) {
    const float* const partial = partials + s * stride;
    shared.factors[s] = PowerOf(partial[0], most);
    whole += shared.factors[s] * partial[1];
  }
  whole = JoinThreads(whole, shared.warps[1], [](float a, float b) { return a + b; });
  for (int element = own; element < dim; element += kDecodeThreads) {
    float sum = 0;
    VKV_KEEP_LOOP
    for (int first = 0; first < splits; first += kMergeAtOnce) {
      if (first != 0 || element != own) LoadSums(sums, partials + kPartialHeader + element, stride, first, splits);
      VKV_UNROLL
      for (int k = 0; k < kMergeAtOnce; ++k)
        if (first + k < splits) sum += shared.factors[first + k] * sums[k];
    }
    StoreElement(command.output, command.row_dtype, out * dim + element, sum / whole);
  }
}

#define VKV_DECODE(name, type, elements, dim, heads)                                           \
  VKV_KERNEL_FOR(kDecodeThreads, DecodeBlocks(sizeof(type), dim, heads))                       \
  vkv_decode_##name##_d##dim##_h##heads(const __grid_constant__ DecodeParameters parameters) { \
    Decode<PlaceInSlot, type, elements, dim, heads>(parameters);                               \
  }
#define VKV_DECODE_HEADS(name, type, elements, dim) \
  VKV_DECODE(name, type, elements, dim, 1)          \
  VKV_DECODE(name, type, elements, dim, 4)          \
  VKV_DECODE(name, type, elements, dim, 8)
#define VKV_DECODE_DIMS(name, type, elements)                                    \
  VKV_DECODE_HEADS(name, type, elements, 64)                                     \
  VKV_DECODE_HEADS(name, type, elements, 128)                                    \
  VKV_DECODE(name, type, elements, 256, 1)                                       \
  VKV_DECODE(name, type, elements, 256, 4)                                       \
  VKV_KERNEL_FOR(kDecodeThreads, kPlainDecodeBlocks)                             \
  vkv_decode_##name##_any(const __grid_constant__ DecodeParameters parameters) { \
    Decode<PlaceInSlot, type, 1, kMostDim, 1>(parameters);                       \
  }
VKV_DECODE_DIMS(f32, float, 4)
VKV_DECODE_DIMS(f16, HalfBits, 8)
VKV_DECODE_DIMS(bf16, BfloatBits, 8)

}  // namespace vkv::kernels::cuda
