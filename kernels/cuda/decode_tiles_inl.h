// Decode attention on tensor cores: up to 8 query heads of one KV head over 16-bit K and V, exact to float32 but for
// rounding.
//
// A warp takes 16 tokens at a time: scores [token, head] = K · Qᵀ, then sums [element, head] += Vᵀ · weights, both as
// products of tiles [16, 16] · [16, 8]. K and V come in 16-byte copies (decode_ring_inl.h) and are used as they are:
// which element or token is which row of a tile is chosen so that a lane's own copies are its part of the tile. A
// query, and a weight, is the sum of kParts numbers of 16 bits, so nothing is lost. With one multiply-add per element
// and head, arithmetic would keep an H200 from its memory's speed: 969 instructions of a warp for 4 KiB at 4 heads of
// dim 128, and here 204.
#ifndef VKV_KERNELS_CUDA_DECODE_TILES_INL_H_
#define VKV_KERNELS_CUDA_DECODE_TILES_INL_H_

#include "kernels/cuda/decode_common_inl.h"

namespace vkv::kernels::cuda {

// For which types there are products of tiles, and as how many numbers of 16 bits a float is written there.
template <typename T>
struct Tiles {
  static constexpr bool kAreThere = false;
};
template <>
struct Tiles<HalfBits> {
  static constexpr bool kAreThere = true;
  static constexpr bool kAreBfloat = false;
  static constexpr int kParts = 2;
};
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 800
template <>
struct Tiles<BfloatBits> {
  static constexpr bool kAreThere = true;
  static constexpr bool kAreBfloat = true;
  static constexpr int kParts = 3;
};
#endif

template <typename T, int Elements, int Dim, int Heads>
constexpr bool kIsForTiles = Tiles<T>::kAreThere&& Elements == 8 && (Dim == 64 || Dim == 128) && Heads > 1;

// sums [16, 8] += a [16, 16] · b [16, 8]. Of a lane, g = lane / 4 and t = lane % 4: a[0] is row g and a[1] row g + 8 of
// columns 2t, 2t + 1, a[2] and a[3] the same of columns 8 on; b[0] is rows 2t, 2t + 1 of column g, b[1] those 8 on;
// sums are row g of columns 2t, 2t + 1, then row g + 8.
template <typename T>
__device__ inline void MultiplyTile(float (&sums)[4], const unsigned (&a)[4], const unsigned (&b)[2]) {
#if !defined(__CUDACC__)
  emulation::MultiplyTile<T>(sums, a, b);
#elif !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 800
  if constexpr (Tiles<T>::kAreBfloat) {
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
        "{%0, %1, %2, %3};"
        : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
  } else {
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
        "{%0, %1, %2, %3};"
        : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
  }
#else  // Turing has tiles of half the columns, and of halves only
  for (int half = 0; half < 2; ++half) {
    asm volatile("mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5}, {%6}, {%0, %1, %2, %3};"
                 : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3])
                 : "r"(a[2 * half]), "r"(a[2 * half + 1]), "r"(b[half]));
  }
#endif
}

// Two floats as pairs of T that add up to them: parts[0] + parts[1] + …, the first in the low half.
template <typename T, int Parts>
__device__ inline void SplitPair(unsigned (&parts)[Parts], float low, float high) {
  VKV_UNROLL
  for (int p = 0; p < Parts; ++p) {
    T low_part;
    T high_part;
    Put(&low_part, low);
    Put(&high_part, high);
    parts[p] = low_part.bits | static_cast<unsigned>(high_part.bits) << 16;
    low -= AsFloat(low_part);
    high -= AsFloat(high_part);
  }
}

template <typename Place, typename T, int Dim>
struct DecodeTiles {
  static constexpr int kHeads = 8;
  static constexpr int kTileTokens = 16;
  static constexpr int kWarps = kDecodeThreads / 32;
  static constexpr int kParts = Tiles<T>::kParts;
  static constexpr int kKeyPacks = Dim / 32;      // 16-byte loads of a token's key by its 4 lanes
  static constexpr int kValuePacks = Dim / 64;    // of its value by its 8 lanes
  static constexpr float kWeightScale = 1 << 14;  // weights are at most this, far from where 16-bit floats get coarse
  static constexpr unsigned kAllLanes = 0xffffffffu;

