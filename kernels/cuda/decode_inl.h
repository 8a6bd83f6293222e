// Decode attention: one query token per sequence over contiguous K and V, split over the length.
//
// Grid (KV heads · blocks of query heads, splits, spans). A block takes a range of one KV head for up to `Heads`
// query heads. The lanes of a group hold one token's key side by side, 16 bytes each; groups take tokens in turn,
// kAtOnce of them to a tile, which come through decode_ring_inl.h. Each group keeps its own running maximum, total and
// sums; the block's groups are merged through shared memory, the splits by vkv_merge. Scores are in powers of two: log2
// e is part of the scale. Several query heads over 16-bit K and V take more arithmetic than that leaves time for:
// decode_tiles_inl.h has them on tensor cores.
//
// `Place` says where a token lies: in the cache's slots it is arithmetic.
#ifndef VKV_KERNELS_CUDA_DECODE_INL_H_
#define VKV_KERNELS_CUDA_DECODE_INL_H_

#include "kernels/cuda/decode_tiles_inl.h"

namespace vkv::kernels::cuda {

constexpr int kAtOnce = 4;  // tokens of a group in a tile

template <typename Place, typename T, int Elements, int Dim, int Heads>
struct DecodeBlock {
  static constexpr int kLanes = Dim / Elements < 32 ? Dim / Elements : 32;  // of a group
  static constexpr int kPacks = Dim / (kLanes * Elements);                  // of a lane
  static constexpr int kGroups = kDecodeThreads / kLanes;
  static constexpr int kHeld = kPacks * Elements;  // elements of a lane

  static constexpr int kTileTokens = kAtOnce * kGroups;

  using Slot = Pack<T, Elements>;
  using Shared = DecodeShared<DecodeRing<Slot, kAtOnce * kPacks>, DecodeResults<kGroups, Heads, Dim>>;

  const typename Place::Parameters& parameters;
  const Stretch stretch;
  Place places[kAtOnce];        // of the tile with the last copied keys
  float score[kAtOnce][Heads];  // of the tile with the last used keys, and then their weights
  float query[Heads][kHeld];
  float sums[Heads][kHeld];
  float largest[Heads];
  float total[Heads];

  // Element of the head that held element i of this thread is.
  __device__ static int ElementOf(int i) {
    const int lane = threadIdx.x % kLanes;
    return (i / Elements * kLanes + lane) * Elements + i % Elements;
  }

  __device__ DecodeBlock(const typename Place::Parameters& given, const Stretch& to_read)
      : parameters(given), stretch(to_read) {}

  __device__ int CountTiles() const { return (stretch.to - stretch.from + kTileTokens - 1) / kTileTokens; }
  __device__ int TokenOf(int tile, int u) const {
    return stretch.from + tile * kTileTokens + u * kGroups + static_cast<int>(threadIdx.x) / kLanes;
  }

