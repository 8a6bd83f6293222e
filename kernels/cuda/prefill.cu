// Prefill attention: causal, for parts of prompts that start at the cached length.
//
// Grid (blocks of Rows new tokens, query heads, spans), 4 threads to a row. Keys come through shared memory in tiles of
// Rows tokens, then the values of the same tokens; each thread scores a quarter of the tile and sums a quarter of the
// dims. Tiles begin at multiples of Rows, and a token that a row does not see adds exactly zero to it, so a row's
// result does not depend on the rows beside it. Rows in shared memory lie PrefillStride apart, so that no access of a
// warp waits for a bank, which a test counts (at a stride of dim the queries took 8 turns and the keys 4). A thread has
// the scores of its quarter in registers: 9 loads for 8 multiply-adds. Otherwise this is the obvious version: float
// arithmetic, no tensor cores (prefill_tiles_inl.h has them), and query heads that share a KV head each read it.
#include "kernels/cuda/prefill_tiles_inl.h"

namespace vkv::kernels::cuda {

constexpr int kQuarters = 4;

template <typename T, int Rows>
__device__ inline void LoadTile(float* tile, const Tensor& tensor, int slot, int kv_head, int from, int skipped,
                                int tokens) {
  for (int at = threadIdx.x; at < Rows * tensor.dim; at += kQuarters * Rows) {
    const int token = at / tensor.dim;
    const int element = at % tensor.dim;
    // A missing element must not be a NaN, which a weight of zero would not remove.
    tile[token * PrefillStride(tensor.dim) + element] =
        token >= skipped && token < tokens
            ? AsFloat(reinterpret_cast<const T*>(HeadAt(tensor, slot, from + token, kv_head))[element])
            : 0.0f;
  }
}

template <typename T, int Rows>
__device__ inline void Prefill(const PrefillParameters& parameters, float* shared) {
  constexpr int kSums = (Rows == 32 ? 128 : kMostDim) / kQuarters;
  const AttentionCommand& command = parameters.command;
  const Span span = SpanAt(parameters.spans, blockIdx.z);
  const int first = static_cast<int>(blockIdx.x) * Rows;
  if (first >= span.tokens) return;
  const int dim = command.keys.dim;
  const int value_dim = command.values.dim;
  const int widest = dim > value_dim ? dim : value_dim;
  const int head = static_cast<int>(blockIdx.y);
  const int kv_head = head / (command.query_heads / command.keys.heads);
  constexpr int kScores = Rows / kQuarters;  // of a thread: tokens quarter, quarter + 4, …
  const int stride = PrefillStride(dim);
  const int value_stride = PrefillStride(value_dim);
  float* const queries = shared;                              // [row, dim]
  float* const tile = queries + Rows * stride;                // [token, dim or value dim]
  float* const scores = tile + Rows * PrefillStride(widest);  // [row, token]

  const int row = static_cast<int>(threadIdx.x) / kQuarters;
  const int quarter = static_cast<int>(threadIdx.x) % kQuarters;
  const int new_token = first + row;
  const bool is_there = new_token < span.tokens;
  const int64_t out = (static_cast<int64_t>(span.first_row) + new_token) * command.query_heads + head;
  for (int i = quarter; i < dim; i += kQuarters) {
    queries[row * stride + i] =
        is_there ? command.scale * LoadElement(command.queries, command.row_dtype, out * dim + i) : 0.0f;
  }
  const int sees_from = FirstSeen(command, span.length + new_token);  // this row
  const int sees_to = span.length + new_token + 1;
  const int begin = FirstSeen(command, span.length + first);  // the first row
  const int rows = span.tokens - first < Rows ? span.tokens - first : Rows;
  const int end = span.length + first + rows;  // the last row

  float sums[kSums];
  VKV_UNROLL
  for (int i = 0; i < kSums; ++i) sums[i] = 0;
  float largest = SinkOf(command, head);
  float total = largest > kLeastScore ? 1.0f : 0.0f;
  for (int from = begin - begin % Rows; from < end; from += Rows) {
    const int tokens = end - from < Rows ? end - from : Rows;
    const int skipped = begin - from;
    __syncthreads();  // the queries are loaded, and all warps have read the last tile
    LoadTile<T, Rows>(tile, command.keys, span.slot, kv_head, from, skipped, tokens);
    __syncthreads();
    float most = largest;
    float score[kScores];
    VKV_UNROLL
    for (int k = 0; k < kScores; ++k) score[k] = 0;
    VKV_KEEP_LOOP
    for (int i = 0; i < dim; ++i) {
      const float query = queries[row * stride + i];
      VKV_UNROLL
      for (int k = 0; k < kScores; ++k) score[k] += query * tile[(quarter + k * kQuarters) * stride + i];
    }
    if (command.softcap > 0) {
      VKV_UNROLL
      for (int k = 0; k < kScores; ++k) score[k] = CapScore(score[k], command.softcap);
    }
    VKV_UNROLL
    for (int k = 0; k < kScores; ++k) {
      const int token = from + quarter + k * kQuarters;
      if (token < sees_from || token >= sees_to) score[k] = kMinusInfinity;
      most = fmaxf(most, score[k]);
    }
    most = fmaxf(most, __shfl_xor_sync(0xffffffffu, most, 1));
    most = fmaxf(most, __shfl_xor_sync(0xffffffffu, most, 2));
    const float correction = expf(largest - most);  // never of infinities: kLeastScore where a row saw nothing yet
    largest = most;
    float sum = 0;
    VKV_UNROLL
    for (int k = 0; k < kScores; ++k) {
      const float weight = expf(score[k] - most);
      scores[row * PrefillStride(Rows) + quarter + k * kQuarters] = weight;
      sum += weight;
    }
    sum += __shfl_xor_sync(0xffffffffu, sum, 1);
    sum += __shfl_xor_sync(0xffffffffu, sum, 2);
    total = total * correction + sum;
    __syncthreads();  // all threads are done with the keys
    LoadTile<T, Rows>(tile, command.values, span.slot, kv_head, from, skipped, tokens);
    __syncthreads();
    VKV_UNROLL
    for (int i = 0; i < kSums; ++i) sums[i] *= correction;
    VKV_KEEP_LOOP
    for (int token = 0; token < Rows; ++token) {
      const float weight = scores[row * PrefillStride(Rows) + token];
      VKV_UNROLL
      for (int i = 0; i < kSums; ++i) {
        const int element = quarter + i * kQuarters;
        if (element < value_dim) sums[i] += weight * tile[token * value_stride + element];
      }
    }
  }
  if (!is_there) return;
  VKV_UNROLL
  for (int i = 0; i < kSums; ++i) {
    const int element = quarter + i * kQuarters;
    if (element < value_dim) {
      StoreElement(command.output, command.row_dtype, out * value_dim + element, sums[i] / total);
    }
  }
}

#define VKV_PREFILL(name, type, rows)                                                             \
  VKV_KERNEL vkv_prefill_##name##_r##rows(const __grid_constant__ PrefillParameters parameters) { \
    VKV_LAUNCH_SHARED(shared);                                                                    \
    Prefill<type, rows>(parameters, shared);                                                      \
  }
