#include "kernels/cuda/kernel_set_cuda.h"

namespace vkv::kernels {

Status CudaKernels::Open(vkv::cuda::DriverCuda& driver, const void* image, Stream stream, uint64_t workspace_bytes,
                         std::unique_ptr<KernelSet>& set) {
  std::unique_ptr<CudaKernels> opened(new CudaKernels());
  VKV_RETURN_IF_ERROR(driver.CountMultiprocessors(opened->multiprocessors_));
  VKV_RETURN_IF_ERROR(cuda::KernelModule::Open(driver, image, stream, opened->module_));
  if (workspace_bytes != 0) VKV_RETURN_IF_ERROR(DeviceMemory::Open(driver, workspace_bytes, opened->workspace_));
  set = std::move(opened);
  return Ok();
}

Status CudaKernels::Append(const AppendCommand& command, std::span<const Span> spans) {
  return cuda::LaunchAppend(command, spans, module_->submit());
}

Status CudaKernels::CopyTokens(std::span<const Region> regions, std::span<const TokenCopy> copies) {
  return cuda::LaunchCopy(regions, copies, module_->submit());
}

Status CudaKernels::DecodeAttention(const AttentionCommand& command, std::span<const Span> spans) {
  const cuda::Workspace workspace =
      workspace_ ? cuda::Workspace{workspace_->address(), workspace_->bytes()} : cuda::Workspace{};
  return cuda::LaunchDecode(command, spans, multiprocessors_, workspace, module_->submit());
}

Status CudaKernels::PrefillAttention(const AttentionCommand& command, std::span<const Span> spans) {
  return cuda::LaunchPrefill(command, spans, module_->submit());
}

}  // namespace vkv::kernels