  // A lane's part of one token's row; zeros beyond `dim`.
  __device__ static void CopyRow(Slot* slots, uint64_t address, int dim, bool is_there) {
    const int lane = threadIdx.x % kLanes;
    VKV_UNROLL
    for (int p = 0; p < kPacks; ++p) {
      const int element = (p * kLanes + lane) * Elements;
      CopyAhead(&slots[p * kDecodeThreads], address + element * sizeof(T), is_there && element < dim);
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

  __device__ void CopyKeys(int tile, Slot* slots) {
    const Tensor& keys = parameters.command.keys;
    VKV_UNROLL
    for (int u = 0; u < kAtOnce; ++u) {
      const bool is_there = TokenOf(tile, u) < stretch.to;
      places[u] = Place(parameters, stretch.slot, TokenOf(tile, u), is_there);
      CopyRow(&slots[u * kPacks * kDecodeThreads], places[u].HeadOf(keys, stretch.kv_head), keys.dim, is_there);
    }
  }
  __device__ void CopyValues(int tile, Slot* slots) {
    const Tensor& values = parameters.command.values;
    VKV_UNROLL
    for (int u = 0; u < kAtOnce; ++u) {
      CopyRow(&slots[u * kPacks * kDecodeThreads], places[u].HeadOf(values, stretch.kv_head), values.dim,
              TokenOf(tile, u) < stretch.to);
    }
  }

  // Scores, and weights relative to the largest score so far. Every thread takes part in every shuffle.
  __device__ void UseKeys(int tile, const Slot* slots) {
    VKV_UNROLL
    for (int u = 0; u < kAtOnce; ++u) {
      VKV_UNROLL
      for (int h = 0; h < Heads; ++h) score[u][h] = 0;
      VKV_UNROLL
      for (int p = 0; p < kPacks; ++p) {
        const Slot key = slots[(u * kPacks + p) * kDecodeThreads];
        VKV_UNROLL
        for (int i = 0; i < Elements; ++i) {
          const float k = AsFloat(key.element[i]);
          VKV_UNROLL
          for (int h = 0; h < Heads; ++h) score[u][h] += k * query[h][p * Elements + i];
        }
      }
      VKV_UNROLL
      for (int h = 0; h < Heads; ++h) {
        VKV_UNROLL
        for (int other = kLanes / 2; other > 0; other /= 2) {
          score[u][h] += __shfl_xor_sync(0xffffffffu, score[u][h], other);
        }
      }
    }
    if (parameters.command.softcap > 0) {
      VKV_UNROLL
      for (int u = 0; u < kAtOnce; ++u) {
        VKV_UNROLL
        for (int h = 0; h < Heads; ++h) score[u][h] = CapScore(score[u][h], parameters.command.softcap * kLog2E);
      }
    }
    VKV_UNROLL
    for (int u = 0; u < kAtOnce; ++u) {
      const bool is_there = TokenOf(tile, u) < stretch.to;
      VKV_UNROLL
      for (int h = 0; h < Heads; ++h) score[u][h] = is_there ? score[u][h] : kMinusInfinity;
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
        score[u][h] = PowerOf(score[u][h], most);
        total[h] += score[u][h];
      }
    }
  }
  __device__ void UseValues(const Slot* slots) {
    VKV_UNROLL
    for (int u = 0; u < kAtOnce; ++u) {
      VKV_UNROLL
      for (int p = 0; p < kPacks; ++p) {
        const Slot value = slots[(u * kPacks + p) * kDecodeThreads];
        VKV_UNROLL
        for (int i = 0; i < Elements; ++i) {
          const float v = AsFloat(value.element[i]);
          VKV_UNROLL
          for (int h = 0; h < Heads; ++h) sums[h][p * Elements + i] += score[u][h] * v;
        }
      }
    }
  }

  // Merges the groups, and writes the block's result.
  template <typename Results>
  __device__ void Finish(Results& results, int span, int64_t row, int head, int heads) {
    const int group = threadIdx.x / kLanes;
    VKV_UNROLL
    for (int h = 0; h < Heads; ++h) {
      if (threadIdx.x % kLanes == 0) {
        results.largest[group][h] = largest[h];
        results.total[group][h] = total[h];
      }
      VKV_UNROLL
      for (int i = 0; i < kHeld; ++i) results.sums[group][h][ElementOf(i)] = sums[h][i];
    }
    __syncthreads();
    results.Write(parameters, span, row, head, heads);
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
  const Span span = SpanAt(parameters.spans, blockIdx.z);
  const int end = span.length + 1;
  const int begin = FirstSeen(command, span.length);
  const int split_tokens = SplitTokensOf(parameters, end - begin);
  const int skipped = static_cast<int>(blockIdx.y) * split_tokens;
  if (span.tokens == 0 || skipped >= end - begin) return;
  const int from = begin + skipped;
  const int to = end - from < split_tokens ? end : from + split_tokens;
  const int kv_head = static_cast<int>(blockIdx.x) / parameters.group_blocks;
  const int first = (static_cast<int>(blockIdx.x) - kv_head * parameters.group_blocks) * Heads;  // in the group
  const int head = kv_head * parameters.group + first;
  Block block(parameters, {span.slot, kv_head, from, to});
  ReadTiles(block, shared.ring, block.CountTiles(),
            [&] { block.Start(command, span.first_row, head, parameters.group - first); });
  __syncthreads();  // all threads are done with the ring
  const int heads = (kv_head + 1) * parameters.group - head;
  // Read again, so that the loop over the tokens need not keep it in a register.
  const int row = SpanAt(parameters.spans, blockIdx.z).first_row;
  block.Finish(shared.results, static_cast<int>(blockIdx.z), row, head, heads < Heads ? heads : Heads);
}

}  // namespace vkv::kernels::cuda

#endif  // VKV_KERNELS_CUDA_DECODE_INL_H_
