// Dense launches: the kernels that a dense command launches. As launches.h: pure arithmetic; knows no driver.
#ifndef VKV_KERNELS_DENSE_CUDA_DENSE_LAUNCHES_H_
#define VKV_KERNELS_DENSE_CUDA_DENSE_LAUNCHES_H_

#include <span>
#include <string>

#include "kernels/cuda/launches.h"
#include "kernels/dense/cuda/dense_parameters.h"

namespace vkv::kernels::cuda {

Status LaunchMultiply(const ProductInput& input, const Product& product, const Submit& submit);
Status LaunchNormalize(const Normalization& command, int64_t rows, const Submit& submit);
Status LaunchRotate(const Rotation& command, int64_t rows, const Submit& submit);
Status LaunchGate(const Gating& command, const Submit& submit);
Status LaunchCap(const Capping& command, const Submit& submit);
Status LaunchGather(const Gathering& command, std::span<const int32_t> tokens, const Submit& submit);

// Complements of cuBLAS: see BiasParameters and NarrowParameters.
Status LaunchBias(const BiasParameters& parameters, const Submit& submit);
Status LaunchNarrow(const NarrowParameters& parameters, const Submit& submit);

// The product's kernel for so many rows: its name, how many rows and outputs a block takes.
struct MultiplyKernel {
  std::string name;
  int rows = 1;
  int outputs = 1;
};
MultiplyKernel ChooseMultiply(Dtype dtype, int64_t rows);

// Rows and weights can be read 16 bytes at a time.
bool IsAligned(const ProductInput& input, const Product& product);

}  // namespace vkv::kernels::cuda

#endif  // VKV_KERNELS_DENSE_CUDA_DENSE_LAUNCHES_H_
