// CpuKernels: the kernels on this machine's own memory: divides commands into parts, and lets a few threads do them
// with the widest vectors the machine has.
//
// Decoding splits each sequence's length so that every thread has work even for one sequence, all heads together, since
// the heads of a token lie side by side. Prefilling splits queries and KV heads. Scratch grows with the largest command
// so far and is kept. Threads: those of the pool; calls from one thread at a time.
#ifndef VKV_KERNELS_CPU_KERNEL_SET_CPU_H_
#define VKV_KERNELS_CPU_KERNEL_SET_CPU_H_

#include <atomic>
#include <memory>
#include <vector>

#include "kernels/cpu/parallel_loop.h"
#include "kernels/cpu/scratch.h"
#include "kernels/cpu/simd.h"
#include "kernels/kernel_set.h"

namespace vkv::kernels {

class CpuKernels final : public KernelSet {
 public:
  // `threads` counts the caller's. `simd` is one of the kernels of simd.h.
  CpuKernels(std::shared_ptr<ParallelLoop> loop, int threads, const SimdKernels* simd)
      : loop_(std::move(loop)), threads_(threads), simd_(simd) {}

  const char* name() const override { return simd_->name; }
  Status Append(const AppendCommand& command, std::span<const Span> spans) override;
  Status CopyTokens(std::span<const Region> regions, std::span<const TokenCopy> copies) override;
  // Spans of attention may leave out rows, which other calls compute.
  Status DecodeAttention(const AttentionCommand& command, std::span<const Span> spans) override;
  Status PrefillAttention(const AttentionCommand& command, std::span<const Span> spans) override;

 private:
  // Room for every thread, and for `shared_floats` more at the end.
  void MakeScratch(int64_t floats_per_thread, int64_t shared_floats);
  float* ScratchOf(int worker) { return scratch_.data() + worker * floats_per_thread_; }
  float* shared_scratch() { return ScratchOf(threads_); }

  // A stretch of one decoding sequence, and how many parts that has.
  struct Part {
    int32_t span;
    int32_t from;
    int32_t to;
    int32_t first_part;
    int32_t parts;
  };
  struct Block {  // of prefilling queries
    int32_t span;
    int32_t from_token;
    int32_t to_token;
  };

  const std::shared_ptr<ParallelLoop> loop_;
  const int threads_;
  const SimdKernels* const simd_;

  Scratch scratch_;
  int64_t floats_per_thread_ = 0;
  std::vector<Part> parts_;
  std::vector<Block> blocks_;
  std::unique_ptr<std::atomic<int32_t>[]> parts_left_;  // by span
  size_t parts_left_size_ = 0;
};

}  // namespace vkv::kernels

#endif  // VKV_KERNELS_CPU_KERNEL_SET_CPU_H_
