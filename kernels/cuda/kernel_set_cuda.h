// CudaKernels: the kernels over a cache's memory on a CUDA device, launched on one stream.
//
// Owns a workspace for the partial results of split decoding, one only; so everything it launches goes
// to the one stream it was opened for, in order. Nothing is allocated, uploaded or waited for after Open. Threads: one
// at a time, inside a DriverScope; also for its destruction, before which the stream must have finished.
#ifndef VKV_KERNELS_CUDA_KERNEL_SET_CUDA_H_
#define VKV_KERNELS_CUDA_KERNEL_SET_CUDA_H_

#include <memory>
#include <set>
#include <string>

#include "cuda/driver_cuda.h"
#include "device_memory.h"
#include "kernels/cuda/kernel_launcher.h"
#include "kernels/kernel_set.h"

namespace vkv::kernels {

class CudaKernels final : public KernelSet {
 public:
  // `module` is one that the driver has loaded. `workspace_bytes` is rounded up to pages; 0: no sequence is ever
  // split. A failure leaves nothing behind. `driver` outlives the set.
  static Status Open(vkv::cuda::DriverCuda& driver, const std::string& module, Stream stream, uint64_t workspace_bytes,
                     std::unique_ptr<KernelSet>& set);

  const char* name() const override { return launcher_->architecture().c_str(); }
  Status Append(const AppendCommand& command, std::span<const Span> spans) override;
  Status CopyTokens(std::span<const Region> regions, std::span<const TokenCopy> copies) override;
  Status DecodeAttention(const AttentionCommand& command, std::span<const Span> spans) override;
  Status PrefillAttention(const AttentionCommand& command, std::span<const Span> spans) override;

  // A captured step: Replay launches the work queued on the stream between BeginCapture and EndCapture, by these two
  // calls and by others, after a copy of the bytes of its lists. Graphs live as long as the set.
  Status AppendStep(const AppendCommand& command, const cuda::StepList& list);
  Status DecodeStep(const AttentionCommand& command, const cuda::StepList& list);
  Status BeginCapture();
  Status EndCapture(uint64_t& graph);
  void AbortCapture();
  Status Replay(uint64_t graph, uint64_t to, const void* from, uint64_t bytes);
  Status DropGraph(uint64_t graph);
  ~CudaKernels() override;

 private:
  CudaKernels() = default;

  cuda::Workspace workspace() const {
    return workspace_ ? cuda::Workspace{workspace_->address(), workspace_->bytes()} : cuda::Workspace{};
  }

  std::unique_ptr<cuda::KernelLauncher> launcher_;
  std::unique_ptr<DeviceMemory> workspace_;  // null: no sequence is ever split
  std::set<uint64_t> graphs_;
  int multiprocessors_ = 1;
  bool is_capturing_ = false;
};

}  // namespace vkv::kernels

#endif  // VKV_KERNELS_CUDA_KERNEL_SET_CUDA_H_
