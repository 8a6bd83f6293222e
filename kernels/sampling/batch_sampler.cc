#include "kernels/sampling/batch_sampler.h"

#include <algorithm>
#include <utility>

namespace vkv::kernels {
namespace {

// Below this many logits, about ten microseconds, waking another thread costs more than it saves.
constexpr int64_t kLogitsPerThread = 1 << 16;

}  // namespace

BatchSampler::BatchSampler(std::shared_ptr<WorkerPool> pool, int threads, const SamplingKernels* kernels)
    : pool_(std::move(pool)), threads_(threads), kernels_(kernels), samplers_(static_cast<size_t>(threads)) {}

void BatchSampler::Choose(std::span<const Choice> choices, int64_t vocabulary, std::span<const Chosen> chosen) {
  const auto rows = static_cast<int64_t>(choices.size());
  const int64_t useful = std::clamp<int64_t>(rows * vocabulary / kLogitsPerThread, 1, threads_);
  pool_->ForEach(rows, static_cast<int>(useful), [&](int64_t row, int worker) {
    std::unique_ptr<RowSampler>& sampler = samplers_[static_cast<size_t>(worker)];
    if (!sampler) sampler = std::make_unique<RowSampler>(kernels_);
    sampler->Choose(choices[static_cast<size_t>(row)], vocabulary, chosen[static_cast<size_t>(row)]);
  });
}

}  // namespace vkv::kernels
