#include "cuda/open_cuda.h"

#include <utility>

#include "cuda/driver_cuda.h"
#include "cuda/loader.h"

namespace vkv {

Status OpenCudaDriver(int device, const char* library_path, std::unique_ptr<Driver>& driver) {
  std::shared_ptr<cuda::CudaApi> api;
  VKV_RETURN_IF_ERROR(cuda::LoadedCuda::Load(library_path, api));
  return cuda::DriverCuda::Open(std::move(api), device, "cuda", driver);
}

}  // namespace vkv
