// Prefill attention on tensor cores: over 16-bit K and V, exact to float32 but for rounding, as decoding is and by the
// same tiles (decode_tiles_inl.h), with new tokens in place of query heads.
//
// A warp takes 8 new tokens of one query head, a block 4 warps. Keys and values of 32 tokens at a time are loaded to
// shared memory, which all warps read: scores [token, new token] = K · Qᵀ, then sums [element, new token] += Vᵀ ·
// weights. Rows of keys lie 64 bytes further apart than they are long, and of values 16, so that the 16-byte reads of 8
// lanes are of all banks. Device code only.
#ifndef VKV_KERNELS_CUDA_PREFILL_TILES_INL_H_
#define VKV_KERNELS_CUDA_PREFILL_TILES_INL_H_

#include "kernels/cuda/decode_tiles_inl.h"

namespace vkv::kernels::cuda {

template <typename T, int Dim>
class PrefillTiles {
 public:
  // Memory of PrefillTileBytes(Dim).
  __device__ PrefillTiles(const PrefillParameters& parameters, void* shared)
      : command_(parameters.command),
        span_(SpanAt(parameters.spans, blockIdx.z)),
        head_(static_cast<int>(blockIdx.y)),
        keys_(static_cast<uint4*>(shared)),
        values_(keys_ + kTileTokens * kKeySlots) {}

  __device__ void Run() {
    const int first = static_cast<int>(blockIdx.x) * kPrefillTileRows;  // new token of the block
    if (first >= span_.tokens) return;
    row_ = first + Tiles::WarpOfThread() * kRows;
    Start();
    const int left = span_.tokens - first;
    // What a row sees: tokens [begin, end).
    const int begin = FirstSeen(command_, span_.length + first);
    const int end = span_.length + first + (left < kPrefillTileRows ? left : kPrefillTileRows);
    VKV_KEEP_LOOP
    for (int from = begin - begin % kTileTokens; from < end; from += kTileTokens) {
      __syncthreads();  // all warps have read the last tile
      Copy<kKeySlots>(keys_, command_.keys, from, begin, end);
      CommitCopies();
      Copy<kValueSlots>(values_, command_.values, from, begin, end);
      CommitCopies();
      AwaitCopies<1>();
      __syncthreads();
      ScoreTile(from);
      AwaitCopies<0>();
      __syncthreads();
      VKV_UNROLL
      for (int part = 0; part < kParts; ++part) AddValues(part);
    }
    Write();
  }

 private:
  using Tiles = DecodeTiles<PlaceInSlot, T, Dim>;
  static constexpr int kRows = Tiles::kHeads;
  static constexpr int kTileTokens = kPrefillTileTokens;
  static constexpr int kParts = kTileTokens / Tiles::kTileTokens;  // products' tiles in one of ours
  static constexpr int kKeySlots = PrefillKeySlots(Dim);
  static constexpr int kValueSlots = PrefillValueSlots(Dim);
  static constexpr unsigned kAllLanes = 0xffffffffu;

  __device__ int64_t RowOf(int row) const {
    return (static_cast<int64_t>(span_.first_row) + row) * command_.query_heads + head_;
  }

  __device__ void Start() {
    float elements[Tiles::kKeyPacks * 8];
    const int row = row_ + Tiles::RowOfLane();
    const int limit = row < span_.tokens ? command_.keys.dim : 0;
    LoadElements(elements, command_.queries, command_.row_dtype, RowOf(row) * command_.keys.dim, limit,
                 Tiles::ElementOf);
    const unsigned exponent = Tiles::SplitQuery(query_, elements);
    const float scale = command_.scale * kLog2E * __uint_as_float(exponent << 23);
    VKV_UNROLL
    for (int h = 0; h < 2; ++h) {
      const int column = 2 * Tiles::ColumnOfLane() + h;
      factor_[h] = __uint_as_float(__shfl_sync(kAllLanes, __float_as_uint(scale), column * 4));
      sees_from_[h] = FirstSeen(command_, span_.length + row_ + column);
      sees_to_[h] = row_ + column < span_.tokens ? span_.length + row_ + column + 1 : 0;
      largest_[h] = fmaxf(kLeastScore, SinkOf(command_, head_) * kLog2E);
      total_[h] = largest_[h] > kLeastScore && Tiles::RowOfLane() == 0 ? 1.0f : 0.0f;
    }
    VKV_UNROLL
    for (int i = 0; i < Tiles::kValuePacks * 4; ++i) {
      VKV_UNROLL
      for (int c = 0; c < 4; ++c) sums_[i][c] = 0;
    }
  }

