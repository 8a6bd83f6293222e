// Dense parameters: what each CUDA kernel of the dense arithmetic is launched with, by value, and its name, grid and
// block.
//
// As parameters.h for those over a cache: tokens and positions are passed with the launch, more of them take more
// launches. Compiled as C++ and as CUDA C++; the simulated device checks launches against it.
#ifndef VKV_KERNELS_DENSE_CUDA_DENSE_PARAMETERS_H_
#define VKV_KERNELS_DENSE_CUDA_DENSE_PARAMETERS_H_

#include "kernels/cuda/parameters.h"
#include "kernels/dense/dense_commands.h"

namespace vkv::kernels::cuda {

// Tokens or positions of a launch.
inline constexpr int kIndicesPerLaunch = 960;

// vkv_multiply_TYPE_rROWS: a warp has ROWS rows × kMultiplyOutputs<ROWS> outputs, a block kMultiplyWarps warps beside
// each other in the outputs. Grid (blocks of rows · blocks of outputs, 1, 1), those of rows first, so that the blocks
// that run together read the same weights. TYPE is the weight's. `is_aligned`: rows and weights can be read 16 bytes at
// a time.
inline constexpr int kMultiplyRows[] = {1, 2, 4, 8};
inline constexpr int kMultiplyWarps = 4;
inline constexpr int kMultiplyRowsPerLaunch = 4096;  // keeps the grid in its limits
template <int Rows>
inline constexpr int kMultiplyOutputs = Rows == 1 ? 2 : 4;  // of a warp
struct MultiplyParameters {
  ProductInput input;
  Product product;
  bool is_aligned = false;
};

// All others: kRowThreads threads.
inline constexpr int kRowThreads = 256;

// vkv_normalize: grid (rows, 1, 1).
struct NormalizeParameters {
  Normalization command;
  int64_t rows = 0;
};

// vkv_rotate: grid (rows, 1, 1). The positions are those at `list`, in device memory, or where that is null those
// below.
struct RotateParameters {
  Rotation command;
  int64_t rows = 0;
  const int32_t* list = nullptr;
  int32_t positions[kIndicesPerLaunch];
};

// vkv_gate, vkv_cap, vkv_narrow: grid (pieces of kPieceElements, 1, 1).
inline constexpr int kPieceElements = 4 * kRowThreads;
struct GateParameters {
  Gating command;
};
struct CapParameters {
  Capping command;
};
// 16-bit floats of floats.
struct NarrowParameters {
  const float* from = nullptr;
  void* to = nullptr;
  int64_t count = 0;
  Dtype dtype = Dtype::kFloat16;
};

// vkv_gather: grid (rows, 1, 1).
struct GatherParameters {
  Gathering command;
  int64_t rows = 0;
  const int32_t* list = nullptr;  // as above, of tokens
  int32_t tokens[kIndicesPerLaunch];
};

// vkv_bias: grid (rows, 1, 1): output[row, o] = bias[o], + the old output[row, o] if it `adds`.
struct BiasParameters {
  const float* bias = nullptr;
  float* output = nullptr;
  int64_t rows = 0;
  int64_t outputs = 0;
  bool adds = false;
};

static_assert(sizeof(RotateParameters) <= kMostParameterBytes && sizeof(GatherParameters) <= kMostParameterBytes);

}  // namespace vkv::kernels::cuda

#endif  // VKV_KERNELS_DENSE_CUDA_DENSE_PARAMETERS_H_