  using Shared = DecodeShared<DecodeRing<uint4, Dim / 16>, DecodeResults<kWarps, kHeads, Dim>>;

  const typename Place::Parameters& parameters;
  const Stretch stretch;
  float score[4];       // of the tile with the last used keys: tokens g, g + 8 of heads 2t, 2t + 1; then weights
  float correction[2];  // of sums that belong to a smaller largest score

  unsigned query[kKeyPacks * 4][kParts];  // of head g, elements 32c + 8t + 2j and the next at [4c + j]
  float factor[2];                        // of heads 2t, 2t + 1: what makes scores of products
  float largest[2];
  float total[2];                  // of this lane's tokens
  float sums[kValuePacks * 4][4];  // [4d + j]: elements 64d + 8g + 2j, then the next, of heads 2t, 2t + 1

  __device__ DecodeTiles(const typename Place::Parameters& given, const Stretch& to_read)
      : parameters(given), stretch(to_read) {}

  __device__ static int WarpOfThread() { return static_cast<int>(threadIdx.x) / 32; }
  __device__ static int RowOfLane() { return threadIdx.x % 32 / 4; }  // g
  __device__ static int ColumnOfLane() { return threadIdx.x % 4; }    // t
  __device__ static int ElementOf(int i) { return i / 8 * 32 + ColumnOfLane() * 8 + i % 8; }

  __device__ static unsigned WordOf(const uint4& words, int j) {
    return j == 0 ? words.x : j == 1 ? words.y : j == 2 ? words.z : words.w;
  }

  // Queries are divided by a power of two near their largest element, so that every magnitude is exact in 16-bit
  // floats. The exponent of that power, as a float has it.
  __device__ static unsigned SplitQuery(unsigned (&parts)[kKeyPacks * 4][kParts],
                                        const float (&elements)[kKeyPacks * 8]) {
    float most = 0;
    VKV_UNROLL
    for (int i = 0; i < kKeyPacks * 8; ++i) most = fmaxf(most, fabsf(elements[i]));
    most = fmaxf(most, __shfl_xor_sync(kAllLanes, most, 1));
    most = fmaxf(most, __shfl_xor_sync(kAllLanes, most, 2));
    unsigned exponent = __float_as_uint(most) >> 23;
    exponent = exponent < 1 ? 1 : exponent > 253 ? 253 : exponent;
    const float divided = __uint_as_float((254 - exponent) << 23);
    VKV_UNROLL
    for (int pair = 0; pair < kKeyPacks * 4; ++pair) {
      SplitPair<T>(parts[pair], elements[2 * pair] * divided, elements[2 * pair + 1] * divided);
    }
    return exponent;
  }

  __device__ void Start(const AttentionCommand& command, int64_t row, int head, int heads) {
    float elements[kKeyPacks * 8];
    const int64_t first = (row * command.query_heads + head + RowOfLane()) * command.keys.dim;
    LoadElements(elements, command.queries, command.row_dtype, first, RowOfLane() < heads ? command.keys.dim : 0,
                 ElementOf);
    const unsigned exponent = SplitQuery(query, elements);
    const float scale = command.scale * kLog2E * __uint_as_float(exponent << 23);
    VKV_UNROLL
    for (int h = 0; h < 2; ++h) {
      const unsigned of_head = __shfl_sync(kAllLanes, __float_as_uint(scale), (2 * ColumnOfLane() + h) * 4);
      factor[h] = __uint_as_float(of_head);
      largest[h] = kLeastScore;
      total[h] = 0;
    }
    VKV_UNROLL
    for (int i = 0; i < kValuePacks * 4; ++i) {
      VKV_UNROLL
      for (int c = 0; c < 4; ++c) sums[i][c] = 0;
    }
  }