  // Tokens [from, from + kTileTokens), zeros outside [begin, end): 4 threads to each.
  template <int Slots>
  __device__ void Copy(uint4* tile, const Tensor& tensor, int from, int begin, int end) const {
    const int token = static_cast<int>(threadIdx.x) / 4;
    const bool is_there = from + token >= begin && from + token < end;
    const uint64_t address =
        HeadAt(tensor, span_.slot, from + token, head_ / (command_.query_heads / command_.keys.heads));
    VKV_UNROLL
    for (int slot = static_cast<int>(threadIdx.x) % 4; slot < Dim / 8; slot += 4) {
      CopyAhead(&tile[token * Slots + slot], address + slot * 16, is_there && slot * 8 < tensor.dim);
    }
  }

  // Scores of the whole tile, which become weights, relative to the largest score so far.
  __device__ void ScoreTile(int from) {
    const int g = Tiles::RowOfLane();
    VKV_UNROLL
    for (int part = 0; part < kParts; ++part) {
      Score(score_[part], &keys_[part * Tiles::kTileTokens * kKeySlots]);
      VKV_UNROLL
      for (int c = 0; c < 4; ++c) {
        const int token = from + part * Tiles::kTileTokens + g + c / 2 * 8;
        const bool is_seen = token >= sees_from_[c % 2] && token < sees_to_[c % 2];
        float& score = score_[part][c];
        score *= factor_[c % 2];
        if (command_.softcap > 0) score = CapScore(score, command_.softcap * kLog2E);
        if (!is_seen) score = kMinusInfinity;
      }
    }
    VKV_UNROLL
    for (int h = 0; h < 2; ++h) {
      float most = largest_[h];
      VKV_UNROLL
      for (int part = 0; part < kParts; ++part) most = fmaxf(most, fmaxf(score_[part][h], score_[part][2 + h]));
      VKV_UNROLL
      for (int other = 4; other < 32; other *= 2) most = fmaxf(most, __shfl_xor_sync(kAllLanes, most, other));
      const float correction = PowerOf(largest_[h], most);
      largest_[h] = most;
      total_[h] *= correction;
      VKV_UNROLL
      for (int part = 0; part < kParts; ++part) {
        score_[part][h] = PowerOf(score_[part][h], most);
        score_[part][2 + h] = PowerOf(score_[part][2 + h], most);
        total_[h] += score_[part][h] + score_[part][2 + h];
      }
      VKV_UNROLL
      for (int i = 0; i < Tiles::kValuePacks * 4; ++i) {
        sums_[i][h] *= correction;
        sums_[i][2 + h] *= correction;
      }
    }
  }

  __device__ void Score(float (&score)[4], const uint4* keys) const {
    const int g = Tiles::RowOfLane();
    const int t = Tiles::ColumnOfLane();
    float scores[Tiles::kParts][4] = {};
    VKV_UNROLL
    for (int c = 0; c < Tiles::kKeyPacks; ++c) {
      const uint4 key = keys[g * kKeySlots + 4 * c + t];
      const uint4 other = keys[(g + 8) * kKeySlots + 4 * c + t];
      VKV_UNROLL
      for (int j = 0; j < 4; j += 2) {
        const unsigned words[4] = {Tiles::WordOf(key, j), Tiles::WordOf(other, j), Tiles::WordOf(key, j + 1),
                                   Tiles::WordOf(other, j + 1)};
        VKV_UNROLL
        for (int p = 0; p < Tiles::kParts; ++p) {
          MultiplyTile<T>(scores[p], words, {query_[4 * c + j][p], query_[4 * c + j + 1][p]});
        }
      }
    }
    VKV_UNROLL
    for (int c = 0; c < 4; ++c) score[c] = 0;
    VKV_UNROLL
    for (int p = Tiles::kParts - 1; p >= 0; --p) {  // small ones first
      VKV_UNROLL
      for (int c = 0; c < 4; ++c) score[c] += scores[p][c];
    }
  }

