// The kernels of decode attention: decode_inl.h for each type, head dim and number of query heads, and the sum of the splits.
#include "kernels/cuda/decode_inl.h"

namespace vkv::kernels::cuda {

// Sums up the splits of one query head.
VKV_KERNEL vkv_merge(const __grid_constant__ DecodeParameters parameters) {
  const AttentionCommand& command = parameters.command;
  const Span& span = parameters.spans.entries[blockIdx.y];
  if (span.tokens == 0) return;
  const int dim = command.values.dim;
  const int splits = (span.length + parameters.split_tokens) / parameters.split_tokens;  // of length + 1 tokens
  const int64_t out = static_cast<int64_t>(span.first_row) * command.query_heads + blockIdx.x;
  const float* const partials =
      reinterpret_cast<const float*>(parameters.partials) +
      (static_cast<int64_t>(blockIdx.y) * command.query_heads + blockIdx.x) * parameters.splits * (kPartialHeader + dim);
  float most = kMinusInfinity;
  for (int s = 0; s < splits; ++s) most = fmaxf(most, partials[s * (kPartialHeader + dim)]);
  for (int element = threadIdx.x; element < dim; element += blockDim.x) {
    float sum = 0;
    float whole = 0;
    for (int s = 0; s < splits; ++s) {
      const float* const partial = partials + s * (kPartialHeader + dim);
      const float factor = PowerOf(partial[0], most);
      sum += factor * partial[kPartialHeader + element];
      whole += factor * partial[1];
    }
    StoreElement(command.output, command.row_dtype, out * dim + element, sum / whole);
  }
}

#define VKV_DECODE(name, type, elements, dim, heads)                                                    \
  VKV_KERNEL vkv_decode_##name##_d##dim##_h##heads(const __grid_constant__ DecodeParameters parameters) { \
    Decode<PlaceInSlot, type, elements, dim, heads>(parameters);                                                     \
  }
#define VKV_DECODE_HEADS(name, type, elements, dim) \
  VKV_DECODE(name, type, elements, dim, 1)          \
  VKV_DECODE(name, type, elements, dim, 4)          \
  VKV_DECODE(name, type, elements, dim, 8)
#define VKV_DECODE_DIMS(name, type, elements)                                                  \
  VKV_DECODE_HEADS(name, type, elements, 64)                                                   \
  VKV_DECODE_HEADS(name, type, elements, 128)                                                  \
  VKV_DECODE(name, type, elements, 256, 1)                                                     \
  VKV_DECODE(name, type, elements, 256, 4)                                                     \
  VKV_KERNEL vkv_decode_##name##_any(const __grid_constant__ DecodeParameters parameters) {      \
    Decode<PlaceInSlot, type, 1, kMostDim, 1>(parameters);                                                  \
  }
VKV_DECODE_DIMS(f32, float, 4)
VKV_DECODE_DIMS(f16, HalfBits, 8)
VKV_DECODE_DIMS(bf16, BfloatBits, 8)

}  // namespace vkv::kernels::cuda
