#include "kernels/cuda/dense_set_cuda.h"

#include "kernels/cuda/dense_launches.h"

namespace vkv::kernels {

Status CudaDense::Open(vkv::cuda::DriverCuda& driver, const void* image, Stream stream, std::unique_ptr<DenseSet>& set) {
  std::unique_ptr<CudaDense> opened(new CudaDense());
  VKV_RETURN_IF_ERROR(cuda::KernelModule::Open(driver, image, stream, opened->module_));
  set = std::move(opened);
  return Ok();
}

Status CudaDense::Multiply(const ProductInput& input, std::span<const Product> products) {
  for (const Product& product : products) VKV_RETURN_IF_ERROR(cuda::LaunchMultiply(input, product, module_->submit()));
  return Ok();
}

Status CudaDense::Normalize(const Normalization& command, int64_t rows) {
  return cuda::LaunchNormalize(command, rows, module_->submit());
}

Status CudaDense::Rotate(const Rotation& command, int64_t rows) {
  return cuda::LaunchRotate(command, rows, module_->submit());
}

Status CudaDense::Gate(const Gating& command) { return cuda::LaunchGate(command, module_->submit()); }

Status CudaDense::Gather(const Gathering& command, std::span<const int32_t> tokens) {
  return cuda::LaunchGather(command, tokens, module_->submit());
}

}  // namespace vkv::kernels
