// Parameters: what each CUDA kernel is launched with, by value, and its name, grid and block.
//
// A launch carries its sequences with it (every driver takes 4,096 bytes of parameters), so nothing has to be uploaded,
// and no buffer has to outlive the launch. More sequences than fit take more launches. A step that is captured once and
// replayed with other sequences has them in device memory instead: the launch carries only the address. Compiled as C++
// and as CUDA C++; the simulated device checks launches against it.
#ifndef VKV_KERNELS_CUDA_PARAMETERS_H_
#define VKV_KERNELS_CUDA_PARAMETERS_H_

#include "kernels/commands.h"

namespace vkv::kernels::cuda {

inline constexpr int kSpansPerLaunch = 224;
inline constexpr int kRegionsPerLaunch = 64;
inline constexpr int kCopiesPerLaunch = 96;
inline constexpr int kRunsPerLaunch = 254;
inline constexpr int kMostDim = 256;  // of a head that attention kernels can take

struct Spans {
  int64_t count = 0;
  uint64_t list = 0;  // of a captured step: the address of `count` spans of one row each, read when the kernel runs
  Span entries[kSpansPerLaunch];
};

// vkv_append: grid (rows, 1, 1): a block per new token.
inline constexpr int kAppendThreads = 128;
struct AppendParameters {
  AppendCommand command;
  Spans spans;
};

// vkv_copy: grid (pieces of the longest range, regions, copies).
inline constexpr int kCopyThreads = 256;
inline constexpr int64_t kCopyPieceBytes = 64 << 10;
struct CopyParameters {
  int32_t region_count = 0;
  int32_t copy_count = 0;
  Region regions[kRegionsPerLaunch];
  TokenCopy copies[kCopiesPerLaunch];
};

// vkv_scatter: grid (pieces of the longest run, runs, 1).
inline constexpr int kScatterThreads = 256;
inline constexpr int64_t kScatterPieceBytes = 16 << 10;
struct ScatterParameters {
  uint64_t source = 0;
  int32_t run_count = 0;
  ScatterRun runs[kRunsPerLaunch];
};

// vkv_decode_TYPE_dDIM_hHEADS: grid (KV heads · blocks of HEADS query heads, splits, spans): blocks that start together
// read neighbouring heads of the same tokens. TYPE is the cache's, DIM at least the larger of dim and value dim, HEADS
// how many query heads of one KV head a block takes. The plain one,
// vkv_decode_TYPE_any, takes one query head and any dim up to kMostDim at any alignment. With one split the output is
// written; with more, `partials` is [span, query head, split] of kPartialHeader + value dim floats: largest score (in
// powers of two), total, sums. vkv_merge: grid (query heads, spans, 1), with the same parameters.
inline constexpr int kDecodeThreads = 128;
inline constexpr int kDecodeHeads[] = {1, 4, 8};
inline constexpr int kDecodeDims[] = {64, 128, 256};
// Blocks that run on a multiprocessor at a time, where it has the shared memory of an H200 (227 KiB): the registers of
// each kernel are held to it. Of the plain kernel as many run as of the largest.
constexpr int DecodeBlocks(int64_t element_bytes, int dim, int heads) {
  const bool is_wide = element_bytes * dim == 4 * kMostDim;
  if (heads == 1) return is_wide ? 4 : 7;
  if (element_bytes == 4) return is_wide || heads == 8 ? 3 : 5;
  return dim == 128 ? 3 : 4;
}
inline constexpr int kPlainDecodeBlocks = 4;
inline constexpr int kPartialHeader = 2;
inline constexpr int kMostSplits = 1024;
struct DecodeParameters {
  AttentionCommand command;
  uint64_t partials = 0;
  int32_t splits = 1;
  int32_t split_tokens = 0;  // tokens of a split; 0: of each sequence as many as spread it over the splits
  int32_t group = 1;         // query heads of a KV head
  int32_t group_blocks = 1;  // and blocks that take them
  Spans spans;
};

inline constexpr int kLeastSplitTokens = 128;  // below, merging costs more than it spreads
inline constexpr int kSplitStep = 64;
// Tokens of a split of a sequence that sees `length` tokens.
VKV_BOTH inline int SplitTokensOf(const DecodeParameters& parameters, int length) {
  if (parameters.split_tokens != 0) return parameters.split_tokens;
  const int even = (length + parameters.splits - 1) / parameters.splits;
  const int tokens = (even + kSplitStep - 1) / kSplitStep * kSplitStep;
  return tokens < kLeastSplitTokens ? kLeastSplitTokens : tokens;
}

// vkv_prefill_TYPE_rROWS: grid (blocks of ROWS tokens of the longest span, query heads, spans), block 4 · ROWS, shared
// bytes PrefillSharedBytes. ROWS is 32 for dims up to 128 and 16 beyond.
constexpr int PrefillRows(int dim, int value_dim) { return (dim > value_dim ? dim : value_dim) <= 128 ? 32 : 16; }
// vkv_prefill_TYPE_dDIM, on tensor cores, for 16-bit types and dims up to 128 that can be read 16 bytes at a time: as
// those of 32 rows, with at least PrefillTileBytes.
inline constexpr int kPrefillTileRows = 32;
inline constexpr int kPrefillTileTokens = 32;
// 16-byte slots from one token's key, or value, to the next.
VKV_BOTH constexpr int PrefillKeySlots(int dim) { return dim / 8 + 4; }
VKV_BOTH constexpr int PrefillValueSlots(int dim) { return dim / 8 + 1; }
constexpr int PrefillTileBytes(int dim) {
  return kPrefillTileTokens * 16 * (PrefillKeySlots(dim) + PrefillValueSlots(dim));
}
// Floats from one row of a tile in shared memory to the next: an odd number of fours, so that four elements of each of
// 8 rows, and the same element of 4 tokens, are in as many banks.
VKV_BOTH constexpr int PrefillStride(int dim) { return ((dim + 3) / 4 | 1) * 4; }
constexpr int PrefillSharedBytes(int dim, int value_dim) {
  const int rows = PrefillRows(dim, value_dim);
  const int widest = dim > value_dim ? dim : value_dim;
  // Queries [row, dim], a tile of as many keys or values [token, widest], scores [row, token].
  return static_cast<int>(sizeof(float)) * rows * (PrefillStride(dim) + PrefillStride(widest) + PrefillStride(rows));
}
static_assert(PrefillStride(64) == 68 && PrefillStride(128) == 132 && PrefillStride(13) == 20);
struct PrefillParameters {
  AttentionCommand command;
  Spans spans;
};

inline constexpr size_t kMostParameterBytes = 4096;
static_assert(sizeof(AppendParameters) <= kMostParameterBytes && sizeof(CopyParameters) <= kMostParameterBytes);
static_assert(sizeof(ScatterParameters) <= kMostParameterBytes);
static_assert(sizeof(DecodeParameters) <= kMostParameterBytes && sizeof(PrefillParameters) <= kMostParameterBytes);

}  // namespace vkv::kernels::cuda

#endif  // VKV_KERNELS_CUDA_PARAMETERS_H_