  // A tile's sums are added to the others by themselves, as in decoding.
  __device__ void AddValues(int part) {
    const int g = Tiles::RowOfLane();
    const int t = Tiles::ColumnOfLane();
    const uint4* const values = &values_[part * Tiles::kTileTokens * kValueSlots];
    unsigned weights[2][Tiles::kParts];
    VKV_UNROLL
    for (int half = 0; half < 2; ++half) {
      Tiles::TurnWeights(weights[half], score_[part][2 * half], score_[part][2 * half + 1]);
    }
    VKV_UNROLL
    for (int d = 0; d < Tiles::kValuePacks; ++d) {
      uint4 value[4];  // of tokens 2t, 2t + 1, then 8 more
      VKV_UNROLL
      for (int pair = 0; pair < 4; ++pair) {
        value[pair] = values[(pair / 2 * 8 + 2 * t + pair % 2) * kValueSlots + 8 * d + g];
      }
      VKV_UNROLL
      for (int j = 0; j < 4; ++j) {
        unsigned words[4];
        VKV_UNROLL
        for (int half = 0; half < 2; ++half) {
          const unsigned even = Tiles::WordOf(value[2 * half], j);
          const unsigned odd = Tiles::WordOf(value[2 * half + 1], j);
          words[2 * half] = __byte_perm(even, odd, 0x5410);
          words[2 * half + 1] = __byte_perm(even, odd, 0x7632);
        }
        float tile[4] = {};
        VKV_UNROLL
        for (int p = Tiles::kParts - 1; p >= 0; --p) MultiplyTile<T>(tile, words, {weights[0][p], weights[1][p]});
        VKV_UNROLL
        for (int c = 0; c < 4; ++c) sums_[4 * d + j][c] += tile[c];
      }
    }
  }

  __device__ void Write() {
    const int g = Tiles::RowOfLane();
    VKV_UNROLL
    for (int h = 0; h < 2; ++h) {
      VKV_UNROLL
      for (int other = 4; other < 32; other *= 2) total_[h] += __shfl_xor_sync(kAllLanes, total_[h], other);
      const int row = row_ + 2 * Tiles::ColumnOfLane() + h;
      if (row >= span_.tokens) continue;
      const float factor = 1 / (Tiles::kWeightScale * total_[h]);
      VKV_UNROLL
      for (int i = 0; i < Tiles::kValuePacks * 4; ++i) {
        const int element = i / 4 * 64 + g * 8 + i % 4 * 2;
        VKV_UNROLL
        for (int next = 0; next < 2; ++next) {
          if (element + next >= command_.values.dim) continue;
          StoreElement(command_.output, command_.row_dtype, RowOf(row) * command_.values.dim + element + next,
                       sums_[i][2 * next + h] * factor);
        }
      }
    }
  }

  const AttentionCommand& command_;
  const Span span_;
  const int head_;
  uint4* const keys_;
  uint4* const values_;
  int row_ = 0;  // the warp's first, of the span's new tokens
  unsigned query_[Tiles::kKeyPacks * 4][Tiles::kParts];
  float factor_[2];  // of rows 2t, 2t + 1; so are the next four
  int sees_from_[2];
  int sees_to_[2];
  float largest_[2];
  float total_[2];          // of this lane's tokens
  float score_[kParts][4];  // of each products' tile, as DecodeTiles::score
  float sums_[Tiles::kValuePacks * 4][4];
};

}  // namespace vkv::kernels::cuda

#endif  // VKV_KERNELS_CUDA_PREFILL_TILES_INL_H_
