// CudaKernels: the kernels on a CUDA device: loads the module through the driver, and launches on one stream.
//
// Owns the module and a workspace for the partial results of split decoding, one of each; so everything it launches goes to
// the one stream it was opened for, in order. Nothing is allocated, uploaded or waited for after Open. Threads: one at a time,
// inside a DriverScope; also for its destruction, before which the stream must have finished.
#ifndef VKV_KERNELS_CUDA_KERNEL_SET_CUDA_H_
#define VKV_KERNELS_CUDA_KERNEL_SET_CUDA_H_

#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "cuda/driver_cuda.h"
#include "kernels/cuda/launches.h"
#include "kernels/kernel_set.h"

namespace vkv::kernels {

class CudaKernels final : public KernelSet {
 public:
  // `image` is PTX ended by a zero, or a fatbin. `workspace_bytes` is rounded up to pages; 0: no sequence is ever split.
  // What fails leaves nothing behind. `driver` outlives the set.
  static Status Open(vkv::cuda::DriverCuda& driver, const void* image, Stream stream, uint64_t workspace_bytes,
                     std::unique_ptr<KernelSet>& set);
  ~CudaKernels() override;

  const char* name() const override { return name_.c_str(); }
  Status Append(const AppendCommand& command, std::span<const Span> spans) override;
  Status CopyTokens(std::span<const Region> regions, std::span<const TokenCopy> copies) override;
  Status DecodeAttention(const AttentionCommand& command, std::span<const Span> spans) override;
  Status PrefillAttention(const AttentionCommand& command, std::span<const Span> spans) override;

 private:
  CudaKernels(vkv::cuda::DriverCuda& driver, Stream stream);

  Status OpenWorkspace(uint64_t bytes);
  void CloseWorkspace();
  Status Submit(const cuda::Launch& launch);

  vkv::cuda::DriverCuda& driver_;
  const Stream stream_;
  const std::string name_;  // "sm_90"
  int multiprocessors_ = 1;
  vkv::cuda::CUmodule module_ = nullptr;
  std::unordered_map<std::string, vkv::cuda::CUfunction> kernels_;  // those used so far
  cuda::Workspace workspace_;
  std::vector<PageHandle> pages_;  // of the workspace
  uint64_t mapped_pages_ = 0;
};

}  // namespace vkv::kernels

#endif  // VKV_KERNELS_CUDA_KERNEL_SET_CUDA_H_
