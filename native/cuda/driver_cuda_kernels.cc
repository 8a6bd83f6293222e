// DriverCuda's calls about kernels: modules, their functions, launches.
#include <cstdint>

#include "cuda/driver_cuda.h"

namespace vkv::cuda {

Status DriverCuda::LoadModule(const void* image, CUmodule& module) {
  VKV_RETURN_IF_ERROR(Ready());
  return Check("cuModuleLoadData", api_->cuModuleLoadData(&module, image));
}

Status DriverCuda::UnloadModule(CUmodule module) {
  VKV_RETURN_IF_ERROR(Ready());
  return CheckGivenBack("cuModuleUnload", api_->cuModuleUnload(module), {});
}

Status DriverCuda::FindKernel(CUmodule module, const char* name, CUfunction& kernel) {
  VKV_RETURN_IF_ERROR(Ready());
  return Check("cuModuleGetFunction", api_->cuModuleGetFunction(&kernel, module, name));
}

Status DriverCuda::LaunchKernel(CUfunction kernel, const LaunchSize& size, Stream stream, const void* parameter) {
  VKV_RETURN_IF_ERROR(Ready());
  void* parameters[] = {const_cast<void*>(parameter)};  // CUDA only copies what it points to
  const CUresult result =
      api_->cuLaunchKernel(kernel, size.grid[0], size.grid[1], size.grid[2], size.block_threads, 1, 1,
                           size.shared_bytes, reinterpret_cast<CUstream>(stream), parameters, /*extra=*/nullptr);
  return Check("cuLaunchKernel", result);
}

Status DriverCuda::CountMultiprocessors(int& count) {
  VKV_RETURN_IF_ERROR(Ready());
  return Check("cuDeviceGetAttribute",
               api_->cuDeviceGetAttribute(&count, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, device_));
}

}  // namespace vkv::cuda
