#include "kernels/cuda/kernel_module.h"

namespace vkv::kernels::cuda {

Status KernelModule::Open(vkv::cuda::DriverCuda& driver, const void* image, Stream stream,
                          std::unique_ptr<KernelModule>& module) {
  std::unique_ptr<KernelModule> opened(new KernelModule(driver, stream));
  VKV_RETURN_IF_ERROR(driver.LoadModule(image, opened->module_));
  module = std::move(opened);
  return Ok();
}

KernelModule::KernelModule(vkv::cuda::DriverCuda& driver, Stream stream)
    : driver_(driver),
      stream_(stream),
      architecture_("sm_" + std::to_string(driver.info().compute_capability)),
      submit_([this](const Launch& launch) { return Run(launch); }) {}

KernelModule::~KernelModule() {
  if (module_ != nullptr) (void)driver_.UnloadModule(module_);
}

Status KernelModule::Run(const Launch& launch) {
  vkv::cuda::CUfunction& kernel = kernels_[launch.name];
  if (kernel == nullptr) VKV_RETURN_IF_ERROR(driver_.FindKernel(module_, launch.name, kernel));
  const vkv::cuda::LaunchSize size = {
      {launch.grid.x, launch.grid.y, launch.grid.z}, launch.threads, launch.shared_bytes};
  return driver_.LaunchKernel(kernel, size, stream_, launch.parameters);
}

}  // namespace vkv::kernels::cuda
