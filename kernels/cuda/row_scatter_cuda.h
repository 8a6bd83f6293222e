// CudaRowScatter: copies rows of side tensors to the CPU's memory by a kernel, one launch for as many as a launch names
// (kRunsPerLaunch). Its module is small, so that loading it takes milliseconds.
//
// Owns nothing: the module is the driver's, which outlives it. Threads: one at a time, inside a DriverScope.
#ifndef VKV_KERNELS_CUDA_ROW_SCATTER_CUDA_H_
#define VKV_KERNELS_CUDA_ROW_SCATTER_CUDA_H_

#include <memory>
#include <vector>

#include "cuda/driver_cuda.h"
#include "kernels/commands.h"
#include "row_scatter.h"

namespace vkv::kernels::cuda {

class CudaRowScatter final : public RowScatter {
 public:
  // `image` is the PTX of scatter.cu, ended by a zero. kKernelsRefused leaves nothing behind.
  static Status Open(vkv::cuda::DriverCuda& driver, const void* image, std::unique_ptr<RowScatter>& scatter);

  Status Scatter(uint64_t source, std::span<const PlacedRows> rows, Stream stream) override;

 private:
  CudaRowScatter(vkv::cuda::DriverCuda& driver, vkv::cuda::CUfunction kernel) : driver_(driver), kernel_(kernel) {}

  vkv::cuda::DriverCuda& driver_;
  const vkv::cuda::CUfunction kernel_;
  std::vector<ScatterRun> runs_;  // of the call at hand
};

}  // namespace vkv::kernels::cuda

#endif  // VKV_KERNELS_CUDA_ROW_SCATTER_CUDA_H_