  // Of this warp: they take tiles in turn.
  __device__ int CountTiles() const {
    const int tiles = (stretch.to - stretch.from + kTileTokens - 1) / kTileTokens;
    return (tiles + kWarps - 1 - WarpOfThread()) / kWarps;
  }
  __device__ int FirstOf(int tile) const { return stretch.from + (tile * kWarps + WarpOfThread()) * kTileTokens; }

  __device__ void CopyRow(uint4* slots, const Tensor& tensor, int token, int packs, int step, int element) const {
    const bool is_there = token < stretch.to;
    const Place place(parameters, stretch.slot, token, is_there);
    const uint64_t address = place.HeadOf(tensor, stretch.kv_head);
    const int limit = is_there ? tensor.dim : 0;
    VKV_UNROLL
    for (int p = 0; p < packs; ++p, element += step) {
      CopyAhead(&slots[p * kDecodeThreads], address + element * sizeof(T), element < limit);
    }
  }
  // [half, pack]: elements 32c + 8t and on of tokens g, g + 8.
  __device__ void CopyKeys(int tile, uint4* slots) const {
    VKV_UNROLL
    for (int half = 0; half < 2; ++half) {
      CopyRow(&slots[half * kKeyPacks * kDecodeThreads], parameters.command.keys,
              FirstOf(tile) + half * 8 + RowOfLane(), kKeyPacks, 32, 8 * ColumnOfLane());
    }
  }
  // [half, next, pack]: elements 64d + 8g and on of tokens 2t, 2t + 1, then 8 more.
  __device__ void CopyValues(int tile, uint4* slots) const {
    VKV_UNROLL
    for (int pair = 0; pair < 4; ++pair) {
      CopyRow(&slots[pair * kValuePacks * kDecodeThreads], parameters.command.values,
              FirstOf(tile) + pair / 2 * 8 + 2 * ColumnOfLane() + pair % 2, kValuePacks, 64, 8 * RowOfLane());
    }
  }

  // Every lane takes part in every product.
  __device__ void UseKeys(int tile, const uint4* slots) {
    float scores[kParts][4] = {};  // as `score`; apart, as each product waits for the last
    VKV_UNROLL
    for (int c = 0; c < kKeyPacks; ++c) {
      const uint4 key = slots[c * kDecodeThreads];
      const uint4 other = slots[(kKeyPacks + c) * kDecodeThreads];  // of the token 8 on
      VKV_UNROLL
      for (int j = 0; j < 4; j += 2) {
        const unsigned words[4] = {WordOf(key, j), WordOf(other, j), WordOf(key, j + 1), WordOf(other, j + 1)};
        VKV_UNROLL
        for (int p = 0; p < kParts; ++p) {
          MultiplyTile<T>(scores[p], words, {query[4 * c + j][p], query[4 * c + j + 1][p]});
        }
      }
    }
    VKV_UNROLL
    for (int c = 0; c < 4; ++c) score[c] = 0;
    VKV_UNROLL
    for (int p = kParts - 1; p >= 0; --p) {  // small ones first
      VKV_UNROLL
      for (int c = 0; c < 4; ++c) score[c] += scores[p][c];
    }
    const int token = FirstOf(tile) + RowOfLane();
    Weigh(token < stretch.to, token + 8 < stretch.to);
  }

  // Scores become weights, relative to the largest score of the warp so far.
  __device__ void Weigh(bool is_first_there, bool is_second_there) {
    VKV_UNROLL
    for (int c = 0; c < 4; ++c) score[c] *= factor[c % 2];
    if (parameters.command.softcap > 0) {
      VKV_UNROLL
      for (int c = 0; c < 4; ++c) score[c] = CapScore(score[c], parameters.command.softcap * kLog2E);
    }
    VKV_UNROLL
    for (int h = 0; h < 2; ++h) {
      score[h] = is_first_there ? score[h] : kMinusInfinity;
      score[2 + h] = is_second_there ? score[2 + h] : kMinusInfinity;
      float most = fmaxf(largest[h], fmaxf(score[h], score[2 + h]));
      VKV_UNROLL
      for (int other = 4; other < 32; other *= 2) most = fmaxf(most, __shfl_xor_sync(kAllLanes, most, other));
      correction[h] = PowerOf(largest[h], most);
      largest[h] = most;
      score[h] = PowerOf(score[h], most);
      score[2 + h] = PowerOf(score[2 + h], most);
      total[h] = total[h] * correction[h] + score[h] + score[2 + h];
    }
  }

