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

__device__ inline float Quotient(float above, float below) {
#if defined(__CUDACC__)
  float quotient;
  asm("div.approx.ftz.f32 %0, %1, %2;" : "=f"(quotient) : "f"(above), "f"(below));
  return quotient;
#else
  return above / below;
#endif
}

// cap · tanh(score / cap), both in powers of any number. The hyperbolic tangent is a quotient of polynomials (Eigen's).
__device__ inline float CapScore(float score, float cap) {
  constexpr float kMost = 7.90531110763549805f;  // it is 1 there
  const float x = Quotient(score, cap);
  const float clamped = x < -kMost ? -kMost : x > kMost ? kMost : x;
  const float square = clamped * clamped;
  float above = -2.76076847742355e-16f * square + 2.00018790482477e-13f;
  above = above * square - 8.60467152213735e-11f;
  above = above * square + 5.12229709037114e-08f;
  above = above * square + 1.48572235717979e-05f;
  above = above * square + 6.37261928875436e-04f;
  above = above * square + 4.89352455891786e-03f;
  float below = 1.19825839466702e-06f * square + 1.18534705686654e-04f;
  below = below * square + 2.26843463243900e-03f;
  below = below * square + 4.89352518554385e-03f;
  return cap * Quotient(above * clamped, below);
}

// A query head's sink; kLeastScore where it has none.
__device__ inline float SinkOf(const AttentionCommand& command, int head) {
  return command.sinks == 0 ? kLeastScore : fmaxf(kLeastScore, reinterpret_cast<const float*>(command.sinks)[head]);
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
      const float sink = blockIdx.y == 0 ? SinkOf(command, head + h) * kLog2E : kLeastScore;  // in one of the splits
      float most = fmaxf(sink, kLeastScore);
      for (int p = 0; p < Parts; ++p) most = fmaxf(most, largest[p][h]);
      float sum = 0;
      float whole = PowerOf(sink, most);
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
