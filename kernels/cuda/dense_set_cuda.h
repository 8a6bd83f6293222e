// CudaDense: the dense arithmetic on a CUDA device, launched on one stream.
//
// Owns a module; everything it launches goes to the one stream it was opened for, in order. Nothing is allocated, uploaded
// or waited for after Open. Threads: one at a time, inside a DriverScope; also for its destruction, before which the stream
// must have finished.
#ifndef VKV_KERNELS_CUDA_DENSE_SET_CUDA_H_
#define VKV_KERNELS_CUDA_DENSE_SET_CUDA_H_

#include <memory>
#include <string>

#include "cuda/driver_cuda.h"
#include "kernels/cuda/kernel_module.h"
#include "kernels/dense_set.h"

namespace vkv::kernels {

class CudaDense final : public DenseSet {
 public:
  // `image` is PTX ended by a zero, or a fatbin. What fails leaves nothing behind. `driver` outlives the set.
  static Status Open(vkv::cuda::DriverCuda& driver, const void* image, Stream stream, std::unique_ptr<DenseSet>& set);

  const char* name() const override { return module_->architecture().c_str(); }
  Status Multiply(const ProductInput& input, std::span<const Product> products) override;
  Status Normalize(const Normalization& command, int64_t rows) override;
  Status Rotate(const Rotation& command, int64_t rows) override;
  Status Gate(const Gating& command) override;
  Status Gather(const Gathering& command, std::span<const int32_t> tokens) override;

 private:
  CudaDense() = default;

  std::unique_ptr<cuda::KernelModule> module_;
};

}  // namespace vkv::kernels

#endif  // VKV_KERNELS_CUDA_DENSE_SET_CUDA_H_
