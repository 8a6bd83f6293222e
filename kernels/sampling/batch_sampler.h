// BatchSampler: chooses the next token of each row of a batch, the rows shared among the threads of a pool.
//
// What is chosen depends neither on the number of threads nor on the instructions. Memory grows with the largest batch
// and vocabulary so far and is kept. Calls from one thread at a time.
#ifndef VKV_KERNELS_SAMPLING_BATCH_SAMPLER_H_
#define VKV_KERNELS_SAMPLING_BATCH_SAMPLER_H_

#include <memory>
#include <vector>

#include "kernels/cpu/worker_pool.h"
#include "kernels/sampling/row_sampler.h"

namespace vkv::kernels {

class BatchSampler {
 public:
  // `threads` counts the caller's.
  BatchSampler(std::shared_ptr<WorkerPool> pool, int threads, const SamplingKernels* kernels);

  const char* name() const { return kernels_->name; }
  // Pre: as RowSampler::Choose; chosen has as many entries as choices.
  void Choose(std::span<const Choice> choices, int64_t vocabulary, std::span<const Chosen> chosen);

 private:
  const std::shared_ptr<WorkerPool> pool_;
  const int threads_;
  const SamplingKernels* const kernels_;
  std::vector<std::unique_ptr<RowSampler>> samplers_;  // [thread], made when first used
};

}  // namespace vkv::kernels

#endif  // VKV_KERNELS_SAMPLING_BATCH_SAMPLER_H_