// Without products of tiles (bfloat16 on Turing) the plain kernel runs, with the same launch.
template <typename T, int Dim>
__device__ inline void PrefillByTiles(const PrefillParameters& parameters, float* shared) {
  if constexpr (Tiles<T>::kAreThere)
    PrefillTiles<T, Dim>(parameters, shared).Run();
  else
    Prefill<T, kPrefillTileRows>(parameters, shared);
}

#define VKV_PREFILL_TILES(name, type, dim)                                                       \
  VKV_KERNEL vkv_prefill_##name##_d##dim(const __grid_constant__ PrefillParameters parameters) { \
    VKV_LAUNCH_SHARED(shared);                                                                   \
    PrefillByTiles<type, dim>(parameters, shared);                                               \
  }
VKV_PREFILL_TILES(f16, HalfBits, 64)
VKV_PREFILL_TILES(f16, HalfBits, 128)
VKV_PREFILL_TILES(bf16, BfloatBits, 64)
VKV_PREFILL_TILES(bf16, BfloatBits, 128)

#define VKV_PREFILL_ROWS(name, type) VKV_PREFILL(name, type, 32) VKV_PREFILL(name, type, 16)
VKV_PREFILL_ROWS(f32, float)
VKV_PREFILL_ROWS(f16, HalfBits)
VKV_PREFILL_ROWS(bf16, BfloatBits)

}  // namespace vkv::kernels::cuda
