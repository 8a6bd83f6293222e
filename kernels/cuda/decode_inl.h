// Decode attention: one query token per sequence over contiguous K and V, split over the length.
//
// Grid (splits, KV heads · blocks of query heads, spans). A block takes a stretch of one KV head for up to `Heads`
// query heads. The lanes of a group hold one token's key side by side, 16 bytes each, so a group reads a whole key with
// one load; groups take tokens in turn, kAtOnce of them with loads under way together. Each group keeps its own running
// maximum, total and sums; the block's groups are merged through shared memory, the splits by vkv_merge. Scores are in
// powers of two: log2 e is part of the scale. Several query heads over 16-bit K and V take more arithmetic than that
// leaves time for: decode_tiles_inl.h has them on tensor cores.
//
// Where a token lies is asked of `Place`: in the cache's slots it is arithmetic.
#ifndef VKV_KERNELS_CUDA_DECODE_INL_H_
#define VKV_KERNELS_CUDA_DECODE_INL_H_

#include "kernels/cuda/decode_tiles_inl.h"

namespace vkv::kernels::cuda {

constexpr int kAtOnce = 4;

template <typename Place, typename T, int Elements, int Dim, int Heads>
struct DecodeBlock {
  static constexpr int kLanes = Dim / Elements < 32 ? Dim / Elements : 32;  // of a group
  static constexpr int kPacks = Dim / (kLanes * Elements);                  // of a lane
  static constexpr int kGroups = kDecodeThreads / kLanes;
  static constexpr int kHeld = kPacks * Elements;  // elements of a lane

  using Shared = DecodeResults<kGroups, Heads, Dim>;

  float query[Heads][kHeld];
  float sums[Heads][kHeld];
  float largest[Heads];
  float total[Heads];

  // Element of the head that held element i of this thread is.
  __device__ static int ElementOf(int i) {
    const int lane = threadIdx.x % kLanes;
    return (i / Elements * kLanes + lane) * Elements + i % Elements;
  }

  // A lane's part of one head's row; zeros beyond `dim`.
  __device__ static void LoadRow(Pack<T, Elements> (&packs)[kPacks], uint64_t address, int dim, bool is_there) {
    const int lane = threadIdx.x % kLanes;
    VKV_UNROLL
    for (int p = 0; p < kPacks; ++p) {
      const int element = (p * kLanes + lane) * Elements;
      if (is_there && element < dim)
        packs[p] = LoadPack<T, Elements>(address + element * sizeof(T));
      else
        packs[p] = {};
    }
  }

  __device__ void Start(const AttentionCommand& command, int64_t row, int head, int heads) {
    const float scale = command.scale * kLog2E;
    VKV_UNROLL
    for (int h = 0; h < Heads; ++h) {
      largest[h] = kLeastScore;
      total[h] = 0;
      const int64_t first = (row * command.query_heads + head + h) * command.keys.dim;
      LoadElements(query[h], command.queries, command.row_dtype, first, h < heads ? command.keys.dim : 0, ElementOf);
      VKV_UNROLL
      for (int i = 0; i < kHeld; ++i) {
        query[h][i] *= scale;
        sums[h][i] = 0;
      }
    }
  }