  // The weights of 8 tokens as a product takes them: this lane has those of token g for heads 2t and 2t + 1, and gets
  // those of tokens 2t and 2t + 1 for head g.
  __device__ static void TurnWeights(unsigned (&weights)[kParts], float weight, float next_weight) {
    const int g = RowOfLane();
    const int t = ColumnOfLane();
    SplitPair<T>(weights, weight * kWeightScale, next_weight * kWeightScale);
    VKV_UNROLL
    for (int p = 0; p < kParts; ++p) {
      const unsigned even = __shfl_sync(kAllLanes, weights[p], 2 * t * 4 + g / 2);
      const unsigned odd = __shfl_sync(kAllLanes, weights[p], (2 * t + 1) * 4 + g / 2);
      weights[p] = __byte_perm(even, odd, g % 2 == 0 ? 0x5410 : 0x7632);
    }
  }

  // A tile's sums are added to the others by themselves: tensor cores cut off what they add, which would show over many
  // tiles.
  __device__ void UseValues(const uint4* slots) {
    unsigned weights[2][kParts];  // of tokens 2t, 2t + 1, then 8 more
    VKV_UNROLL
    for (int half = 0; half < 2; ++half) TurnWeights(weights[half], score[2 * half], score[2 * half + 1]);
    VKV_UNROLL
    for (int d = 0; d < kValuePacks; ++d) {
      uint4 value[4];  // of tokens 2t, 2t + 1, then 8 more
      VKV_UNROLL
      for (int pair = 0; pair < 4; ++pair) value[pair] = slots[(pair * kValuePacks + d) * kDecodeThreads];
      VKV_UNROLL
      for (int j = 0; j < 4; ++j) {
        unsigned words[4];  // elements 2j of the tokens, then the next, of the first 8 and the other tokens
        VKV_UNROLL
        for (int half = 0; half < 2; ++half) {
          const unsigned even = WordOf(value[2 * half], j);
          const unsigned odd = WordOf(value[2 * half + 1], j);
          words[2 * half] = __byte_perm(even, odd, 0x5410);
          words[2 * half + 1] = __byte_perm(even, odd, 0x7632);
        }
        float tile[4] = {};
        VKV_UNROLL
        for (int p = kParts - 1; p >= 0; --p) MultiplyTile<T>(tile, words, {weights[0][p], weights[1][p]});
        VKV_UNROLL
        for (int c = 0; c < 4; ++c) sums[4 * d + j][c] = sums[4 * d + j][c] * correction[c % 2] + tile[c];
      }
    }
  }

  // Merges the warps, and writes the block's result.
  template <typename Results>
  __device__ void Finish(Results& results, int span, int64_t row, int head, int heads) {
    const int g = RowOfLane();
    const int t = ColumnOfLane();
    const int warp = WarpOfThread();
    VKV_UNROLL
    for (int h = 0; h < 2; ++h) {
      VKV_UNROLL
      for (int other = 4; other < 32; other *= 2) total[h] += __shfl_xor_sync(kAllLanes, total[h], other);
      if (g == 0) {
        results.largest[warp][2 * t + h] = largest[h];
        results.total[warp][2 * t + h] = total[h];
      }
      VKV_UNROLL
      for (int i = 0; i < kValuePacks * 4; ++i) {
        const int element = i / 4 * 64 + g * 8 + i % 4 * 2;
        results.sums[warp][2 * t + h][element] = sums[i][h] / kWeightScale;
        results.sums[warp][2 * t + h][element + 1] = sums[i][2 + h] / kWeightScale;
      }
    }
    __syncthreads();
    results.Write(parameters, span, row, head, heads);
  }
};

}  // namespace vkv::kernels::cuda

#endif  // VKV_KERNELS_CUDA_DECODE_TILES_INL_H_
