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
  return cuda::LaunchDecode(command, spans, multiprocessors_, workspace(), launcher_->submit());
}

Status CudaKernels::AppendStep(const AppendCommand& command, const cuda::StepList& list) {
  return cuda::LaunchAppend(command, list, launcher_->submit());
}

Status CudaKernels::DecodeStep(const AttentionCommand& command, const cuda::StepList& list) {
  return cuda::LaunchDecode(command, list, multiprocessors_, workspace(), launcher_->submit());
}

Status CudaKernels::BeginCapture() {
  VKV_RETURN_IF_ERROR(launcher_->driver().BeginCapture(launcher_->stream()));
  is_capturing_ = true;
  return Ok();
}

Status CudaKernels::EndCapture(uint64_t& graph) {
  is_capturing_ = false;
  vkv::cuda::CUgraphExec captured = nullptr;
  VKV_RETURN_IF_ERROR(launcher_->driver().EndCapture(launcher_->stream(), captured));
  graph = reinterpret_cast<uint64_t>(captured);
  graphs_.insert(graph);
  return Ok();
}

void CudaKernels::AbortCapture() {
  if (is_capturing_) launcher_->driver().AbortCapture(launcher_->stream());
  is_capturing_ = false;
}

Status CudaKernels::Replay(uint64_t graph, uint64_t to, const void* from, uint64_t bytes) {
  if (!graphs_.contains(graph)) return Fail(Code::kInternal, "CudaKernels::Replay");
  VKV_RETURN_IF_ERROR(launcher_->driver().Upload(to, from, bytes, launcher_->stream()));
  return launcher_->driver().LaunchGraph(reinterpret_cast<vkv::cuda::CUgraphExec>(graph), launcher_->stream());
}

Status CudaKernels::DropGraph(uint64_t graph) {
  if (graphs_.erase(graph) == 0) return Ok();
  return launcher_->driver().DestroyGraph(reinterpret_cast<vkv::cuda::CUgraphExec>(graph));
}

CudaKernels::~CudaKernels() {
  AbortCapture();
  while (!graphs_.empty()) (void)DropGraph(*graphs_.begin());
}

Status CudaKernels::PrefillAttention(const AttentionCommand& command, std::span<const Span> spans) {
  return cuda::LaunchPrefill(command, spans, launcher_->submit());
}

}  // namespace vkv::kernels