  // Tokens [from, to) of one KV head. Every thread takes part in every shuffle.
  __device__ void Read(const typename Place::Parameters& parameters, int slot, int kv_head, int from, int to) {
    const AttentionCommand& command = parameters.command;
    const int group = threadIdx.x / kLanes;
    for (int first = from; first < to; first += kAtOnce * kGroups) {
      Pack<T, Elements> key[kAtOnce][kPacks];
      Pack<T, Elements> value[kAtOnce][kPacks];
      VKV_UNROLL
      for (int u = 0; u < kAtOnce; ++u) {
        const int token = first + u * kGroups + group;
        const Place place(parameters, slot, token, token < to);
        LoadRow(key[u], place.HeadOf(command.keys, kv_head), command.keys.dim, token < to);
        LoadRow(value[u], place.HeadOf(command.values, kv_head), command.values.dim, token < to);
      }
      float score[kAtOnce][Heads];
      VKV_UNROLL
      for (int u = 0; u < kAtOnce; ++u) {
        VKV_UNROLL
        for (int h = 0; h < Heads; ++h) score[u][h] = 0;
        VKV_UNROLL
        for (int i = 0; i < kHeld; ++i) {
          const float k = AsFloat(key[u][i / Elements].element[i % Elements]);
          VKV_UNROLL
          for (int h = 0; h < Heads; ++h) score[u][h] += k * query[h][i];
        }
        const bool is_there = first + u * kGroups + group < to;
        VKV_UNROLL
        for (int h = 0; h < Heads; ++h) {
          VKV_UNROLL
          for (int other = kLanes / 2; other > 0; other /= 2) {
            score[u][h] += __shfl_xor_sync(0xffffffffu, score[u][h], other);
          }
          if (!is_there) score[u][h] = kMinusInfinity;
        }
      }
      VKV_UNROLL
      for (int h = 0; h < Heads; ++h) {
        float most = largest[h];
        VKV_UNROLL
        for (int u = 0; u < kAtOnce; ++u) most = fmaxf(most, score[u][h]);
        const float correction = PowerOf(largest[h], most);
        largest[h] = most;
        total[h] *= correction;
        VKV_UNROLL
        for (int i = 0; i < kHeld; ++i) sums[h][i] *= correction;
        VKV_UNROLL
        for (int u = 0; u < kAtOnce; ++u) {
          score[u][h] = PowerOf(score[u][h], most);  // now its weight
          total[h] += score[u][h];
        }
      }
      VKV_UNROLL
      for (int u = 0; u < kAtOnce; ++u) {
        VKV_UNROLL
        for (int i = 0; i < kHeld; ++i) {
          const float v = AsFloat(value[u][i / Elements].element[i % Elements]);
          VKV_UNROLL
          for (int h = 0; h < Heads; ++h) sums[h][i] += score[u][h] * v;
        }
      }
    }
  }

  // Merges the groups, and writes the block's result.
  __device__ void Finish(const DecodeParameters& parameters, Shared& shared, int span, int64_t row, int head,
                         int heads) {
    const int group = threadIdx.x / kLanes;
    VKV_UNROLL
    for (int h = 0; h < Heads; ++h) {
      if (threadIdx.x % kLanes == 0) {
        shared.largest[group][h] = largest[h];
        shared.total[group][h] = total[h];
      }
      VKV_UNROLL
      for (int i = 0; i < kHeld; ++i) shared.sums[group][h][ElementOf(i)] = sums[h][i];
    }
    __syncthreads();
    shared.Write(parameters, span, row, head, heads);
  }
};

template <typename Place, typename T, int Elements, int Dim, int Heads, bool ForTiles>
struct ChooseDecodeBlock {
  using Block = DecodeBlock<Place, T, Elements, Dim, Heads>;
};
template <typename Place, typename T, int Elements, int Dim, int Heads>
struct ChooseDecodeBlock<Place, T, Elements, Dim, Heads, true> {
  using Block = DecodeTiles<Place, T, Dim>;
};

template <typename Place, typename T, int Elements, int Dim, int Heads>
__device__ inline void Decode(const typename Place::Parameters& parameters) {
  using Block = typename ChooseDecodeBlock<Place, T, Elements, Dim, Heads, kIsForTiles<T, Elements, Dim, Heads>>::Block;
  __shared__ typename Block::Shared shared;
  const AttentionCommand& command = parameters.command;
  const Span& span = parameters.spans.entries[blockIdx.z];
  const int length = span.length + 1;
  const int from = static_cast<int>(blockIdx.x) * parameters.split_tokens;
  if (span.tokens == 0 || from >= length) return;
  const int to = length - from < parameters.split_tokens ? length : from + parameters.split_tokens;
  const int group = command.query_heads / command.keys.heads;
  const int blocks = (group + Heads - 1) / Heads;
  const int kv_head = static_cast<int>(blockIdx.y) / blocks;
  const int first = static_cast<int>(blockIdx.y) % blocks * Heads;  // in the group
  const int heads = group - first < Heads ? group - first : Heads;
  const int head = kv_head * group + first;
  Block block;
  block.Start(command, span.first_row, head, heads);
  block.Read(parameters, span.slot, kv_head, from, to);
  block.Finish(parameters, shared, static_cast<int>(blockIdx.z), span.first_row, head, heads);
}

}  // namespace vkv::kernels::cuda

#endif  // VKV_KERNELS_CUDA_DECODE_INL_H_
