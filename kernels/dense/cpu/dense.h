// Dense: a transformer's arithmetic besides attention, on the CPU: matrix products, RMSNorm, rotary positions, gates.
//
// Sums are taken in one order whatever the number of rows, so that a token's result does not depend, not by a bit, on
// the rest of the batch or how a prompt was cut. A DenseKernels works on one part of a command in one thread;
// dense_set_cpu.cc divides commands into parts. Nothing here allocates: scratch is given. Pure functions; any thread.
#ifndef VKV_KERNELS_DENSE_CPU_DENSE_H_
#define VKV_KERNELS_DENSE_CPU_DENSE_H_

#include <cstdint>

#include "kernels/dense/cpu/int8.h"
#include "kernels/dense/dense_commands.h"

namespace vkv::kernels {

// Outputs that are computed together, so that their weights, as floats, stay in a second-level cache.
inline constexpr int kPanelOutputs = 64;
// The same for few rows, which use the weights without conversion.
inline constexpr int kFewOutputs = 16;
// Inputs whose products are summed in registers before they are added up: a tile's rows of them are in a first-level
// cache.
inline constexpr int kPanelInputs = 1024;
// Rows that a panel of weights is multiplied with before the next inputs: whole tiles.
inline constexpr int kPanelRows = 240;
// From one output of a panel to the next, in floats: whole lines, and not what caches are divided by.
inline constexpr int kPanelStride = kPanelInputs + 16;
// In floats: a panel of weights, and sums.
inline constexpr int64_t kProductScratchFloats = kPanelOutputs * kPanelStride + kPanelRows * kPanelOutputs;

// Outputs [from, to) of one product, all rows.
struct ProductPart {
  const Product* product = nullptr;
  ProductInput input;
  int64_t from = 0;
  int64_t to = 0;
};

struct DenseKernels {
  const char* name;
  void (*multiply)(const ProductPart& part, float* scratch);
  // Rows [from, to).
  void (*normalize)(const Normalization& command, int64_t from, int64_t to);
  void (*rotate)(const Rotation& command, int64_t from, int64_t to);
  // Elements [from, to).
  void (*gate)(const Gating& command, int64_t from, int64_t to);
  void (*cap)(const Capping& command, int64_t from, int64_t to);
  // `count` elements as floats.
  void (*to_floats)(float* to, const void* from, Dtype dtype, int64_t count);
  const Int8Kernels* int8;
};

// Null where this machine or this build cannot run them; Portable is always there.
const DenseKernels* Avx512Dense();
const DenseKernels* Avx2Dense();
const DenseKernels* PortableDense();

// The fastest this machine has; `wanted` by name instead, when it is there.
const DenseKernels* ChooseDense(const char* wanted = nullptr);

}  // namespace vkv::kernels

#endif  // VKV_KERNELS_DENSE_CPU_DENSE_H_
