// Shared by both kinds of decode blocks: where a token lies, powers of two, queries, and how a block's parts are merged
// into its result. Device code only.
#ifndef VKV_KERNELS_CUDA_DECODE_COMMON_INL_H_
#define VKV_KERNELS_CUDA_DECODE_COMMON_INL_H_

#include "kernels/cuda/decode_ring_inl.h"

namespace vkv::kernels::cuda {

constexpr float kLog2E = 1.44269504088896341f;
constexpr float kLeastScore = -3e38f;  // below every score, and no infinity: nothing minus nothing is zero

// 2 to the power of a score relative to the largest there is: of minus infinity, zero.
__device__ inline float PowerOf(float score, float largest) {
#if defined(__CUDACC__)
  float power;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(power) : "f"(score - largest));
  return power;
#else
  return exp2f(score - largest);
#endif
}

// The place of one token of a slot, in any tensor.
class PlaceInSlot {
 public:
  using Parameters = DecodeParameters;
  PlaceInSlot() = default;
  __device__ PlaceInSlot(const DecodeParameters& /*parameters*/, int slot, int token, bool /*is_there*/)
      : slot_(slot), token_(token) {}
  __device__ uint64_t HeadOf(const Tensor& tensor, int head) const { return HeadAt(tensor, slot_, token_, head); }

 private:
  int slot_ = 0;
  int token_ = 0;
};

// Elements place(0) … place(Count - 1) of a row, as floats; zeros where they are not below `limit`. Branches on the
// type once, so that all loads are in flight together.
template <typename R, int Count, typename Place>
__device__ inline void LoadElements(float (&to)[Count], const R* row, int limit, const Place& place) {
  VKV_UNROLL
  for (int i = 0; i < Count; ++i) to[i] = place(i) < limit ? AsFloat(row[place(i)]) : 0.0f;
}
template <int Count, typename Place>
__device__ inline void LoadElements(float (&to)[Count], uint64_t rows, Dtype dtype, int64_t first, int limit,
                                    const Place& place) {
  switch (dtype) {
    case Dtype::kFloat32: return LoadElements(to, reinterpret_cast<const float*>(rows) + first, limit, place);
    case Dtype::kFloat16: return LoadElements(to, reinterpret_cast<const HalfBits*>(rows) + first, limit, place);
    case Dtype::kBfloat16: return LoadElements(to, reinterpret_cast<const BfloatBits*>(rows) + first, limit, place);
  }
}

// In shared memory, of every part of a block (a group of lanes, or a warp) and head: largest score, total and sums.
template <int Parts, int Heads, int Dim>
struct DecodeResults {
  float largest[Parts][Heads];
  float total[Parts][Heads];
  float sums[Parts][Heads][Dim];

  // Merges the parts, and writes the block's result for `heads` heads. All threads of the block call it.
  __device__ void Write(const DecodeParameters& parameters, int span, int64_t row, int head, int heads) const {
    const AttentionCommand& command = parameters.command;
    const int dim = command.values.dim;
    for (int at = threadIdx.x; at < heads * dim; at += kDecodeThreads) {
      const int h = at / dim;
      const int element = at % dim;
      float most = kLeastScore;
      for (int p = 0; p < Parts; ++p) most = fmaxf(most, largest[p][h]);
      float sum = 0;
      float whole = 0;
      for (int p = 0; p < Parts; ++p) {
        const float factor = PowerOf(largest[p][h], most);
        sum += factor * sums[p][h][element];
        whole += factor * total[p][h];
      }
      const int64_t out = row * command.query_heads + head + h;
      if (parameters.splits == 1) {
        StoreElement(command.output, command.row_dtype, out * dim + element, sum / whole);
        continue;
      }
      float* const partial =
          reinterpret_cast<float*>(parameters.partials) +
          ((static_cast<int64_t>(span) * command.query_heads + head + h) * parameters.splits + blockIdx.y) *
              (kPartialHeader + dim);
      if (element == 0) {
        partial[0] = most;
        partial[1] = whole;
      }
      partial[kPartialHeader + element] = sum;
    }
  }
};

// A block's shared memory: K and V on their way from memory, and after the last tile the block's result.
template <typename Ring, typename Results>
union DecodeShared {
  Ring ring;
  Results results;
};

}  // namespace vkv::kernels::cuda

#endif  // VKV_KERNELS_CUDA_DECODE_COMMON_INL_H_
