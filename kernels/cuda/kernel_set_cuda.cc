#include "kernels/cuda/kernel_set_cuda.h"

namespace vkv::kernels {

Status CudaKernels::Open(vkv::cuda::DriverCuda& driver, const void* image, Stream stream, uint64_t workspace_bytes,
                         std::unique_ptr<KernelSet>& set) {
  std::unique_ptr<CudaKernels> opened(new CudaKernels(driver, stream));
  VKV_RETURN_IF_ERROR(driver.CountMultiprocessors(opened->multiprocessors_));
  VKV_RETURN_IF_ERROR(driver.LoadModule(image, opened->module_));
  VKV_RETURN_IF_ERROR(opened->OpenWorkspace(workspace_bytes));
  set = std::move(opened);
  return Ok();
}

CudaKernels::CudaKernels(vkv::cuda::DriverCuda& driver, Stream stream)
    : driver_(driver), stream_(stream), name_("sm_" + std::to_string(driver.info().compute_capability)) {}

CudaKernels::~CudaKernels() {
  CloseWorkspace();
  if (module_ != nullptr) (void)driver_.UnloadModule(module_);
}

Status CudaKernels::OpenWorkspace(uint64_t bytes) {
  const uint64_t page_bytes = driver_.info().default_page_bytes;
  const uint64_t pages = (bytes + page_bytes - 1) / page_bytes;
  if (pages == 0) return Ok();
  VKV_RETURN_IF_ERROR(driver_.Reserve(pages * page_bytes, page_bytes, workspace_.address));
  workspace_.bytes = pages * page_bytes;
  for (uint64_t index = 0; index < pages; ++index) {
    const uint64_t address = workspace_.address + index * page_bytes;
    PageHandle page = 0;
    VKV_RETURN_IF_ERROR(driver_.CreatePage(page_bytes, address, page));
    pages_.push_back(page);
    VKV_RETURN_IF_ERROR(driver_.Map(address, page_bytes, page));
    ++mapped_pages_;
  }
  return driver_.SetAccess(workspace_.address, workspace_.bytes);
}

// Nobody is left to be told of a failure; the driver's own end takes care of what stays.
void CudaKernels::CloseWorkspace() {
  const uint64_t page_bytes = driver_.info().default_page_bytes;
  if (mapped_pages_ != 0) (void)driver_.Unmap(workspace_.address, mapped_pages_ * page_bytes);
  for (const PageHandle page : pages_) (void)driver_.ReleasePage(page, page_bytes);
  if (workspace_.bytes != 0) (void)driver_.FreeReservation(workspace_.address, workspace_.bytes);
}

Status CudaKernels::Submit(const cuda::Launch& launch) {
  vkv::cuda::CUfunction& kernel = kernels_[launch.name];
  if (kernel == nullptr) VKV_RETURN_IF_ERROR(driver_.FindKernel(module_, launch.name, kernel));
  const vkv::cuda::LaunchSize size = {
      {launch.grid.x, launch.grid.y, launch.grid.z}, launch.threads, launch.shared_bytes};
  return driver_.LaunchKernel(kernel, size, stream_, launch.parameters);
}

Status CudaKernels::Append(const AppendCommand& command, std::span<const Span> spans) {
  return cuda::LaunchAppend(command, spans, [this](const cuda::Launch& launch) { return Submit(launch); });
}

Status CudaKernels::CopyTokens(std::span<const Region> regions, std::span<const TokenCopy> copies) {
  return cuda::LaunchCopy(regions, copies, [this](const cuda::Launch& launch) { return Submit(launch); });
}

Status CudaKernels::DecodeAttention(const AttentionCommand& command, std::span<const Span> spans) {
  return cuda::LaunchDecode(command, spans, multiprocessors_, workspace_,
                            [this](const cuda::Launch& launch) { return Submit(launch); });
}

Status CudaKernels::PrefillAttention(const AttentionCommand& command, std::span<const Span> spans) {
  return cuda::LaunchPrefill(command, spans, [this](const cuda::Launch& launch) { return Submit(launch); });
}

}  // namespace vkv::kernels
