#include "kernels/cuda/kernel_set_cuda.h"

namespace vkv::kernels {

Status CudaKernels::Open(vkv::cuda::DriverCuda& driver, const std::string& module, Stream stream,
                         uint64_t workspace_bytes, std::unique_ptr<KernelSet>& set) {
  std::unique_ptr<CudaKernels> opened(new CudaKernels());
  VKV_RETURN_IF_ERROR(driver.CountMultiprocessors(opened->multiprocessors_));
  VKV_RETURN_IF_ERROR(cuda::KernelLauncher::Open(driver, module, stream, opened->launcher_));
  if (workspace_bytes != 0) VKV_RETURN_IF_ERROR(DeviceMemory::Open(driver, workspace_bytes, opened->workspace_));
  set = std::move(opened);
  return Ok();
}

Status CudaKernels::Append(const AppendCommand& command, std::span<const Span> spans) {
  return cuda::LaunchAppend(command, spans, launcher_->submit());
}

Status CudaKernels::CopyTokens(std::span<const Region> regions, std::span<const TokenCopy> copies) {
  return cuda::LaunchCopy(regions, copies, launcher_->submit());
}

Status CudaKernels::DecodeAttention(const AttentionCommand& command, std::span<const Span> spans) {
  const cuda::Workspace workspace =
      workspace_ ? cuda::Workspace{workspace_->address(), workspace_->bytes()} : cuda::Workspace{};
  return cuda::LaunchDecode(command, spans, multiprocessors_, workspace, launcher_->submit());
}

Status CudaKernels::PrefillAttention(const AttentionCommand& command, std::span<const Span> spans) {
  return cuda::LaunchPrefill(command, spans, launcher_->submit());
}

}  // namespace vkv::kernels
