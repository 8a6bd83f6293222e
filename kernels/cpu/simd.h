// Simd: the inner loops of the CPU kernels, compiled once for each instruction set, and the choice of one at run time.
//
// A SimdKernels works on one part of a command in one thread; kernel_set_cpu.cc divides commands into parts. Nothing
// here allocates: scratch is given, and its sizes are in floats. Pure functions; any thread.
#ifndef VKV_KERNELS_CPU_SIMD_H_
#define VKV_KERNELS_CPU_SIMD_H_

#include <cstdint>

#include "kernels/commands.h"

namespace vkv::kernels {

// Head dims are padded to a multiple of this in scratch, so that every instruction set has whole vectors.
inline constexpr int kPaddedLanes = 16;
constexpr int Padded(int dim) { return (dim + kPaddedLanes - 1) / kPaddedLanes * kPaddedLanes; }

// Tokens that decoding scores before it looks at their values.
inline constexpr int kDecodeTokens = 32;

// Queries and keys that prefilling multiplies with each other at a time.
inline constexpr int kPrefillRows = 64;
inline constexpr int kPrefillTokens = 64;

// Tokens [from, to) of one decoding sequence, all heads. The result is not divided by its total yet: the partial
// results of one sequence are merged by MergeParts.
struct DecodePart {
  const AttentionCommand* command = nullptr;
  int32_t slot = 0;
  int32_t row = 0;
  int32_t from = 0;
  int32_t to = 0;
  float* largest = nullptr;  // [query head]
  float* total = nullptr;    // [query head]
  float* sums = nullptr;     // [query head, padded value dim]
  bool has_sinks = false;    // the command's sinks count in this part: in one of each sequence
};
constexpr int64_t DecodeScratchFloats(const AttentionCommand& command) {  // queries, and scores of a block
  return int64_t{command.query_heads} * (Padded(command.keys.dim) + kDecodeTokens);
}

// The partial results of one sequence: of part p at p · stride floats from the first.
struct DecodeParts {
  const AttentionCommand* command = nullptr;
  int32_t row = 0;
  int32_t count = 0;
  int64_t stride = 0;
  float* largest = nullptr;
  float* total = nullptr;
  float* sums = nullptr;
};

// New tokens [from_token, to_token) of one sequence × query heads [from_head, to_head) of one KV head: at most
// kPrefillRows rows together, row = (token − from_token) · heads + head − from_head.
struct PrefillPart {
  const AttentionCommand* command = nullptr;
  Span span;
  int32_t kv_head = 0;
  int32_t from_head = 0;
  int32_t to_head = 0;
  int32_t from_token = 0;
  int32_t to_token = 0;
};
constexpr int64_t PrefillScratchFloats(const AttentionCommand& command) {
  const int64_t dim = Padded(command.keys.dim);
  const int64_t value_dim = Padded(command.values.dim);
  return kPrefillRows * (dim + value_dim)                        // queries (transposed), sums
         + kPrefillTokens * (dim > value_dim ? dim : value_dim)  // keys, later values, of a block
         + kPrefillTokens * kPrefillRows + 5 * kPrefillRows;     // scores; largest, total, correction, first, limit
}

struct SimdKernels {
  const char* name;
  void (*decode)(const DecodePart& part, float* scratch);
  void (*merge)(const DecodeParts& parts);
  void (*prefill)(const PrefillPart& part, float* scratch);
  // `elements` elements from one type to another, rounded to nearest.
  void (*convert)(void* to, Dtype to_dtype, const void* from, Dtype from_dtype, int64_t elements);
};

// Null where this machine or this build cannot run them; Portable is always there.
const SimdKernels* Avx512Kernels();
const SimdKernels* Avx2Kernels();
const SimdKernels* PortableKernels();

// The fastest this machine has; `wanted` by name instead, when it is there.
const SimdKernels* ChooseSimd(const char* wanted = nullptr);

}  // namespace vkv::kernels

#endif  // VKV_KERNELS_CPU_SIMD_H_
