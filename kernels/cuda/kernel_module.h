// KernelModule: the package's CUDA kernels, loaded through a driver, launched on one stream.
//
// Owns the module. A kernel is looked up at its first launch and kept; nothing is allocated or waited for after Open.
// The driver outlives it. Threads: one at a time, inside a DriverScope; also for its destruction, before which the
// stream must have finished.
#ifndef VKV_KERNELS_CUDA_KERNEL_MODULE_H_
#define VKV_KERNELS_CUDA_KERNEL_MODULE_H_

#include <memory>
#include <string>
#include <unordered_map>

#include "cuda/driver_cuda.h"
#include "kernels/cuda/launches.h"

namespace vkv::kernels::cuda {

class KernelModule {
 public:
  // `image` is PTX ended by a zero, or a fatbin, and is not needed afterwards.
  static Status Open(vkv::cuda::DriverCuda& driver, const void* image, Stream stream,
                     std::unique_ptr<KernelModule>& module);
  ~KernelModule();
  KernelModule(const KernelModule&) = delete;
  KernelModule& operator=(const KernelModule&) = delete;

  vkv::cuda::DriverCuda& driver() const { return driver_; }
  Stream stream() const { return stream_; }
  const std::string& architecture() const { return architecture_; }  // "sm_90"

  // For the Launch… functions.
  const Submit& submit() const { return submit_; }

 private:
  KernelModule(vkv::cuda::DriverCuda& driver, Stream stream);

  Status Run(const Launch& launch);

  vkv::cuda::DriverCuda& driver_;
  const Stream stream_;
  const std::string architecture_;
  const Submit submit_;
  vkv::cuda::CUmodule module_ = nullptr;
  std::unordered_map<std::string, vkv::cuda::CUfunction> kernels_;  // those used so far
};

}  // namespace vkv::kernels::cuda

#endif  // VKV_KERNELS_CUDA_KERNEL_MODULE_H_
