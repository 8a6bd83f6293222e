// KernelSet: the four kernels over a cache's memory, on the machine of that memory.
//
// Work is queued in the order of the calls; on the CPU it is done when a call returns. Pre, for every call: each token
// that a command uses is mapped, the rows are as large as the spans say, and no two spans name the same slot; the
// binding's caller has checked that. One thread at a time.
#ifndef VKV_KERNELS_KERNEL_SET_H_
#define VKV_KERNELS_KERNEL_SET_H_

#include <span>

#include "kernels/commands.h"
#include "status.h"

namespace vkv::kernels {

class KernelSet {
 public:
  virtual ~KernelSet() = default;

  // The code that runs: "avx512", "sm_90".
  virtual const char* name() const = 0;

  virtual Status Append(const AppendCommand& command, std::span<const Span> spans) = 0;
  virtual Status CopyTokens(std::span<const Region> regions, std::span<const TokenCopy> copies) = 0;
  // One new token per sequence (or none): bound by memory, so the length is split over the machine.
  virtual Status DecodeAttention(const AttentionCommand& command, std::span<const Span> spans) = 0;
  // Any number of new tokens: bound by arithmetic, so keys are read once for many queries.
  virtual Status PrefillAttention(const AttentionCommand& command, std::span<const Span> spans) = 0;
};

}  // namespace vkv::kernels

#endif  // VKV_KERNELS_KERNEL_SET_H_
