// KernelLauncher: launches the package's CUDA kernels, from a module that the driver has loaded, on one stream.
//
// Owns nothing: the module is the driver's. It looks nothing up in the driver, does not allocate and does not wait. The
// driver outlives it. Threads: one at a time, inside a DriverScope.
#ifndef VKV_KERNELS_CUDA_KERNEL_LAUNCHER_H_
#define VKV_KERNELS_CUDA_KERNEL_LAUNCHER_H_

#include <memory>
#include <span>
#include <string>

#include "cuda/driver_cuda.h"
#include "kernels/cuda/launches.h"

namespace vkv::kernels::cuda {

// Every kernel of the package, for DriverCuda::LoadModule.
std::span<const vkv::cuda::ModuleKernel> PackageKernels();

class KernelLauncher {
 public:
  // kInternal unless the driver has loaded a module of this name.
  static Status Open(vkv::cuda::DriverCuda& driver, const std::string& module, Stream stream,
                     std::unique_ptr<KernelLauncher>& launcher);
  KernelLauncher(const KernelLauncher&) = delete;
  KernelLauncher& operator=(const KernelLauncher&) = delete;

  vkv::cuda::DriverCuda& driver() const { return driver_; }
  Stream stream() const { return stream_; }
  const std::string& architecture() const { return architecture_; }  // "sm_90"

  // For the Launch… functions.
  const Submit& submit() const { return submit_; }

 private:
  KernelLauncher(vkv::cuda::DriverCuda& driver, const vkv::cuda::Module& module, Stream stream);

  Status Run(const Launch& launch);

  vkv::cuda::DriverCuda& driver_;
  const vkv::cuda::Module& module_;
  const Stream stream_;
  const std::string architecture_;
  const Submit submit_;
};

}  // namespace vkv::kernels::cuda

#endif  // VKV_KERNELS_CUDA_KERNEL_LAUNCHER_H_
